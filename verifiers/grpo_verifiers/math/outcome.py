"""The outcome of a comparison, and how the outcomes of parts make one."""

from collections.abc import Callable, Iterable

from grpo_verifiers.math.tree import Node

Outcome = tuple[bool | None, str]
Equal = Callable[[Node, Node], Outcome]


def settled(same: bool | None, reason: str) -> Outcome:
    """An outcome with the reason for a difference."""
    return same, "" if same else reason


def every(outcomes: Iterable[Outcome]) -> Outcome:
    """True if all are; False with its reason as soon as one is."""
    open_reason: str | None = None
    for outcome, reason in outcomes:
        if outcome is False:
            return False, reason
        if outcome is None:
            open_reason = reason
    return (True, "") if open_reason is None else (None, open_reason)
