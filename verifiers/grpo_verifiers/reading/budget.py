"""A bound on the work of a check in the trainer's own process: work is counted, never timed.

One unit is about a microsecond of a slow machine. The parts of a check whose cost depends on what a model wrote spend
units before or while they work; without a budget (in a worker, which has a deadline) spending does nothing. An
exhausted budget is no verdict on the answer: the exception passes through caches, which store no exceptions, and the
check is undecided.

>>> with limited(10) as budget:
...     spend(4)
>>> budget.left
6
>>> with limited(10):
...     spend(11)
Traceback (most recent call last):
...
grpo_verifiers.reading.budget.OverBudgetError: more work than 10 units
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

INLINE = 25_000
"""Units of one completion in the trainer."""


class OverBudgetError(Exception):
    """More work than the budget allows. No ValueError: callers must not mistake it for a property of the answer."""


@dataclass(slots=True)
class WorkBudget:
    """Units of work; ``left`` is below 0 once they are used up."""

    units: int
    left: int


_CURRENT: ContextVar[WorkBudget | None] = ContextVar("budget", default=None)


@contextmanager
def limited(units: int = INLINE) -> Iterator[WorkBudget]:
    """Set a budget for the work of this thread in the ``with`` block."""
    budget = WorkBudget(units, units)
    token = _CURRENT.set(budget)
    try:
        yield budget
    finally:
        _CURRENT.reset(token)


def spend(units: int) -> None:
    """Take units off the budget of this thread, if it has one; raise OverBudgetError if none are left."""
    budget = _CURRENT.get()
    if budget is not None:
        budget.left -= units
        if budget.left < 0:
            raise OverBudgetError(f"more work than {budget.units} units")
