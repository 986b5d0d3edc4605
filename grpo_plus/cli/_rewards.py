"""Reward functions by TRL's names, dotted paths or references, and reward models."""

import asyncio
import functools
import inspect
import math
from collections.abc import Mapping, Sequence
from numbers import Real
from pathlib import Path
from types import NoneType
from typing import Any

from grpo_plus.cli import UserError
from grpo_verifiers.errors import PluginError
from grpo_verifiers.errors.messages import unknown
from grpo_verifiers.files import restore_folder
from grpo_verifiers.registry import import_reference, is_reference


def trl_rewards() -> dict[str, Any]:
    """The reward functions that TRL's own command line knows by name, with its parameters."""
    from trl import rewards

    return {
        "accuracy_reward": rewards.accuracy_reward,
        "reasoning_accuracy_reward": rewards.reasoning_accuracy_reward,
        "think_format_reward": rewards.think_format_reward,
        "get_soft_overlong_punishment": rewards.get_soft_overlong_punishment(
            max_completion_len=1280, soft_punish_cache=256
        ),
    }


def resolve_rewards(model: str | None, names: Sequence[str], base: Path) -> list[Any]:
    """The ``reward_funcs`` for TRL: the reward model first, then the functions, in order."""
    rewards: list[Any] = [model] if model else []
    for name in rewards:
        restore_folder(Path(name))
    known = trl_rewards() if names else {}
    for name in names:
        if name in known:
            rewards.append(known[name])
            continue
        reference = name if is_reference(name) else ":".join(name.rpartition(".")[::2])
        if not is_reference(reference) or reference.startswith(":"):
            raise UserError(
                f"reward_funcs: {unknown('reward function', name, known)} Your own is named by a dotted path "
                "(package.module.function) or a reference (./file.py:function)."
            )
        try:
            found = import_reference(reference, base)
        except PluginError as error:
            raise UserError(f"reward_funcs: {error}") from error
        if not callable(found):
            raise UserError(f"reward_funcs: {name!r} is {found!r}, which cannot be called.")
        rewards.append(_checked(name, found))
    return rewards


def _checked(name: str, function: Any) -> Any:
    """Wrap a reward function so that its scores are checked before the host makes a tensor of them."""
    if inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__):

        @functools.wraps(function)
        async def scored_later(*arguments: Any, **columns: Any) -> Any:
            wanted = _wanted(columns)
            try:
                scores = await function(*arguments, **columns)
            except (SystemExit, KeyboardInterrupt, asyncio.CancelledError) as error:
                # These would end the host's event loop, which would then wait forever.
                what = f"{type(error).__name__}: {error}".removesuffix(": ")
                raise UserError(f"reward_funcs: {name!r} ended its call with {what}.") from error
            return _fitting(name, scores, wanted)

        return scored_later

    @functools.wraps(function)
    def scored(*arguments: Any, **columns: Any) -> Any:
        wanted = _wanted(columns)
        return _fitting(name, function(*arguments, **columns), wanted)

    return scored


def _wanted(columns: Mapping[str, Any]) -> int | None:
    """The number of expected scores; counted before the call, which may change its lists."""
    return len(columns["completions"]) if "completions" in columns else None


def _fitting(name: str, scores: Any, wanted: int | None) -> Any:
    """The scores, if the host can use them; an integer beyond the largest float becomes infinity."""
    if isinstance(scores, Sequence) and all(score is None or isinstance(score, Real) for score in scores):
        if wanted is None or len(scores) == wanted:
            return [_in_floats(score) for score in scores]
        told = f"{len(scores)} scores"
    elif not isinstance(scores, Sequence | NoneType | Real) and (
        wanted is None or tuple(getattr(scores, "shape", ())) == (wanted,)
    ):
        return scores  # a tensor or an array
    else:
        told = repr(scores) if len(repr(scores)) <= 200 else f"{repr(scores)[:200]}…"
    raise UserError(
        f"reward_funcs: {name!r} returned {told}, expected a list of {wanted} numbers, one a completion (None: the "
        "reward does not apply)."
    )


def _in_floats(score: Any) -> Any:
    try:
        return score if score is None else float(score)
    except OverflowError:
        return math.inf if score > 0 else -math.inf
