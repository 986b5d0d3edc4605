"""Several runs in the same charts: one line for each run, or one line and a band for all seeds of a variant."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from grpo_plus.diagnosis.curves import Window
from grpo_plus.record.reader import Run
from grpo_plus.report.differences import UNRANKED, verdict
from grpo_plus.report.panels import Line, Panel, judging, thinned
from grpo_verifiers.stats import Interval, mean_and_spread

Series = dict[int, float]
HELD_OUT, GAIN = "held-out accuracy", "gain by training"
"""Columns of what ``measure`` of a config found."""


def lines_of(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """The runs of each line: those of a variant, or a single one."""
    found: dict[str, list[Run]] = {}
    for run, name in zip(runs, names(runs), strict=True):
        found.setdefault(run.variant or name, []).append(run)
    return found


CHARTS = (
    ("Groups that teach nothing", "Every advantage is 0.", "advantages/dead_group_fraction", "share"),
    ("Groups with equal rewards", "Standard deviation 0.", "frac_reward_zero_std", "share"),
    ("Spread of advantages", "Standard deviation over the batch.", "advantages/std", ""),
    ("Explained variance of the critic", "Below 0: worse than a constant.", "critic/explained_variance", "share"),
    ("Ranking accuracy of the reward model", "On held-out pairs.", "reward_model/accuracy", "share"),
    ("KL to the reference", "Per token.", "kl", ""),
    ("Entropy", "Of the policy, per token.", "entropy", ""),
    ("Clipped tokens", "Share whose ratio left the trust region.", "clip_ratio/region_mean", "share"),
    ("Completion length", "Mean of the batch.", "completions/mean_length", "tokens"),
    ("Tokens saved by the engine", "Share of an update's tokens.", "engine/tokens_saved", "share"),
    ("Time of a step", "Seconds of an optimizer step.", "step_time", "seconds"),
    ("Gradient norm", "Before clipping.", "grad_norm", ""),
)
"""Title, note, metric and unit."""


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
        *CHARTS,
    ]
    several = any(len(runs) > 1 for runs in lines.values())
    means = " Lines are means over seeds, bands one standard deviation to either side." if several else ""
    panels = []
    for title, note, key, unit in charts:
        # A line without this metric keeps its place, and with it its colour.
        drawn = [band(name, [dict(zip(*run.series(key), strict=True)) for run in runs]) for name, runs in lines.items()]
        if any(line.steps for line in drawn):
            panels.append(Panel(title, note + means, drawn, unit=unit, wide=key == "reward"))
    return panels


def _labels(lines: Mapping[str, Sequence[Run]]) -> list[str]:
    return sorted({label for runs in lines.values() for run in runs for label in judging(run)})


def band(label: str, seeds: Sequence[Series]) -> Line:
    """The mean over the seeds at each step, and one sample standard deviation to either side."""
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


def at_the_end(run: Run, key: str) -> float | None:
    """Mean of a metric over the last tenth of its points, the last one at least."""
    points = Window(*run.series(key))
    return points.end if points.values else None


def overall(run: Run, key: str) -> float | None:
    """Mean of a metric over the run."""
    points = Window(*run.series(key))
    return points.mean if points.values else None


def table(lines: Mapping[str, Sequence[Run]]) -> list[dict[str, Any]]:
    """A row for each line: mean and standard deviation of the figures of a comparison; empty columns are left out.

    Where a line is a single run, the accuracy that it was measured with has its interval. ``best`` marks what differs
    from all others beyond the spread of the seeds.
    """
    rows: list[dict[str, Any]] = [{"name": name, "runs": len(runs), "cells": []} for name, runs in lines.items()]
    for title, unit, found in _figures(lines):
        best, _ = verdict(title, found) if title not in UNRANKED else (None, "")
        for row, (name, values) in zip(rows, found.items(), strict=True):
            mean, spread = mean_and_spread(values) if values else (None, None)
            cell = {"title": title, "unit": unit, "mean": mean, "spread": spread if len(values) > 1 else None}
            share = _interval(lines[name][0], title) if len(lines[name]) == 1 else None
            cell |= {"low": share.low, "high": share.high} if share is not None else {}
            row["cells"].append(cell | {"best": name == best})
    return rows


def verdicts(lines: Mapping[str, Sequence[Run]]) -> list[str]:
    """A sentence for each column of the table: which line is best, or that no difference can be seen."""
    told = [verdict(title, found)[1] for title, _, found in _figures(lines) if title not in UNRANKED]
    return [sentence for sentence in told if sentence]


def _figures(lines: Mapping[str, Sequence[Run]]) -> Iterator[tuple[str, str, dict[str, list[float]]]]:
    """Title, unit, and the figures of each line's runs, without columns that nobody has anything in."""
    measured = sorted({label for runs in lines.values() for run in runs for label in run.measured})
    columns: list[tuple[str, str, Callable[[Run, str], float | None], str]] = [
        *(
            (f"{column}, {label}", "share", _measured, f"{column}, {label}")
            for column in (HELD_OUT, GAIN)
            for label in measured
        ),
        ("final reward", "", at_the_end, "reward"),
        ("final reward, evaluation", "", at_the_end, "eval_reward"),
        ("final score, evaluation", "", at_the_end, "eval_score"),
        *(
            (f"{title}, {label}", "share", at_the_end, f"{mode}verifiers/{label}/status/correct")
            for label in _labels(lines)
            for title, mode in (("final accuracy", ""), ("evaluation", "eval_"))
        ),
        ("dead groups", "share", overall, "advantages/dead_group_fraction"),
        ("tokens saved", "share", overall, "engine/tokens_saved"),
        ("seconds a step", "seconds", overall, "step_time"),
    ]
    for title, unit, figure, key in columns:
        found = {
            name: [value for run in runs if (value := figure(run, key)) is not None] for name, runs in lines.items()
        }
        if any(found.values()):
            yield title, unit, found


def _interval(run: Run, title: str) -> Interval | None:
    """The value of a run in a column of ``measure``."""
    column, _, label = title.partition(", ")
    found = run.measured.get(label)
    return None if found is None else {HELD_OUT: found.after, GAIN: found.gain}.get(column)


def _measured(run: Run, title: str) -> float | None:
    share = _interval(run, title)
    return None if share is None else share.value


def names(runs: Sequence[Run]) -> list[str]:
    """The names of the runs: what varies in a sweep; equal ones get the parent folder in front."""
    plain = [run.title for run in runs]
    return [
        name if plain.count(name) == 1 else f"{run.path.resolve().parent.name}/{name}"
        for name, run in zip(plain, runs, strict=True)
    ]
