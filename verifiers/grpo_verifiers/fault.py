"""Whose fault a failed check is: the one place that says what a failure means for the completion's score.

A failure that may depend on the completion scores 0: left out of its group's statistics, a completion that breaks its
check would do better than a wrong one. A failure that cannot depend on it leaves the completion out. What is broken for
every completion stops the run.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Literal

from grpo_verifiers.errors import UnavailableError, VerifierFailedError
from grpo_verifiers.verdict import Status, Verdict

Kind = Literal["raised", "timeout", "died", "outside", "broken"]


class Fault(StrEnum):
    """Whose fault a failure is."""

    COMPLETION = "completion"
    """The check raised, returned what is no verdict, was late, or lost its process: score 0, unless ``on_error`` says
    otherwise of the first two."""
    OUTSIDE = "outside"
    """A server is down, the row's gold cannot be used: score None. A check says so with ``UnavailableError``, or with
    a verdict of score None and status error."""
    VERIFIER = "verifier"
    """The check cannot be loaded, or says with ``VerifierFailedError`` that it cannot work: the run stops."""


FAULTS: Mapping[Kind, Fault] = {
    "raised": Fault.COMPLETION,
    "timeout": Fault.COMPLETION,
    "died": Fault.COMPLETION,
    "outside": Fault.OUTSIDE,
    "broken": Fault.VERIFIER,
}
"""What became of a call that gave no verdict, to whose fault it is."""


def kind_of(error: BaseException) -> Kind:
    """What an exception of a check counts as; by its class, since an object may claim to be of another."""
    if issubclass(type(error), VerifierFailedError):
        return "broken"
    return "outside" if issubclass(type(error), UnavailableError) else "raised"


def blamed(reason: str, status: Status = Status.ERROR) -> Verdict:
    """The verdict on a completion that may have caused the failure: 0."""
    return Verdict(0.0, status, reason)


def excused(reason: str) -> Verdict:
    """The verdict on a completion that cannot have caused the failure: none, and an error."""
    return Verdict(None, Status.ERROR, reason)
