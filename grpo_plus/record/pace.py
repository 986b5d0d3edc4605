"""Limits of recording: a small share of a run's time, and a number of bytes."""

import contextlib
import math
import time
from collections.abc import Iterator

BYTES = 48 * 2**20
"""Of all sampled groups of a run; twice as many with those that resumed runs took back."""
SHARE_OF_TIME = 0.02
"""Largest share of the time for recording groups, after the first half second; as much again for reports."""


class ByteBudget:
    """Time and bytes for the sampled groups of a run, released in proportion to its progress.

    ``counted`` are the bytes of the run so far, which a resumed run continues; None: those of the file. Where time
    runs out first, the samples depend on the machine: no two runs need to agree.
    """

    def __init__(self) -> None:
        self.counted: int | None = None
        self._began = self._since = self._spent = 0.0
        self._withdrawn = 0

    def begin(self, size: int) -> None:
        """Start or resume a run whose file has this size."""
        self._began, self._spent = time.monotonic(), 0.0
        self.counted = size if self.counted is None else self.counted
        self._withdrawn = size - self.counted

    @contextlib.contextmanager
    def spending(self) -> Iterator[None]:
        """Count the time of the block."""
        self._since = time.monotonic()
        try:
            yield
        finally:
            self._spent += time.monotonic() - self._since

    def wrote(self, size: int) -> None:
        """Count bytes."""
        self.counted = (self.counted or 0) + size

    def used_up(self, done: float) -> bool:
        """True if a run that has done this share of its steps has used its budget; call it inside `spending`."""
        now = time.monotonic()
        spent = self._spent + now - self._since
        too_long = spent > 0.5 + SHARE_OF_TIME * (now - self._began)
        counted = self.counted or 0
        return too_long or counted > BYTES * min(1.0, 0.05 + done) or counted + self._withdrawn > 2 * BYTES


class ReportPace:
    """Limits a repeated action to a small share of the time."""

    def __init__(self) -> None:
        self._last = -math.inf
        self._took = 0.0

    def due(self) -> bool:
        """True if enough time has passed since the last time."""
        return time.monotonic() - self._last >= self._took / SHARE_OF_TIME

    @contextlib.contextmanager
    def measured(self) -> Iterator[None]:
        """Measure the action inside the block."""
        start = time.monotonic()
        yield
        self._last = time.monotonic()
        self._took = self._last - start
