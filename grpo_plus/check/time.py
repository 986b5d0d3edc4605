"""Time of a run, by the pace of an earlier one."""

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from grpo_plus.record import Run, RunError, open_run

SAME = (
    *("num_generations", "per_device_train_batch_size", "gradient_accumulation_steps", "steps_per_generation"),
    *("num_iterations", "max_completion_length", "advantage", "objective", "beta", "use_vllm"),
)
"""Fields that decide most of a step's time: only runs with equal values are comparable."""


@dataclass(frozen=True)
class StepTime:
    """Seconds of a step: median and quartiles, without the first step, which includes all start-up.

    >>> StepTime.of([(0, 0.0), (1, 9.0), (2, 11.0), (4, 15.0), (5, 18.0)])
    StepTime(middle=2.0, low=2.0, high=3.0, steps=4)
    """

    middle: float
    low: float
    high: float
    steps: int

    @classmethod
    def of(cls, logged: Sequence[tuple[int, float]]) -> "StepTime | None":
        """Compute from steps and their times in the log; None if there are too few."""
        spans = [
            (after[0] - before[0], (after[1] - before[1]) / (after[0] - before[0]))
            for before, after in pairwise(logged)
            if after[0] > before[0] >= 1
        ]
        if not spans:
            return None
        each = sorted(seconds for count, seconds in spans for _ in range(count))
        low, high = each[(len(each) - 1) // 4], each[(3 * (len(each) - 1) + 3) // 4]
        return cls(statistics.median(each), low, high, len(each))


def time_lines(args: Any, model: str | None) -> Iterator[str]:
    """Yield the lines about the time of a run."""
    earlier = _earlier(Path(args.output_dir), args, model)
    if isinstance(earlier, str):
        yield f"time: no basis ({earlier}). Train with --max_steps 5 --logging_steps 1: check then reads its pace."
        return
    run, pace = earlier
    where = f"on {run.info.get('host', 'some machine')} ({run.info.get('device', '?')})"
    half = f"half of the steps between {shown(pace.low)} and {shown(pace.high)}"
    yield f"time: {shown(pace.middle)} a step, {half}; of {pace.steps} steps of the run in {run.path}, {where}"
    if args.max_steps > 0:
        ends = f"between {shown(pace.low * args.max_steps)} and {shown(pace.high * args.max_steps)}"
        total = shown(pace.middle * args.max_steps)
        yield f"      {total} for {args.max_steps} steps, {ends} at the pace of these"
    else:
        yield f"      max_steps is not set: multiply by the steps of {args.num_train_epochs:g} epochs"
    yield "      an estimate: completions grow and shrink while a model learns, and a step with them"


def _earlier(folder: Path, args: Any, model: str | None) -> tuple[Run, StepTime] | str:
    """Return the run of the same config in its output folder; the reason if there is none."""
    try:
        run = open_run(folder)
    except RunError:
        return f"no earlier run in {folder}"
    config, command = run.info.get("config") or {}, run.info.get("command") or {}
    now = {name: getattr(args, name, None) for name in SAME}
    changed = {name: value for name, value in now.items() if config.get(name) != value}
    other = [f"{name} was {config.get(name)!r}, now {value!r}" for name, value in changed.items()]
    before = command.get("model_name_or_path")
    other += [f"the model was {before}, now {model}"] if before != model else []
    if other:
        return f"the run in {folder} is a different one: {'; '.join(other)}"
    logged = [entry for entry in run.entries if entry["kind"] == "train" and entry.get("time")]
    pace = StepTime.of([(entry["step"], entry["time"]) for entry in logged])
    return f"the run in {folder} logged too few steps" if pace is None else (run, pace)


def shown(seconds: float) -> str:
    """Format seconds for people.

    >>> shown(0.35), shown(42), shown(600), shown(9000), shown(200000)
    ('0.35 s', '42 s', '10.0 min', '2.5 h', '2.3 days')
    """
    if seconds < 10:
        return f"{seconds:.2f} s"
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 2 * 3600:
        return f"{seconds / 60:.1f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 48 * 3600 else f"{seconds / 86400:.1f} days"
