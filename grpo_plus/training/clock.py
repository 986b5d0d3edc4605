"""Where the time of an optimizer step goes: drawing completions, scoring them, and the rest, which is the update."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from transformers import TrainerCallback

from grpo_plus.training.step_metrics import PARTS, metric


class StepClock(TrainerCallback):
    """Adds up the seconds of each part of a step; a part that begins inside another one pauses it.

    Nothing is synchronised with a device for it: the parts end with transfers to the host anyway.
    """

    def __init__(self, report: Callable[[str, float], None], clock: Callable[[], float] = time.perf_counter) -> None:
        """Start at zero.

        Args:
            report: takes a metric's name and seconds, at the end of every optimizer step.
            clock: seconds that only ever grow.
        """
        self._report = report
        self._clock = clock
        self._open: list[str] = []
        self._since = 0.0
        self._seconds = dict.fromkeys(PARTS, 0.0)

    @contextmanager
    def part(self, name: str, *, counts: bool = True) -> Iterator[None]:
        """Count the time inside the block for a part.

        Args:
            name: one of ``PARTS``.
            counts: False leaves the clock alone: evaluation is no part of a step.
        """
        if not counts:
            yield
            return
        self._enter(name)
        try:
            yield
        finally:
            self._leave()

    def _enter(self, name: str) -> None:
        self._book()
        self._open.append(name)

    def _leave(self) -> None:
        self._book()
        self._open.pop()

    def _book(self) -> None:
        now = self._clock()
        if self._open:
            self._seconds[self._open[-1]] += now - self._since
        self._since = now

    def on_pre_optimizer_step(self, *_: Any, **__: Any) -> None:
        """The optimizer's own step is part of the update."""
        self._enter("update")

    def on_optimizer_step(self, *_: Any, **__: Any) -> None:
        """It ends here."""
        if self._open:
            self._leave()

    def on_step_end(self, *_: Any, **__: Any) -> None:
        """Report the step and start the next one at zero."""
        self._open.clear()
        for name, seconds in self._seconds.items():
            self._report(metric(name), seconds)
        self._seconds = dict.fromkeys(PARTS, 0.0)
