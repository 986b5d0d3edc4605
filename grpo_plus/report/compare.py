"""Several runs in the same charts: one line a run, or one with a band for all seeds of a variant."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from grpo_plus.record.reader import Run
from grpo_plus.report.panels import Line, Panel, judging, thinned

Series = dict[int, float]
LAST = 0.1
"""Share of a run, its end, that figures of the whole are the mean of."""


def lines_of(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """Runs by the line they are drawn as: their variant, or themselves."""
    found: dict[str, list[Run]] = {}
    for run, name in zip(runs, _names(runs), strict=True):
        found.setdefault(run.variant or name, []).append(run)
    return found


def compared(lines: Mapping[str, Sequence[Run]]) -> list[Panel]:
    """The charts of a comparison; those without a point are left out."""
    labels = sorted({label for runs in lines.values() for run in runs for label in judging(run)})
    panels = [
        _panel(lines, "Reward", "Mean over the batch.", "reward", wide=True),
        _panel(lines, "Reward in evaluation", "Mean over the evaluation set.", "eval_reward"),
        _panel(lines, "Score in evaluation", "Weighted sum of the verifiers that only evaluate.", "eval_score"),
        *(
            _panel(lines, f"Accuracy, {label}", "Share called correct.", f"verifiers/{label}/status/correct", "share")
            for label in labels
        ),
        *(
            _panel(
                lines,
                f"Accuracy in evaluation, {label}",
                "Share called correct.",
                f"eval_verifiers/{label}/status/correct",
                "share",
            )
            for label in labels
        ),
        _panel(lines, "Groups that teach nothing", "Every advantage is 0.", "advantages/dead_group_fraction", "share"),
        _panel(lines, "Groups with equal rewards", "Standard deviation 0.", "frac_reward_zero_std", "share"),
        _panel(lines, "Spread of advantages", "Standard deviation over the batch.", "advantages/std"),
        _panel(lines, "KL to the reference", "Per token.", "kl"),
        _panel(lines, "Entropy", "Of the policy, per token.", "entropy"),
        _panel(lines, "Clipped tokens", "Share whose ratio left the trust region.", "clip_ratio/region_mean", "share"),
        _panel(lines, "Completion length", "Mean of the batch.", "completions/mean_length", "tokens"),
        _panel(lines, "Tokens saved by the engine", "Share of an update's tokens.", "engine/tokens_saved", "share"),
        _panel(lines, "Time of a step", "Seconds of an optimizer step.", "step_time", "seconds"),
        _panel(lines, "Gradient norm", "Before clipping.", "grad_norm"),
    ]
    return [panel for panel in panels if panel.lines]


def _panel(
    lines: Mapping[str, Sequence[Run]], title: str, note: str, key: str, unit: str = "", *, wide: bool = False
) -> Panel:
    drawn = [band(name, [dict(zip(*run.series(key), strict=True)) for run in runs]) for name, runs in lines.items()]
    several = any(len(runs) > 1 for runs in lines.values())
    note += " Lines are means over seeds, bands one standard deviation to either side." if several else ""
    # A line that this metric lacks keeps its place, and with it its colour.
    return Panel(title, note, drawn if any(line.steps for line in drawn) else [], unit=unit, wide=wide)


def band(label: str, seeds: Sequence[Series]) -> Line:
    """Mean over the seeds that have a step, and one sample standard deviation to either side."""
    seeds = [seed for seed in seeds if seed]
    steps = sorted({step for seed in seeds for step in seed})
    steps = [steps[at] for at in thinned(len(steps))]
    if len(seeds) < 2:
        return Line(label, steps, [seeds[0][step] for step in steps] if seeds else [])
    found = [mean_and_spread([seed[step] for seed in seeds if step in seed]) for step in steps]
    return Line(
        f"{label} (n={len(seeds)})",
        steps,
        [mean for mean, _ in found],
        [mean - spread for mean, spread in found],
        [mean + spread for mean, spread in found],
    )


def mean_and_spread(values: Sequence[float]) -> tuple[float, float]:
    """Mean and sample standard deviation; a single value has none."""
    mean = math.fsum(values) / len(values)
    if len(values) < 2:
        return mean, 0.0
    return mean, math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1))


def at_the_end(run: Run, key: str) -> float | None:
    """Mean of a metric over the last tenth of its points, the last one at least."""
    _, values = run.series(key)
    tail = values[-max(1, round(len(values) * LAST)) :]
    return math.fsum(tail) / len(tail) if tail else None


def overall(run: Run, key: str) -> float | None:
    """Mean of a metric over the run."""
    _, values = run.series(key)
    return math.fsum(values) / len(values) if values else None


def table(lines: Mapping[str, Sequence[Run]]) -> list[dict[str, Any]]:
    """A row for each line with mean and spread of the figures that a comparison is read for."""
    labels = sorted({label for runs in lines.values() for run in runs for label in judging(run)})
    columns: list[tuple[str, str, Callable[[Run], float | None]]] = [
        ("final reward", "", lambda run: at_the_end(run, "reward")),
        ("final reward, evaluation", "", lambda run: at_the_end(run, "eval_reward")),
        ("final score, evaluation", "", lambda run: at_the_end(run, "eval_score")),
    ]
    for label in labels:
        correct = f"verifiers/{label}/status/correct"
        columns.append((f"final accuracy, {label}", "share", lambda run, key=correct: at_the_end(run, key)))  # type: ignore[misc]
        columns.append((f"evaluation, {label}", "share", lambda run, key=f"eval_{correct}": at_the_end(run, key)))  # type: ignore[misc]
    columns += [
        ("dead groups", "share", lambda run: overall(run, "advantages/dead_group_fraction")),
        ("tokens saved", "share", lambda run: overall(run, "engine/tokens_saved")),
        ("seconds a step", "seconds", lambda run: overall(run, "step_time")),
    ]
    rows: list[dict[str, Any]] = []
    for name, runs in lines.items():
        cells = []
        for title, unit, figure in columns:
            values = [value for run in runs if (value := figure(run)) is not None]
            mean, spread = mean_and_spread(values) if values else (None, None)
            cells.append({"title": title, "unit": unit, "mean": mean, "spread": spread if len(values) > 1 else None})
        rows.append({"name": name, "runs": len(runs), "cells": cells})
    used = [any(row["cells"][at]["mean"] is not None for row in rows) for at in range(len(columns))]
    return [{**row, "cells": [cell for cell, use in zip(row["cells"], used, strict=True) if use]} for row in rows]


def _names(runs: Sequence[Run]) -> list[str]:
    """The runs' names, made different where two are the same."""
    plain = [run.name for run in runs]
    return [
        name if plain.count(name) == 1 else f"{run.path.resolve().parent.name}/{name}"
        for name, run in zip(plain, runs, strict=True)
    ]
