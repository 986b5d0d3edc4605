"""Studies of accuracy over the course of a training: their options, and how far each arm came at what cost."""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import fields

from benchmarks.studies import task
from benchmarks.studies.numbers import spread
from benchmarks.studies.picture import Panel, Point, Series
from benchmarks.studies.study import Row, Shown, of_arms

GOAL = 0.9
QUICK: Mapping[str, int] = {
    "seeds": 1,
    "steps": 4,
    "every": 2,
    "held_out": 8,
    "completions": 32,
    "group_size": 8,
    "warm_steps": 20,
}


def add_options(parser: argparse.ArgumentParser) -> None:
    """How much is drawn and measured."""
    parser.add_argument("--every", type=int, default=4, help="steps between measurements")
    parser.add_argument("--held-out", type=int, default=192, help="questions that are measured on, two samples each")
    parser.add_argument("--completions", type=int, default=256, help="a generation batch")
    parser.add_argument("--group-size", type=int, default=16, help="completions of a prompt")
    parser.add_argument("--warm-steps", type=int, default=task.WARM)


def shown(rows: Sequence[Row], arms: Sequence[tuple[str, float]], *, several: bool) -> Shown:
    """Table and curves of runs that noted a `task.Course`."""
    table = []
    lines: dict[str, list[Series]] = {"drawn": [], "seconds": []}
    for arm, rate in arms:
        found = of_arms(rows, arm=arm, rate=rate)
        if not found:
            continue
        name = f"{arm}, {rate:g}" if several else arm
        noted = [task.Course(**{spec.name: row.found[spec.name] for spec in fields(task.Course)}) for row in found]
        last = spread([course.accuracy[-1] for course in noted])
        costs = []
        for cost, form in (("seconds", ".1f"), ("drawn", ",.0f"), ("steps", ".0f")):
            spent = [at for at in (course.reaches(GOAL, cost) for course in noted) if at is not None]
            costs.append(spread(spent).text(form) if spent else "-")
        times = sum(course.reaches(GOAL, "steps") is not None for course in noted)
        trained = spread([course.seconds[-1] for course in noted]).text(".1f")
        table.append([name, last.text(), last.interval(), *costs, f"{times} of {len(noted)}", trained])
        for cost, series in lines.items():
            # Every seed is measured after the same steps; its own costs at them are averaged.
            points = []
            for at in range(min(len(course.steps) for course in noted)):
                middle = spread([course.accuracy[at] for course in noted])
                x = spread([getattr(course, cost)[at] for course in noted]).mean
                points.append(Point(x, middle.mean, middle.mean - middle.deviation, middle.mean + middle.deviation))
            series.append(Series(name, points))
    goal = f"{GOAL:.0%}"
    columns = ["arm", "accuracy at the end", "95% interval", f"seconds to {goal}", f"completions to {goal}",
               f"steps to {goal}", "reached by", "seconds of training"]  # fmt: skip
    panels = [
        Panel("accuracy by completions", "completions drawn", "held-out accuracy", lines["drawn"]),
        Panel("accuracy by time", "seconds of training", "held-out accuracy", lines["seconds"]),
    ]
    remarks = [
        f"Mean ± deviation over seeds. Costs of {goal} are those of the seeds that reached it, by interpolation.",
    ]
    return Shown(columns, table, panels, remarks)
