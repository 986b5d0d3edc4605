r"""How far does the sign alone go, how far a target for each probability, beside z-scores?

    python -m benchmarks.studies.sign_target_zscore [--seeds 5] [--steps 120] [--rates 7e-5]

All arms train the quickstart's warm-started model on its task, with equally many completions a generation batch:

* zscore: `advantage: zscore`, `objective: dapo`;
* sign: `advantage: sign`, `objective: dapo`: better, near or worse than the group's mean, and nothing else;
* target: `advantage: zscore`, `objective: target`, with two optimizer steps a generation batch, since it needs several.

Training goes on to the last step. Every few steps the clock stops, and accuracy is measured on held-out questions.
Shown are where the arms end, and the seconds, completions and steps until the accuracy first reaches 90%.
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from benchmarks.studies import task
from benchmarks.studies.numbers import spread
from benchmarks.studies.picture import Panel, Point, Series
from benchmarks.studies.study import Case, Place, Row, Shown, Study, main, of_arms

ARMS: Mapping[str, Mapping[str, Any]] = {
    "zscore": {"advantage": "zscore", "objective": "dapo"},
    "sign": {"advantage": "sign", "objective": "dapo"},
    "target": {"advantage": "zscore", "objective": "target", "num_iterations": 2},
}
"""Fields of the config."""
GOAL = 0.9


def cases(options: argparse.Namespace) -> list[Case]:
    """Every seed, rate and arm."""
    return [
        {
            "arm": arm, "seed": seed, "rate": rate, "steps": options.steps, "every": options.every,
            "completions": options.completions, "group": options.group_size, "held_out": options.held_out,
            "warm": options.warm_steps,
        }
        for seed in range(options.seeds)
        for rate in options.rates
        for arm in options.arms
    ]  # fmt: skip


def run(case: Case, place: Place) -> dict[str, Any]:
    """Train one arm, and note its accuracy on the way."""
    seed = case["seed"]
    folder = task.warm(place.home, seed, case["warm"])
    test = task.questions(case["held_out"], seed + 1, held_out=True)
    config = task.settings(
        seed=seed, steps=case["steps"], completions=case["completions"], group=case["group"], rate=case["rate"],
        verifiers=["math"], record=False, **ARMS[case["arm"]],
    )  # fmt: skip
    measure = task.measuring(folder, test, seed)
    trained = task.train(folder, task.questions(2048, seed + 1), config, measure=measure, every=case["every"])
    return {**vars(trained.course), "training_seconds": trained.seconds}


def show(options: argparse.Namespace, rows: Sequence[Row]) -> Shown:
    """Where the arms end, what 90% cost them, and their curves."""
    arms = [(arm, rate) for rate in options.rates for arm in options.arms]
    return courses(rows, arms, several=len(options.rates) > 1)


def courses(rows: Sequence[Row], arms: Sequence[tuple[str, float]], *, several: bool) -> Shown:
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


def _add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--arms", nargs="+", choices=tuple(ARMS), default=list(ARMS))
    parser.add_argument("--rates", nargs="+", type=float, default=[7e-5], help="learning rates, each for every arm")
    parser.add_argument("--every", type=int, default=4, help="steps between measurements")
    parser.add_argument("--held-out", type=int, default=192, help="questions that are measured on, two samples each")
    parser.add_argument("--completions", type=int, default=256, help="a generation batch")
    parser.add_argument("--group-size", type=int, default=16, help="completions of a prompt")
    parser.add_argument("--warm-steps", type=int, default=task.WARM)


STUDY = Study(
    name="sign_target_zscore",
    title="Sign, target and z-score",
    about=__doc__ or "",
    steps=("optimizer steps", 120),
    seeds=5,
    cases=cases,
    run=run,
    show=show,
    quick={
        "seeds": 1,
        "steps": 4,
        "every": 2,
        "held_out": 8,
        "completions": 32,
        "group_size": 8,
        "warm_steps": 20,
    },
    options=_add,
)

if __name__ == "__main__":
    sys.exit(main(STUDY))
