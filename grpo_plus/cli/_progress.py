"""The progress of a run: a live display on a terminal, elsewhere one line for each log entry."""

import functools
import os
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from transformers import TrainerCallback
from transformers.trainer_callback import PrinterCallback, ProgressCallback

from grpo_plus.cli._figures import Figures, duration, evaluation_words, sparkline

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.live import Live

    from grpo_plus._trl import Host

REFRESH = 2
"""Updates a second: enough for a clock, and cheap."""


def _never_fatal(method: Callable[..., None]) -> Callable[..., None]:
    """Switch a failing display off; training continues."""

    @functools.wraps(method)
    def guarded(self: "ProgressDisplay", *arguments: Any, **keywords: Any) -> None:
        if self.broken:
            return
        try:
            method(self, *arguments, **keywords)
        except Exception as error:  # noqa: BLE001 - a display must not end a run
            self.broken = True
            self.close()
            print(f"The progress display failed and is off now ({type(error).__name__}: {error}).", file=sys.stderr)

    return guarded


class ProgressDisplay(TrainerCallback):
    """Replaces the trainer's own bar, on the main process; without a ``console`` on standard output.

    On a terminal: a bar with the time left, and below it reward, dead groups, lengths, tokens a second, the engine's
    savings, and the parts of a step's time. Elsewhere (a log file, CI, ``TERM=dumb``): one line for each log entry.
    ``NO_COLOR`` is respected.
    """

    def __init__(self, console: "Console | None" = None) -> None:
        from rich.console import Console

        self.console = console or Console()
        self.live_wanted = self.console.is_terminal and not self.console.is_dumb_terminal
        self.broken = False
        self._live: Live | None = None
        self._figures = Figures()
        self._rewards: list[float] = []
        self._tokens_per_second: float | None = None
        self._logged = (0, 0.0)
        self._step = self._first = self._last = 0
        self._began = 0.0
        self._phase = ""

    @classmethod
    def instead_of_bar(cls, trainer: "Host") -> "ProgressDisplay | None":
        """Replace a trainer's bar by a display; None with ``disable_tqdm``, which keeps plain logs."""
        if trainer.args.disable_tqdm:
            return None
        shown = cls()
        for bar in (PrinterCallback, ProgressCallback):
            trainer.remove_callback(bar)
        trainer.add_callback(shown)
        return shown

    @_never_fatal
    def on_train_begin(self, _args: Any, state: Any, _control: Any, **_: Any) -> None:
        """Open the display."""
        if not state.is_world_process_zero:
            return
        self._began = time.monotonic()
        self._first = self._step = state.global_step
        self._last = state.max_steps
        self._logged = (state.global_step, float(state.num_input_tokens_seen or 0))
        if self.live_wanted:
            from rich.live import Live

            self._live = Live(
                console=self.console, get_renderable=self._picture, refresh_per_second=REFRESH, redirect_stderr=True
            )
            self._live.start()

    @_never_fatal
    def on_step_end(self, _args: Any, state: Any, _control: Any, **_: Any) -> None:
        """Count the step."""
        self._step = state.global_step
        self._last = state.max_steps

    @_never_fatal
    def on_prediction_step(self, _args: Any, _state: Any, _control: Any, **_: Any) -> None:
        """Show that an evaluation runs."""
        self._phase = "evaluating"

    @_never_fatal
    def on_evaluate(self, _args: Any, _state: Any, _control: Any, **_: Any) -> None:
        """Show that training continues."""
        self._phase = ""

    @_never_fatal
    def on_log(self, _args: Any, state: Any, _control: Any, logs: Any = None, **_: Any) -> None:
        """Show the figures of a log entry."""
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

    @_never_fatal
    def on_train_end(self, _args: Any, _state: Any, _control: Any, **_: Any) -> None:
        """Keep the last display."""
        self.close()

    def close(self) -> None:
        """Release the terminal."""
        live, self._live = self._live, None
        if live is not None:
            live.stop()

    def abandon(self) -> None:
        """Show the cursor again before the process exits, without waiting for the drawing thread."""
        if self._live is not None:
            os.write(1, b"\x1b[?25h\n")

    def _take(self, figures: Figures, state: Any) -> None:
        steps, tokens = self._logged
        if figures.tokens is not None:
            if figures.seconds and state.global_step > steps and figures.tokens > tokens:
                spent = figures.seconds * (state.global_step - steps)
                self._tokens_per_second = (figures.tokens - tokens) / spent
            self._logged = (state.global_step, figures.tokens)
        self._figures = figures
        if figures.reward is not None:
            self._rewards.append(figures.reward)
        if self._live is None:
            self._print(self.line(state.global_step, state.max_steps))

    def _print(self, text: str) -> None:
        self.console.print(text, markup=False, highlight=False, soft_wrap=True)

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

    def _picture(self) -> "RenderableType":
        from rich.text import Text

        try:
            return self._draw()
        except Exception as error:  # noqa: BLE001 - it runs in its own thread, where an exception is lost
            return Text(f"step {self._step}/{self._last} (no picture: {type(error).__name__})")

    def _draw(self) -> "RenderableType":
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        left = self._left()
        head = Table.grid(padding=(0, 1))
        head.add_row(
            Text(f"step {self._step}/{self._last}", style="bold"),
            ProgressBar(total=max(self._last, 1), completed=self._step, width=30),
            Text(duration(time.monotonic() - self._began)),
            Text(f"{duration(left)} left" if left is not None else "", style="cyan"),
            Text(self._phase, style="magenta"),
        )
        lines = []
        if len(self._rewards) > 1:
            low, high = min(self._rewards), max(self._rewards)
            lines.append(Text(f"reward {sparkline(self._rewards)} {low:.3g} to {high:.3g}", style="green"))
        lines += [Text("  ".join(words)) for words in (self._figures.words(), self._speed()) if words]
        return Group(head, *lines)
