"""A bound on the work of a check in the trainer's own process: work is counted, never timed.

One unit is about a microsecond of a slow machine. The parts of a check whose cost depends on what a model wrote spend
units before or while they work; without a budget (in a worker, which has a deadline) spending does nothing. A budget
that is used up says nothing about the answer: the exception passes through caches, which keep no exceptions, and the
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

from contextvars import ContextVar, Token
from typing import Self

INLINE = 25_000
"""Units of one completion in the trainer."""


class OverBudgetError(Exception):
    """More work than the budget allows. No ValueError: nobody may take it for a property of the answer."""


class Budget:
    """Units of work that are left to this thread in a ``with`` block; ``left`` is below 0 once they are used up."""

    __slots__ = ("_token", "left", "units")

    def __init__(self, units: int) -> None:
        self.units = self.left = units
        self._token: Token[Budget | None] | None = None

    def __enter__(self) -> Self:
        self._token = _CURRENT.set(self)
        return self

    def __exit__(self, *_: object) -> None:
        if self._token is not None:
            _CURRENT.reset(self._token)

    def spend(self, units: int) -> None:
        """Take units off, and raise OverBudgetError where none are left."""
        self.left -= units
        if self.left < 0:
            raise OverBudgetError(f"more work than {self.units} units")


_CURRENT: ContextVar[Budget | None] = ContextVar("budget", default=None)


def limited(units: int = INLINE) -> Budget:
    """A budget for what this thread does in the ``with`` block."""
    return Budget(units)


def spend(units: int) -> None:
    """Take units off the budget of this thread, if it has one."""
    budget = _CURRENT.get()
    if budget is not None:
        budget.spend(units)
