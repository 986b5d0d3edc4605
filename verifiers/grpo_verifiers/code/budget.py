"""A time budget for all runs of a program."""

import time
from dataclasses import replace

from grpo_verifiers.sandbox.limits import Limits


class TimeBudget:
    """The time that all runs of a program share."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._end = time.monotonic() + seconds

    def over(self) -> bool:
        """True once it is spent."""
        return time.monotonic() >= self._end

    @property
    def why(self) -> str:
        """The reason that a test was not reached."""
        return f"all runs together took {self._seconds:g} s (total_limit)"

    def bounded(self, limits: Limits) -> Limits:
        """The bounds of a run that begins now."""
        return replace(limits, wall=min(limits.wall, max(0.01, self._end - time.monotonic())))
