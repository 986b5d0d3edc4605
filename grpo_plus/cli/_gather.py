"""Rewards and rows of a command line, and every problem that shows before a model loads."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from grpo_plus.cli import UserError
from grpo_plus.cli._data import NO_MODEL, check_rows, load_rows, pick_split
from grpo_plus.cli._prompts import check_columns
from grpo_plus.cli._rewards import resolve_rewards

if TYPE_CHECKING:
    from grpo_plus.cli._arguments import Parsed


@dataclass(frozen=True)
class Gathered:
    """Reward functions, all splits by name, and the chosen ones by the field that names them."""

    rewards: list[Any]
    splits: Any
    sets: dict[str, Any]

    @property
    def train(self) -> Any:
        """The training rows."""
        return self.sets["dataset_train_split"]


def gather(parsed: "Parsed", load: Callable[..., Any] = load_rows) -> Gathered:
    """Resolve the rewards and load the rows; ``load`` takes what `load_rows` takes."""
    from trl import get_dataset

    script, args, model = parsed.script, parsed.training, parsed.model
    if not model.model_name_or_path:
        raise UserError(NO_MODEL)
    rewards = resolve_rewards(script.reward_model_name_or_path, script.reward_funcs or [], parsed.folder)
    owned = any(part.rewards for part in args.recipe.environments.values())
    if not rewards and not args.recipe.verifiers and not owned:
        raise UserError("nothing rewards the completions: set verifiers, reward_funcs or reward_model_name_or_path.")
    if args.max_steps == 0:
        raise UserError("max_steps is 0, expected at least 1, or -1 for num_train_epochs.")
    measured = script.measure if isinstance(script.measure, dict) else None
    if measured is not None and not args.recipe.verifiers and not owned:
        raise UserError("measure needs verifiers to judge with, and the config has none: set verifiers.")
    if parsed.mixture.datasets:
        if script.dataset_name:
            raise UserError("dataset_name and datasets are both set: keep one.")
        splits = get_dataset(parsed.mixture)
    elif script.dataset_name:
        splits = load(
            script.dataset_name, script.dataset_config, streaming=script.dataset_streaming, base=parsed.folder
        )
    else:
        raise UserError("no data: set dataset_name (a file, a folder or a name on the hub) or datasets.")
    prompt = script.prompt if isinstance(script.prompt, dict) else {}
    chosen = {"dataset_train_split": script.dataset_train_split}
    if args.eval_strategy != "no":
        chosen["dataset_test_split"] = script.dataset_test_split
    if measured is not None:
        chosen["measure"] = measured.get("split", script.dataset_test_split)
    sets = {field: pick_split(splits, split, field) for field, split in chosen.items()}
    for field, rows in sets.items():
        check_columns(rows, prompt, field)
    check_rows(sets["dataset_train_split"], args)
    return Gathered(rewards, splits, sets)


def problems_before_loading(parsed: "Parsed", load: Callable[..., Any] = load_rows) -> list[str]:
    """All that ``train`` would refuse on this machine before the model loads; nothing of the model is looked at."""
    from trl import get_peft_config, get_quantization_config

    from grpo_plus.cli._loads import say_and_check
    from grpo_plus.trainer import GRPOPlusTrainer

    problems = []
    try:
        say_and_check(parsed)
    except UserError as error:
        problems.append(str(error))
    try:
        found = gather(parsed, load)
    except UserError as error:
        return [*problems, str(error)]
    args, model = parsed.training, parsed.model
    sets = {field: _with_some_prompt(rows, parsed.script.prompt) for field, rows in found.sets.items()}
    more = GRPOPlusTrainer.problems(
        model.model_name_or_path,
        found.rewards or None,
        args,
        sets["dataset_train_split"],
        sets.get("dataset_test_split"),
        quantization_config=get_quantization_config(model),
        peft_config=get_peft_config(model),
    )
    return list(dict.fromkeys([*problems, *map(str, more)]))


def _with_some_prompt(rows: Any, prompt: Any) -> Any:
    """Rows with a column ``prompt``, whose words do not matter: whether they become a chat says the model."""
    if not isinstance(prompt, Mapping) or not prompt or not hasattr(rows, "add_column") or not hasattr(rows, "__len__"):
        return rows
    rows = rows.remove_columns("prompt") if "prompt" in rows.column_names else rows
    return rows.add_column("prompt", [[{"role": "user", "content": ""}]] * len(rows))
