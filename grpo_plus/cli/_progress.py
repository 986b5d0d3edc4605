"""Progress of a run: one line for each log entry, above the host's bar on a terminal."""

import contextlib
import sys
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
    """Callback that prints a line for each log entry, on the main process."""

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

    def on_log(self, _args: Any, state: Any, _control: Any, logs: Any = None, **_: Any) -> None:
        """Print the figures of a log entry."""
        if not state.is_world_process_zero or not logs:
            return
        line = ""
        if any(key.startswith("eval_") for key in logs):
            if words := evaluation_words(logs):
                line = f"step {state.global_step}: evaluation: {', '.join(words)}"
        elif "train_runtime" in logs:
            line = f"trained to step {state.global_step} in {duration(logs['train_runtime'])}"
        elif "loss" in logs:
            parts = {part: number for part in PARTS if (number := _number(logs.get(metric(part)))) is not None}
            words = [f"step {state.global_step}/{state.max_steps}", *figure_words(logs)]
            if 0 < (seconds := sum(parts.values())) < 1e9:
                shares = ", ".join(f"{part} {each / seconds:.0%}" for part, each in parts.items())
                left = duration(seconds * (state.max_steps - state.global_step))
                words += [f"{seconds:.2f} s/step ({shares})", f"{left} left"]
            line = " | ".join(words)
        with contextlib.suppress(OSError, ValueError, AttributeError):  # a full disk, a closed pipe, no output at all
            if line:
                tqdm.write(line)
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
