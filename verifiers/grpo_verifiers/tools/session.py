"""What the trainer asks of tools while a completion is drawn: one session a completion, whatever its tools are."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from grpo_verifiers.turns import CallStatus

if TYPE_CHECKING:
    from concurrent.futures import Future


@dataclass(frozen=True)
class Reply:
    """What came of a call.

    Attributes:
        status: how it ended.
        text: ``str`` of what the tool returned, cut at its limit; of an error, its message.
        seconds: how long it took.
        number: of ``reward``, the reward; None elsewhere, and where there is none.
        ended: the environment had ended before it was asked.
    """

    status: CallStatus
    text: str
    seconds: float = 0.0
    number: float | None = None
    ended: bool = False


class Session(Protocol):
    """The tools and the environment of one completion. Calls run in the order in which they were made."""

    def reset(self, row: Mapping[str, Any]) -> "Future[Reply]":
        """Make the environment ready for a row; its text is what ``reset`` returned, empty for None."""

    def call(self, method: str, arguments: Mapping[str, Any]) -> "Future[Reply]":
        """Call a method whose arguments fit its schema. The future never raises."""

    def state(self) -> "Future[Reply]":
        """The environment's ``state_key`` as text; empty where it has none."""

    def turn_reward(self) -> "Future[Reply]":
        """The environment's ``get_turn_reward`` for the turn whose calls were made last."""

    def reward(self) -> "Future[Reply]":
        """The environment's ``get_reward``."""

    def close(self) -> None:
        """End all that belongs to the completion; calls under way end as ``died``."""
