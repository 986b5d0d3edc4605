"""Rewards and rows of a command line, and all problems detectable before a model loads."""

import asyncio
import functools
import inspect
import math
from collections.abc import Callable, Sequence
from numbers import Real
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Any

from grpo_plus.cli import UserError
from grpo_plus.cli._data import NO_MODEL, import_function, load_rows, pick_split
from grpo_plus.cli._prompts import check_columns
from grpo_verifiers.errors.messages import cut, unknown
from grpo_verifiers.files import restore_folder
from grpo_verifiers.registry import is_reference
from grpo_verifiers.verifying import BUILTINS

if TYPE_CHECKING:
    from grpo_plus.cli._arguments import Parsed


def find_rewards(parsed: "Parsed") -> list[Any]:
    """Return the reward functions that are no verifiers; raise `UserError` if there is no reward at all."""
    script, recipe = parsed.script, parsed.training.recipe
    rewards = resolve_rewards(script.reward_model_name_or_path, script.reward_funcs or [], parsed.folder)
    if not rewards and not recipe.verifiers and not _has_environment_rewards(parsed):
        raise UserError("nothing rewards the completions: set verifiers, reward_funcs or reward_model_name_or_path.")
    return rewards


def _has_environment_rewards(parsed: "Parsed") -> bool:
    return any(part.rewards for part in parsed.training.recipe.environments.values())


def find_rows(parsed: "Parsed", load: Callable[..., Any] = load_rows) -> tuple[Any, dict[str, Any]]:
    """Load all splits by name, and the selected ones by config field; ``load`` has the signature of `load_rows`."""
    from trl import get_dataset

    from grpo_plus.training.hooks import too_few_rows

    script, args = parsed.script, parsed.training
    if parsed.mixture.datasets:
        if script.dataset_name:
            raise UserError("dataset_name and datasets are both set: keep one.")
        try:
            splits = get_dataset(parsed.mixture)
        except Exception as error:
            raise UserError(f"datasets: the mixture cannot be loaded: {type(error).__name__}: {error}") from error
    elif script.dataset_name:
        streaming = script.dataset_streaming
        splits = load(script.dataset_name, script.dataset_config, streaming=streaming, base=parsed.folder)
    else:
        raise UserError("no data: set dataset_name (a file, a folder or a name on the hub) or datasets.")
    chosen = {"dataset_train_split": script.dataset_train_split}
    if args.eval_strategy != "no":
        chosen["dataset_test_split"] = script.dataset_test_split
    if parsed.measure is not None:
        chosen["measure"] = parsed.measure.get("split", script.dataset_test_split)
    sets = {field: pick_split(splits, split, field) for field, split in chosen.items()}
    for field, rows in sets.items():
        check_columns(rows, parsed.prompt, field)
    if problems := too_few_rows(sets["dataset_train_split"], args):
        raise UserError(problems[0])
    return splits, sets


def gather(parsed: "Parsed", load: Callable[..., Any] = load_rows) -> tuple[list[Any], Any, dict[str, Any]]:
    """Return the rewards of `find_rewards` and the splits of `find_rows`."""
    if not parsed.model.model_name_or_path:
        raise UserError(NO_MODEL)
    rewards = find_rewards(parsed)
    if parsed.training.max_steps == 0:
        raise UserError("max_steps is 0, expected at least 1, or -1 for num_train_epochs.")
    if parsed.measure is not None and not parsed.training.recipe.verifiers and not _has_environment_rewards(parsed):
        raise UserError("measure needs verifiers to judge with, and the config has none: set verifiers.")
    return rewards, *find_rows(parsed, load)


def problems_before_loading(parsed: "Parsed", load: Callable[..., Any] = load_rows) -> list[str]:
    """Return all problems that ``train`` reports on this machine before it loads the model; the model is not read."""
    from trl import get_peft_config, get_quantization_config

    from grpo_plus.cli._arguments import reward_names
    from grpo_plus.recipe.rewards import weight_problems
    from grpo_plus.trainer import GRPOPlusTrainer

    args, model = parsed.training, parsed.model
    try:
        rewards, _, sets = gather(parsed, load)
    except UserError as error:
        return [str(error), *weight_problems(args.recipe, reward_names(parsed.script))]
    sets = {field: _with_some_prompt(rows) if parsed.prompt else rows for field, rows in sets.items()}
    more = GRPOPlusTrainer.problems(
        model.model_name_or_path,
        rewards or None,
        args,
        sets["dataset_train_split"],
        sets.get("dataset_test_split"),
        quantization_config=get_quantization_config(model),
        peft_config=get_peft_config(model),
    )
    return list(dict.fromkeys(map(str, more)))


