"""A program with its tests and bounds."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from grpo_verifiers.code.tests import CallTest, CodeTest, Test
from grpo_verifiers.sandbox.box import BoxKind, Limits


@dataclass(frozen=True)
class GradingTask:
    """A program and how to grade it."""

    blocks: Sequence[str]
    """Blocks of the completion that may be part of the program, in order."""
    bare: bool
    """The blocks name no language: one that is no program may be an example's output."""
    tests: Sequence[Test]
    box_kind: BoxKind
    limits: Limits
    tolerance: float
    in_process: bool
    all_required: bool
    """One failing test decides; the remaining tests are for people only and get little time."""
    total: float
    """Seconds for all runs together."""

    @property
    def program(self) -> dict[str, Any]:
        """The program of a message; the box chooses among several blocks."""
        if len(self.blocks) == 1:
            return {"source": self.blocks[-1]}
        names = [_owners(test.function) for test in self.tests if isinstance(test, CallTest)]
        names += [[name] for test in self.tests if isinstance(test, CodeTest) for name in sorted(test.names)]
        return {"source": list(self.blocks), "names": names, "bare": self.bare}


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
        """The reason why a test was not reached."""
        return f"all runs together took {self._seconds:g} s (total_limit)"

    def bounded(self, limits: Limits) -> Limits:
        """The bounds of a run that begins now."""
        return replace(limits, wall=min(limits.wall, max(0.01, self._end - time.monotonic())))


def _owners(function: str) -> list[str]:
    """The names that may define a function of a test."""
    return [function.partition(".")[0]] if "." in function else [function, "Solution"]
