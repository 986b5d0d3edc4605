"""Reward functions by TRL's names, dotted paths or references, and reward models."""

from collections.abc import Sequence
from pathlib import Path
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
        rewards.append(found)
    return rewards
