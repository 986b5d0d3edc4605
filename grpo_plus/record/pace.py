"""What recording may cost: a small share of a run's time, and so many bytes."""

import contextlib
import math
import time
from collections.abc import Iterator

BYTES = 48 * 2**20
"""Of all sampled groups of a run."""
SHARE_OF_TIME = 0.02
"""Most time that recording groups may take, after a first half second; reports in between get as much again."""


class Budget:
    """Time and bytes that sampled groups of a run may take, as much of it as the run has come."""

    def __init__(self) -> None:
        self._began = self._since = self._spent = 0.0
        self._bytes = 0

    def begin(self, size: int) -> None:
        """A run begins, or goes on with a file that has so many bytes."""
        self._began, self._spent, self._bytes = time.monotonic(), 0.0, size

    @contextlib.contextmanager
    def spending(self) -> Iterator[None]:
        """Count the time inside the block."""
        self._since = time.monotonic()
        try:
            yield
        finally:
            self._spent += time.monotonic() - self._since

    def wrote(self, size: int) -> None:
        """Count bytes."""
        self._bytes += size

    def used_up(self, done: float) -> bool:
        """Whether what a run has of it after this share of its steps is gone; asked while spending."""
        now = time.monotonic()
        spent = self._spent + now - self._since
        too_long = spent > 0.5 + SHARE_OF_TIME * (now - self._began)
        return too_long or self._bytes > BYTES * min(1.0, 0.05 + done)


class Pace:
    """Lets something happen as long as it takes a small share of the time."""

    def __init__(self) -> None:
        self._last = -math.inf
        self._took = 0.0

    def due(self) -> bool:
        """Whether enough time has passed since it happened last."""
        return time.monotonic() - self._last >= self._took / SHARE_OF_TIME

    @contextlib.contextmanager
    def measured(self) -> Iterator[None]:
        """It happens inside the block."""
        start = time.monotonic()
        yield
        self._last = time.monotonic()
        self._took = self._last - start
