"""The progress of a run: one line for each log entry, on a terminal above the host's bar."""

import contextlib
import sys
import time
from typing import TYPE_CHECKING, Any

from tqdm.auto import tqdm  # type: ignore[import-untyped]  # comes with transformers
from transformers import TrainerCallback
from transformers.trainer_callback import PrinterCallback, ProgressCallback

from grpo_plus.cli._figures import Figures, duration, evaluation_words

if TYPE_CHECKING:
    from grpo_plus._trl import Host


class _Bar(ProgressCallback):
    """The host's bar without its lines."""

    def on_log(self, *_: Any, **__: Any) -> None:
        """Nothing: `ProgressLines` prints them."""


class ProgressLines(TrainerCallback):
    """Prints a line for each log entry, on the main process.

    It has reward, dead groups, lengths, tokens a second, the engine's savings, the parts of a step's time, and the time
    left.
    """

    def __init__(self) -> None:
        self._figures = Figures()
        self._tokens_per_second: float | None = None
        self._logged = (0, 0.0)
        self._step = self._first = self._last = 0
        self._began = 0.0

    @classmethod
    def instead_of_logs(cls, trainer: "Host") -> None:
        """Replace what a trainer prints; with ``disable_tqdm`` it keeps its plain logs."""
        if trainer.args.disable_tqdm:
            return
        for printing in (PrinterCallback, ProgressCallback):
            trainer.remove_callback(printing)
        trainer.add_callback(cls())
        if sys.stderr.isatty():
            trainer.add_callback(_Bar())

    def on_train_begin(self, _args: Any, state: Any, _control: Any, **_: Any) -> None:
        """Look at the clock."""
        self._began = time.monotonic()
        self._first = self._step = state.global_step
        self._last = state.max_steps
        self._logged = (state.global_step, float(state.num_input_tokens_seen or 0))

    def on_step_end(self, _args: Any, state: Any, _control: Any, **_: Any) -> None:
        """Count the step."""
        self._step = state.global_step
        self._last = state.max_steps

    def on_log(self, _args: Any, state: Any, _control: Any, logs: Any = None, **_: Any) -> None:
        """Print the figures of a log entry."""
        if not state.is_world_process_zero or not logs:
            return
        if any(key.startswith("eval_") for key in logs):
            words = evaluation_words(logs)
            if words:
                self._print(f"step {state.global_step}: evaluation: {', '.join(words)}")
        elif "train_runtime" in logs:
            self._print(f"trained to step {state.global_step} in {duration(logs['train_runtime'])}")
        elif "loss" in logs:
            self._take(Figures.of(logs), state)

    def _take(self, figures: Figures, state: Any) -> None:
        steps, tokens = self._logged
        if figures.tokens is not None:
            if figures.seconds and state.global_step > steps and figures.tokens > tokens:
                spent = figures.seconds * (state.global_step - steps)
                self._tokens_per_second = (figures.tokens - tokens) / spent
            self._logged = (state.global_step, figures.tokens)
        self._figures = figures
        self._print(self.line(state.global_step, state.max_steps))

    def _print(self, text: str) -> None:
        with contextlib.suppress(OSError):  # a log on a full disk, or a closed pipe
            tqdm.write(text)
            sys.stdout.flush()

    def line(self, step: int, last: int) -> str:
        """The newest figures in one line."""
        words = [f"step {step}/{last}", *self._figures.words(), *self._speed()]
        left = self._left()
        return " | ".join([*words, *([f"{duration(left)} left"] if left is not None else [])])

    def _speed(self) -> list[str]:
        found = []
        if self._tokens_per_second is not None:
            found.append(f"{self._tokens_per_second:,.0f} tokens/s")
        if self._figures.seconds is not None:
            split = f" ({self._figures.split})" if self._figures.split else ""
            found.append(f"{self._figures.seconds:.2f} s/step{split}")
        return found

    def _left(self) -> float | None:
        """Estimated seconds of the remaining steps, from the steps and evaluations of this run."""
        done = self._step - self._first
        if done < 1 or self._last < self._step:
            return None
        return (time.monotonic() - self._began) / done * (self._last - self._step)