def _with_some_prompt(rows: Any) -> Any:
    """Add a column ``prompt`` with placeholder text: the model decides later whether prompts become chats."""
    if not hasattr(rows, "add_column") or not hasattr(rows, "__len__"):
        return rows
    rows = rows.remove_columns("prompt") if "prompt" in rows.column_names else rows
    return rows.add_column("prompt", [[{"role": "user", "content": ""}]] * len(rows))


def trl_rewards() -> dict[str, Any]:
    """Return the reward functions that TRL's own command line accepts by name, with its parameters."""
    from trl import rewards

    names = ("accuracy_reward", "reasoning_accuracy_reward", "think_format_reward")
    overlong = rewards.get_soft_overlong_punishment(max_completion_len=1280, soft_punish_cache=256)
    return {name: getattr(rewards, name) for name in names} | {"get_soft_overlong_punishment": overlong}


def resolve_rewards(model: str | None, names: Sequence[str], base: Path) -> list[Any]:
    """Return the ``reward_funcs`` for TRL: the reward model first, then the functions, in order."""
    rewards: list[Any] = [model] if model else []
    for name in rewards:
        restore_folder(Path(name))
    builtin = trl_rewards() if names else {}
    for name in names:
        if name in builtin:
            rewards.append(builtin[name])
            continue
        reference = name if is_reference(name) else ":".join(name.rpartition(".")[::2])
        if name in BUILTINS:
            raise UserError(f"reward_funcs: {name!r} is a verifier: write verifiers: [{name}].")
        if not is_reference(reference) or reference.startswith(":"):
            raise UserError(
                f"reward_funcs: {unknown('reward function', name, builtin)} Name your own by a dotted path "
                "(package.module.function) or a reference (./file.py:function)."
            )
        function = import_function("reward_funcs", reference, base, "which cannot be called")
        rewards.append(_checked(name, function))
    return rewards


def _checked(name: str, function: Any) -> Any:
    """Wrap a reward function to check its scores before the host converts them to a tensor."""

    @functools.wraps(function)
    def scored(**columns: Any) -> Any:
        count = len(columns["completions"])  # before the call, which may change its lists
        return _check_scores(name, function(**columns), count)

    @functools.wraps(function)
    async def scored_later(**columns: Any) -> Any:
        count = len(columns["completions"])
        try:
            return _check_scores(name, await function(**columns), count)
        except (SystemExit, KeyboardInterrupt, asyncio.CancelledError) as error:
            # These would end the host's event loop, which would then wait forever.
            reason = f"{type(error).__name__}: {error}".removesuffix(": ")
            raise UserError(f"reward_funcs: {name!r} ended its call with {reason}.") from error

    is_async = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)
    return scored_later if is_async else scored


def _check_scores(name: str, scores: Any, count: int) -> Any:
    """Return the scores if the host can use them; an integer beyond the largest float becomes infinity."""
    listed = isinstance(scores, Sequence) and all(score is None or isinstance(score, Real) for score in scores)
    if listed and len(scores) == count:
        return [_in_floats(score) for score in scores]
    if not isinstance(scores, Sequence | NoneType | Real) and tuple(getattr(scores, "shape", ())) == (count,):
        return scores  # a tensor or an array
    shown = f"{len(scores)} scores" if listed else cut(repr(scores), 200)
    raise UserError(
        f"reward_funcs: {name!r} returned {shown}, expected a list of {count} numbers, one a completion (None: the "
        "reward does not apply)."
    )


def _in_floats(score: Any) -> Any:
    try:
        return score if score is None else float(score)
    except OverflowError:
        return math.inf if score > 0 else -math.inf
