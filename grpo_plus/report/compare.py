"""Several runs in the same charts: one line for each run, or one line and a band for all seeds of a variant."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from grpo_plus.diagnosis.curves import MetricWindow
from grpo_plus.record.reader import Run
from grpo_plus.report.panels import CHARTS, ChartLine, Panel, judging, label_of, thinned
from grpo_verifiers.stats import Interval, difference, mean_and_spread

Series = dict[int, float]
MEASURED, GAIN = "held-out accuracy", "gain by training"
"""Columns with the results of ``measure``."""


def lines_of(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """The runs of each line: those of a variant, or a single one."""
    lines: dict[str, list[Run]] = {}
    for run, name in zip(runs, names(runs), strict=True):
        lines.setdefault(run.variant or name, []).append(run)
    return lines


def compared(lines: Mapping[str, Sequence[Run]]) -> list[Panel]:
    """The charts of a comparison, without empty ones."""
    charts = [
        ("Reward", "Mean over the batch.", "reward", ""),
        ("Reward in evaluation", "Mean over the evaluation set.", "eval_reward", ""),
        ("Score in evaluation", "Weighted sum of the verifiers that only evaluate.", "eval_score", ""),
        *(
            (f"Accuracy{where}, {label}", "Share called correct.", f"{mode}verifiers/{label}/status/correct", "share")
            for where, mode in (("", ""), (" in evaluation", "eval_"))
            for label in _labels(lines)
        ),
        *(
            (title if len(keys) == 1 else f"{title}: {label_of(keys[0])}", note, keys[0], unit)
            for title, note, keys, unit in CHARTS
        ),
        ("Time of a step", "Seconds of an optimizer step.", "step_time", "seconds"),
    ]
    several = any(len(runs) > 1 for runs in lines.values())
    means = " Lines are means over seeds, bands one standard deviation to either side." if several else ""
    panels = []
    for title, note, key, unit in charts:
        # A line without this metric keeps its place, and with it its colour.
        bands = [band(name, [dict(zip(*run.series(key), strict=True)) for run in runs]) for name, runs in lines.items()]
        if any(line.steps for line in bands):
            panels.append(Panel(title, note + means, bands, unit=unit, wide=key == "reward"))
    return panels


def _labels(lines: Mapping[str, Sequence[Run]]) -> list[str]:
    return sorted({label for runs in lines.values() for run in runs for label in judging(run)})


def band(label: str, seeds: Sequence[Series]) -> ChartLine:
    """The mean over the seeds at each step, and one sample standard deviation to either side."""
    seeds = [seed for seed in seeds if seed]
    steps = sorted({step for seed in seeds for step in seed})
    steps = [steps[at] for at in thinned(len(steps))]
    if len(seeds) < 2:
        return ChartLine(label, steps, [seeds[0][step] for step in steps] if seeds else [])
    points = [mean_and_spread([seed[step] for seed in seeds if step in seed]) for step in steps]
    return ChartLine(
        f"{label} (n={len(seeds)})",
        steps,
        [mean for mean, _ in points],
        [mean - spread for mean, spread in points],
        [mean + spread for mean, spread in points],
    )


def at_the_end(run: Run, key: str) -> float | None:
    """Mean of a metric over the last tenth of its points, the last one at least."""
    points = MetricWindow(*run.series(key))
    return points.end if points.values else None


def overall(run: Run, key: str) -> float | None:
    """Mean of a metric over the run."""
    points = MetricWindow(*run.series(key))
    return points.mean if points.values else None


def table(lines: Mapping[str, Sequence[Run]]) -> list[dict[str, Any]]:
    """A row for each line: mean and standard deviation of the figures of a comparison; empty columns are left out.

    The measured accuracy of a line of one run has its interval. ``best`` marks a figure that differs from all the rest
    beyond the spread of the seeds.
    """
    rows: list[dict[str, Any]] = [{"name": name, "runs": len(runs), "cells": []} for name, runs in lines.items()]
    for title, unit, figures in _figures(lines):
        best, _ = verdict(title, figures) if title not in UNRANKED else (None, "")
        for row, (name, values) in zip(rows, figures.items(), strict=True):
            mean, spread = mean_and_spread(values) if values else (None, None)
            cell = {"title": title, "unit": unit, "mean": mean, "spread": spread if len(values) > 1 else None}
            share = _interval(lines[name][0], title) if len(lines[name]) == 1 else None
            cell |= {"low": share.low, "high": share.high} if share is not None else {}
            row["cells"].append(cell | {"best": name == best})
    return rows


def verdicts(lines: Mapping[str, Sequence[Run]]) -> list[str]:
    """A sentence for each column of the table: the best line, or the lack of a visible difference."""
    sentences = [verdict(title, figures)[1] for title, _, figures in _figures(lines) if title not in UNRANKED]
    return [sentence for sentence in sentences if sentence]


def _figures(lines: Mapping[str, Sequence[Run]]) -> Iterator[tuple[str, str, dict[str, list[float]]]]:
    """Title, unit, and the figures of each line's runs, without empty columns."""
    measured = sorted({label for runs in lines.values() for run in runs for label in run.measured})
    columns: list[tuple[str, str, Callable[[Run, str], float | None], str]] = [
        *(
            (f"{column}, {label}", "share", _measured, f"{column}, {label}")
            for column in (MEASURED, GAIN)
            for label in measured
        ),
        ("final reward", "", at_the_end, "reward"),
        ("final reward, evaluation", "", at_the_end, "eval_reward"),
        ("final score, evaluation", "", at_the_end, "eval_score"),
        *(
            (f"{title}, {label}", "share", at_the_end, f"{mode}verifiers/{label}/status/correct")
            for label in _labels(lines)
            for title, mode in (("training accuracy", ""), ("evaluation accuracy", "eval_"))
        ),
        ("dead groups", "share", overall, "advantages/dead_group_fraction"),
        ("tokens saved", "share", overall, "engine/tokens_saved"),
        ("seconds a step", "seconds", overall, "step_time"),
    ]
    for title, unit, figure, key in columns:
        figures = {
            name: [value for run in runs if (value := figure(run, key)) is not None] for name, runs in lines.items()
        }
        if any(figures.values()):
            yield title, unit, figures


