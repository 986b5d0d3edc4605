"""The reward model as one of TRL's reward functions."""

from collections.abc import Callable, Sequence
from typing import Any

from grpo_plus.reward_model.options import NAME


class RewardColumn:
    """Gives what the hook makes of the completions that are being scored; ``weight`` is that of its column."""

    def __init__(self, rewards: Callable[[], Sequence[float]], weight: float) -> None:
        self.__name__ = NAME
        self.weight = weight
        self._rewards = rewards

    def __call__(self, prompts: Any, completions: Any, **_: Any) -> list[float]:  # noqa: ARG002 - TRL's signature
        """TRL's reward signature."""
        return list(self._rewards())
