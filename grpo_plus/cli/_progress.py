"""Progress of a run: one line for each log entry, above the host's bar on a terminal."""

import contextlib
import sys
import time
from collections.abc import Mapping
from math import isfinite
from typing import TYPE_CHECKING, Any

from tqdm.auto import tqdm  # type: ignore[import-untyped]  # comes with transformers
from transformers import TrainerCallback
from transformers.trainer_callback import PrinterCallback, ProgressCallback

from grpo_plus.training.observers import PARTS, metric

if TYPE_CHECKING:
    from grpo_plus.trl.host import Host


class _Bar(ProgressCallback):
    """The host's progress bar without its log lines."""

    def on_log(self, *_: Any, **__: Any) -> None:
        """Do nothing: `ProgressLines` prints the log."""


class ProgressLines(TrainerCallback):
    """Callback that prints a line for each log entry, on the main process.

    The line has reward, dead groups, lengths, tokens a second, the engine's savings, the parts of a step's time, and
    the remaining time.
    """

    def __init__(self) -> None:
        self._tokens_per_second: float | None = None
        self._logged = (0, 0.0)
        self._step = self._first = self._last = 0
        self._began = 0.0

    @classmethod
    def instead_of_logs(cls, trainer: "Host") -> None:
        """Replace the printed logs of a trainer; with ``disable_tqdm`` the plain logs stay."""
        if trainer.args.disable_tqdm:
            return
        for printing in (PrinterCallback, ProgressCallback):
            trainer.remove_callback(printing)
        trainer.add_callback(cls())
        if sys.stderr.isatty():
            trainer.add_callback(_Bar())

    def on_train_begin(self, _args: Any, state: Any, _control: Any, **_: Any) -> None:
        """Start the clock."""
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
            if words := evaluation_words(logs):
                self._print(f"step {state.global_step}: evaluation: {', '.join(words)}")
        elif "train_runtime" in logs:
            self._print(f"trained to step {state.global_step} in {duration(logs['train_runtime'])}")
        elif "loss" in logs:
            self._take(logs, state.global_step, state.max_steps)

    def _take(self, logs: Mapping[str, Any], step: int, last: int) -> None:
        parts = {part: number for part in PARTS if (number := _number(logs.get(metric(part)))) is not None}
        seconds = sum(parts.values()) if len(parts) == len(PARTS) else None
        tokens = _number(logs.get("num_tokens"))
        if tokens is not None:
            steps, before = self._logged
            if seconds and step > steps and tokens > before:
                self._tokens_per_second = (tokens - before) / (seconds * (step - steps))
            self._logged = (step, tokens)
        words = [f"step {step}/{last}", *figure_words(logs)]
        if self._tokens_per_second is not None:
            words.append(f"{self._tokens_per_second:,.0f} tokens/s")
        if seconds is not None:
            shares = ", ".join(f"{part} {each / seconds:.0%}" for part, each in parts.items()) if seconds else ""
            words.append(f"{seconds:.2f} s/step" + (f" ({shares})" if shares else ""))
        done = self._step - self._first
        if done >= 1 and self._last >= self._step:  # includes the evaluations of this run
            left = (time.monotonic() - self._began) / done * (self._last - self._step)
            words.append(f"{duration(left)} left")
        self._print(" | ".join(words))

    def _print(self, text: str) -> None:
        with contextlib.suppress(OSError):  # a log on a full disk, or a closed pipe
            tqdm.write(text)
            sys.stdout.flush()


def figure_words(logs: Mapping[str, Any]) -> list[str]:
    """Return the main figures of a training log with their names.

    Dead groups are those whose advantages are all 0 (with TRL's estimator: whose rewards are all equal). The engine
    saves a share of the update's tokens.
    """
    numbers = {name: _number(value) for name, value in logs.items()}
    dead = numbers.get("advantages/dead_group_fraction", numbers.get("frac_reward_zero_std"))
    cut, saved = numbers.get("completions/clipped_ratio"), numbers.get("engine/tokens_saved") or None
    figures = {
        "reward {:.3f}": numbers.get("reward"),
        "dead groups {:.0%}": dead,
        "length {:.0f}" + (f" ({cut:.0%} cut off)" if cut else ""): numbers.get("completions/mean_length"),
        "loss {:.4f}": numbers.get("loss"),
        "kl {:.4f}": numbers.get("kl"),
        "engine saves {:.0%}": None if dead == 1 else saved,  # without live groups there is no update
    }
    return [form.format(number) for form, number in figures.items() if number is not None]


def evaluation_words(logs: Mapping[str, Any]) -> list[str]:
    """Return the rewards of an evaluation with their names."""
    words = []
    for key, value in logs.items():
        name = key.removeprefix("eval_")
        rewarding = name in ("reward", "score") or (name.startswith("rewards/") and name.endswith("/mean"))
        if key.startswith("eval_") and rewarding and (number := _number(value)) is not None:
            words.append(f"{name.removeprefix('rewards/').removesuffix('/mean')} {number:.3f}")
    return words


def duration(seconds: float) -> str:
    """Format seconds as hours, minutes and seconds."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}"


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value):
        return None
    return float(value)
