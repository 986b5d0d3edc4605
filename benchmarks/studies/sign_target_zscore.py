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
from typing import Any

from benchmarks.studies import courses, task
from benchmarks.studies.study import Case, Place, Row, Shown, Study, main

ARMS: Mapping[str, Mapping[str, Any]] = {
    "zscore": {"advantage": "zscore", "objective": "dapo"},
    "sign": {"advantage": "sign", "objective": "dapo"},
    "target": {"advantage": "zscore", "objective": "target", "num_iterations": 2},
}
"""Fields of the config."""


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
        verifiers=["math"], report=False, **ARMS[case["arm"]],
    )  # fmt: skip
    measure = task.measuring(folder, test, seed)
    trained = task.train(folder, task.questions(2048, seed + 1), config, measure=measure, every=case["every"])
    return {**vars(trained.course), "training_seconds": trained.seconds}


def show(options: argparse.Namespace, rows: Sequence[Row]) -> Shown:
    """Where the arms end, what 90% cost them, and their curves."""
    arms = [(arm, rate) for rate in options.rates for arm in options.arms]
    return courses.shown(rows, arms, several=len(options.rates) > 1)


def _add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--arms", nargs="+", choices=tuple(ARMS), default=list(ARMS))
    parser.add_argument("--rates", nargs="+", type=float, default=[7e-5], help="learning rates, each for every arm")
    courses.add_options(parser)


STUDY = Study(
    name="sign_target_zscore",
    title="Sign, target and z-score",
    about=__doc__ or "",
    steps=("optimizer steps", 120),
    seeds=5,
    cases=cases,
    run=run,
    show=show,
    quick=courses.QUICK,
    options=_add,
)

if __name__ == "__main__":
    sys.exit(main(STUDY))
