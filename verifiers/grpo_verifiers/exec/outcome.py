"""The outcome of one call of a check."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from grpo_verifiers.verdict import FailureKind, Verdict

MARK = "GRPO_VERIFIERS_WORKER"
"""Environment variable of worker processes: each worker has its own value, and its descendants inherit it."""


@dataclass(frozen=True)
class InvalidRow:
    """The reason why one result of a batch function is no verdict."""

    reason: str


@dataclass(frozen=True)
class Outcome:
    """The outcome of one call.

    ``value``: verdicts. ``raised``: the check raised, or its result was invalid. ``timeout``: killed at its deadline.
    ``died``: two workers were lost. ``outside``: the check reported an external failure. ``broken``: no worker could
    start or load the check, or it reported that it cannot work. `FailureKind` has the meaning of each.
    """

    kind: Literal["value"] | FailureKind
    verdicts: Sequence[Verdict | InvalidRow] = ()
    message: str = ""
    trace: str = ""
    seconds: float = 0.0
