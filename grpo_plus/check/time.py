"""Time of a run, by the pace of an earlier one."""

import statistics
from collections.abc import Iterator
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

from grpo_plus.record import RunError, open_run

SAME = (
    *("num_generations", "per_device_train_batch_size", "gradient_accumulation_steps", "steps_per_generation"),
    *("num_iterations", "max_completion_length", "advantage", "objective", "beta", "use_vllm"),
)
"""Fields that decide most of a step's time: only runs with equal values are comparable."""


def time_lines(args: Any, model: str | None) -> Iterator[str]:
    """Yield the pace of an earlier run of the same config in its output folder, if there is one.

    The first step, which includes all start-up, does not count.
    """
    try:
        run = open_run(Path(args.output_dir))
    except RunError:
        return
    config, command = run.info.get("config") or {}, run.info.get("command") or {}
    same = all(config.get(name) == getattr(args, name, None) for name in SAME)
    logged = [(each["step"], each["time"]) for each in run.entries if each["kind"] == "train" and each.get("time")]
    paces = [(then - now) / (after - step) for (step, now), (after, then) in pairwise(logged) if after > step >= 1]
    if same and command.get("model_name_or_path") == model and paces:
        pace = statistics.median(paces)
        total = f"; {timedelta(seconds=round(pace * args.max_steps))} for {args.max_steps} steps"
        yield f"time: {pace:.3g} s a step, the median of the run in {run.path}{total if args.max_steps > 0 else ''}"