def _interval(run: Run, title: str) -> Interval | None:
    column, _, label = title.partition(", ")
    measured = run.measured.get(label)
    return None if measured is None else {MEASURED: measured.after, GAIN: measured.gain}.get(column)


def _measured(run: Run, title: str) -> float | None:
    share = _interval(run, title)
    return None if share is None else share.value


def names(runs: Sequence[Run]) -> list[str]:
    """The names of the runs: their settings in a sweep; equal names begin with the parent folder."""
    plain = [run.title for run in runs]
    return [
        name if plain.count(name) == 1 else f"{run.path.resolve().parent.name}/{name}"
        for name, run in zip(plain, runs, strict=True)
    ]


LESS = ("dead groups", "seconds a step", "seconds")
"""Figures of which less is better; of all other figures, more."""
UNRANKED = ("tokens saved",)
"""Figures that do not measure the quality of a model."""


def verdict(title: str, values: Mapping[str, Sequence[float]]) -> tuple[str | None, str]:
    """The name of the best, None without a clear one, and a sentence about it.

    ``values`` has the figures of each variant, one a seed. The best is named where the interval of its difference from
    every other leaves out 0, at 95% for all comparisons together (Bonferroni).
    """
    seeds = {name: list(each) for name, each in values.items() if each}
    if len(seeds) < 2:
        return None, ""
    sign = -1.0 if title in LESS else 1.0
    means = {name: sign * sum(each) / len(each) for name, each in seeds.items()}
    best = max(means, key=lambda name: means[name])
    if min(map(len, seeds.values())) < 2:
        return (None, f"{title}: one seed of a variant has no spread, so no difference is claimed (--seeds 3).")
    confidence = 1 - 0.05 / (len(seeds) - 1)
    gaps = {
        name: difference([sign * value for value in seeds[best]], [sign * value for value in each], confidence)
        for name, each in seeds.items()
        if name != best
    }
    among = f"; {best} was compared with {', '.join(gaps)}" if len(gaps) > 1 else ""
    nearest = min(gaps, key=lambda name: gaps[name].value)
    if min(each.low for each in gaps.values()) > 0:
        return best, f"{title}: {best} is best, {_gap(gaps[nearest], sign)} from {nearest}{among}."
    close = min(gaps, key=lambda name: gaps[name].low)
    gap = f"{_gap(gaps[close], sign)} over the seeds"
    return None, f"{title}: no difference seen between {best} and {close} ({gap}){among}."


def _gap(gap: Interval, sign: float) -> str:
    low, high = sorted((sign * gap.low, sign * gap.high))
    return f"{sign * gap.value:+.3g} ({low:+.3g} to {high:+.3g})"
