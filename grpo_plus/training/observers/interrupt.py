"""Ctrl-C and SIGTERM: finish the step, save a checkpoint and stop; a second signal exits at once."""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from transformers import TrainerCallback

from grpo_plus.training.observers.on_finding import max_over_ranks

SIGNALS = (signal.SIGINT, signal.SIGTERM)
SAME_PRESS = 1.0
"""Seconds in which a signal counts as a repetition of the first: a launcher forwards a terminal's Ctrl-C again."""


class EvaluationInterrupted(Exception):  # noqa: N818 - requested by a signal, and no error
    """A signal ended an evaluation: the step before it is complete, and nothing is saved yet."""


class Interruption(TrainerCallback):
    """Saves a checkpoint at the end of the step after the first signal.

    ``stopped`` is called when training has stopped because of a signal. The process that ``leads`` prints.
    """

    def __init__(self, *, stopped: Callable[[], None] | None = None, leads: bool = True) -> None:
        self.number: int | None = None
        self.stopped = False
        self._on_stop = stopped
        self._leads = leads
        self._received = 0.0  # time of the first signal

    @property
    def exit_code(self) -> int:
        """The exit code in a shell for the signal: 130 for Ctrl-C, 143 for SIGTERM."""
        return 128 + (self.number or signal.SIGINT)

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Handle signals inside the block; only the main thread can."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self._receive) for number in SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, signal.SIG_DFL if handler is None else handler)

    def _receive(self, number: int, _frame: FrameType | None) -> None:
        now = time.monotonic()
        if self.number is None:
            self.number, self._received = number, now
            if self._leads:
                # A print during a print would raise.
                os.write(2, b"\nStopping: this step is finished first, then a checkpoint is saved. Again: at once.\n")
            return
        if now - self._received < SAME_PRESS and _was_launched():
            return
        try:
            sys.stdout.flush()
        finally:
            os._exit(128 + number)

    def on_step_end(self, args: Any, _state: Any, control: Any, **_: Any) -> None:
        """Save and stop on all ranks in the same step."""
        number = max_over_ranks(args, self.number or 0)
        self.number = self.number or number or None
        if number:
            self.stopped = True
            control.should_save = True
            control.should_evaluate = False
            control.should_training_stop = True

    def on_epoch_end(self, _args: Any, state: Any, control: Any, **_: Any) -> None:
        """Leave the end of the pass to the resumed run, if the run was stopped."""
        if self.stopped and state.global_step < state.max_steps:
            control.should_log = control.should_evaluate = control.should_save = False

    def on_prediction_step(self, _args: Any, _state: Any, _control: Any, **_: Any) -> None:
        """Leave a running evaluation at once; several ranks must finish theirs together."""
        if self.number is not None and not _was_launched():
            self._stop()
            raise EvaluationInterrupted

    def on_evaluate(self, _args: Any, _state: Any, control: Any, **_: Any) -> None:
        """Stop after an evaluation without another step; several ranks agree only at the end of a step."""
        if self.number is not None and not _was_launched():
            self.stopped = True
            control.should_save = True
            control.should_training_stop = True

    def on_train_end(self, _args: Any, _state: Any, _control: Any, **_: Any) -> None:
        if self.stopped:
            self._stop()

    def _stop(self) -> None:
        self.stopped = True
        if self._on_stop is not None:
            self._on_stop()


def _was_launched() -> bool:
    return "WORLD_SIZE" in os.environ or "GRPO_PLUS_LAUNCHED" in os.environ
