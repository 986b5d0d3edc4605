"""Reward functions by TRL's names, dotted paths or references, and reward models."""

import functools
import inspect
from collections.abc import Sequence
from numbers import Real
from pathlib import Path
from types import NoneType
from typing import Any

from grpo_plus.cli import UserError
from grpo_verifiers._suggest import unknown
from grpo_verifiers.errors import PluginError
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
    """What TRL gets as ``reward_funcs``: the reward model first, then the functions, in order."""
    rewards: list[Any] = [model] if model else []
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
    """A reward function whose scores are checked before the host makes a tensor of them; async ones stay unchecked."""
    if inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__):
        return function

    @functools.wraps(function)
    def scored(*arguments: Any, **columns: Any) -> Any:
        scores = function(*arguments, **columns)
        wanted = len(columns["completions"]) if "completions" in columns else None
        if isinstance(scores, Sequence) and all(score is None or isinstance(score, Real) for score in scores):
            if wanted is None or len(scores) == wanted:
                return scores
            told = f"{len(scores)} scores"
        elif not isinstance(scores, Sequence | NoneType | Real) and wanted in (None, *getattr(scores, "shape", ())[:1]):
            return scores  # a tensor or an array
        else:
            told = repr(scores) if len(repr(scores)) <= 200 else f"{repr(scores)[:200]}…"
        raise UserError(
            f"reward_funcs: {name!r} returned {told}, expected a list of {wanted} numbers, one a completion (None: the "
            "reward does not apply)."
        )

    return scored
