"""How many processes a config is for, when it is read before they are there."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_planned: ContextVar[int | None] = ContextVar("grpo_plus_planned_processes", default=None)


@contextmanager
def planned(count: int | None) -> Iterator[None]:
    """Check batch sizes for ``count`` processes inside the block; None: for those there are."""
    token = _planned.set(count)
    try:
        yield
    finally:
        _planned.reset(token)


def planned_processes() -> int | None:
    """The processes that are about to be launched, or None when nobody said."""
    return _planned.get()
