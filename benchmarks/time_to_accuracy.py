"""Wall time and completions drawn to the same held-out accuracy: stock TRL beside this project.

    python -m benchmarks.time_to_accuracy [--tasks quickstart mix] [--arms trl keep ...] [--seeds 0 1] [--short]

Task `quickstart` is the quickstart's: short chains of sums, all about equally hard. Task `mix` has few prompts, drawn
again and again: a third the model gets right nearly always (one move), a third nobody can (the gold answer is wrong), a
third are the quickstart's. Held out are questions of the quickstart's kind, in both.

All arms of a seed train the same warm-started model with the same hyper-parameters, the same number of completions a
step and the maths verifier as the reward. `trl` is TRL's `GRPOTrainer` with its defaults; the others are
`GRPOPlusTrainer` with its defaults and what `ARMS` says. They take turns in one process, in an order that changes from
seed to seed.

Every `--every` steps the clock stops, and accuracy is measured on the held-out rows, with the same seeds for each arm.
Seconds and completions are those at which the accuracy first reaches a target, interpolated between two measurements.
Completions count when they are drawn, whether they are trained on or not.
"""

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from benchmarks.studies.task import Course, measuring, settings, train, warm

ARMS: Mapping[str, Mapping[str, Any] | None] = {
    "trl": None,
    "keep": {},
    "resample": {"dead_groups": "resample"},
    "roulette": {"dead_groups": "roulette"},
    "early": {"dead_groups": {"name": "roulette", "after": 2}},
    "contrast": {"selection": "contrast"},
    "all": {"selection": "contrast", "dead_groups": {"name": "roulette", "after": 2}},
}
"""Fields of the config; None for stock TRL."""
UNBIASED = ("trl", "keep", "roulette", "early", "contrast", "all")
"""Arms whose expected gradient is that of the uniform prompts."""
TARGETS = {"quickstart": (0.7, 0.9), "mix": (0.8,)}
"""Held-out accuracies that are timed, by task; training ends at the last."""
THIRD = 48
"""Prompts of each kind in the task ``mix``."""


@dataclass(frozen=True)
class Case:
    """A task and a seed, and the warm-started model of the seed."""

    task: str
    seed: int
    folder: Path


def main() -> int:
    """Run every task, seed and arm in turn."""
    options = _options()
    home = Path(options.home) if options.home else Path(tempfile.mkdtemp(prefix="time_to_accuracy-"))
    found: dict[str, dict[str, dict[int, Course]]] = {task: {arm: {} for arm in options.arms} for task in options.tasks}
    for place, seed in enumerate(options.seeds):
        folder = _warm(home, seed, options)
        for task in options.tasks:
            for at in range(len(options.arms)):
                arm = options.arms[(at + place) % len(options.arms)]
                course = found[task][arm][seed] = _run(arm, Case(task, seed, folder), options)
                print(f"{task} seed {seed} {arm}: {_words(course, TARGETS[task])}", flush=True)
                if options.out:  # after each run: what was found survives an end in the middle
                    _write(Path(options.out), found, options)
    for task, arms in found.items():
        _table(task, arms)
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="+", choices=tuple(TARGETS), default=list(TARGETS))
    parser.add_argument("--arms", nargs="+", choices=tuple(ARMS), default=list(ARMS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2, 3, 4])
    parser.add_argument("--learning-rate", type=float, default=7e-5)
    parser.add_argument("--steps", type=int, default=120, help="most optimizer steps")
    parser.add_argument("--every", type=int, default=3, help="steps between measurements")
    parser.add_argument("--held-out", type=int, default=192, help="rows that are measured on, two samples each")
    parser.add_argument("--completions", type=int, default=256, help="a step")
    parser.add_argument("--group", type=int, default=16, help="completions of a prompt")
    parser.add_argument("--warm-steps", type=int, default=550, help="of the warm start")
    parser.add_argument(
        "--threads", type=int, default=1, help="of torch: the model is so small that more get in the way"
    )
    parser.add_argument("--home", help="folder for the warm-started models, kept for the next time")
    parser.add_argument("--out", help="file for everything found (.json)")
    parser.add_argument("--set", nargs="+", default=[], metavar="FIELD=JSON", help="fields of our config, in every arm")
    parser.add_argument(
        "--short", action="store_true", help="a few steps of everything, to see that it runs: nothing is learned"
    )
    options = parser.parse_args()
    if options.short:
        options.seeds, options.steps, options.every, options.held_out = options.seeds[:1], 4, 2, 16
        options.completions, options.warm_steps = 64, 20
    import torch

    torch.set_num_threads(options.threads)
    return options


def _warm(home: Path, seed: int, options: argparse.Namespace) -> Path:
    """The warm-started model of a seed, which has seen none of the questions it is measured on."""
    return warm(home, seed, options.warm_steps, singles=8)


def _rows(kind: str, seed: int, options: argparse.Namespace) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """A training set, and rows that are held out from it and from the warm start."""
    from grpo_plus.cli import quickstart

    def drawn(count: int, **moves: Any) -> list[dict[str, Any]]:
        return [quickstart.row(chain) for chain in quickstart.distinct(quickstart.chains(seed + 1, **moves), count)]

    test = drawn(options.held_out, held_out=True)
    if kind == "quickstart":
        return drawn(2048), test
    middle = drawn(2 * THIRD)
    impossible = [row | {"answer": str(int(row["answer"]) + 50)} for row in middle[THIRD:]]
    return [*drawn(THIRD, low=1, high=1), *impossible, *middle[:THIRD]], test


def _run(arm: str, case: Case, options: argparse.Namespace) -> Course:
    ours = ARMS[arm]
    rows, test = _rows(case.task, case.seed, options)
    fields = settings(
        seed=case.seed, steps=options.steps, completions=options.completions, group=options.group,
        rate=options.learning_rate, loss_type="dapo",
    )  # fmt: skip
    if ours is not None:
        fields |= {"verifiers": ["math"], **ours}
        fields |= {name: json.loads(value) for name, _, value in (item.partition("=") for item in options.set)}
    measure, target = measuring(case.folder, test, case.seed), TARGETS[case.task][-1]
    return train(
        case.folder, rows, fields, measure=measure, every=options.every, target=target, stock=ours is None
    ).course


def _words(course: Course, targets: Sequence[float]) -> str:
    reached = [f"{target:.0%} in {_known(course.reaches(target, 'seconds'), '.1f')} s" for target in targets]
    shown = list(islice(course.accuracy, 0, None, max(1, len(course.accuracy) // 6)))
    accuracy = " ".join(f"{value:.2f}" for value in shown)
    return (
        f"{', '.join(reached)}; accuracy {accuracy}; {course.steps[-1]} steps, {course.seconds[-1]:.1f} s, "
        f"{course.drawn[-1]:,} completions"
    )


def _known(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def _table(task: str, arms: Mapping[str, Mapping[int, Course]]) -> None:
    """Medians, and least and most, over the seeds; ratios are of the same seed's stock run."""
    for target in TARGETS[task]:
        print(f"\n{task}: to {target:.0%} held-out accuracy; median (least to most) over the seeds")
        print(f"{'arm':<10} {'seconds':<24} {'times as fast':<20} {'completions':<24} {'share of trl':<20} steps")
        for arm, courses in arms.items():
            columns = [
                _over(arms, arm, target, "seconds", ".1f"), _ratios(arms, arm, target, "seconds"),
                _over(arms, arm, target, "drawn", ",.0f"), _ratios(arms, arm, target, "drawn"),
                _over(arms, arm, target, "steps", ".0f"),
            ]  # fmt: skip
            missed = sum(course.reaches(target, "seconds") is None for course in courses.values())
            print(
                f"{arm:<10} {columns[0]:<24} {columns[1]:<20} {columns[2]:<24} {columns[3]:<20} {columns[4]}"
                + (f"  (not reached: {missed} of {len(courses)})" if missed else "")
            )
    print(f"\n{task}: accuracy after equally many steps, arms without bias")
    for arm in (arm for arm in UNBIASED if arm in arms):
        print(f"{arm:<10} {_spread(_at_equal_steps(arms, arm), '.3f')}")


def _over(arms: Mapping[str, Mapping[int, Course]], arm: str, target: float, cost: str, form: str) -> str:
    return _spread([course.reaches(target, cost) for course in arms[arm].values()], form)


def _ratios(arms: Mapping[str, Mapping[int, Course]], arm: str, target: float, cost: str) -> str:
    """Times as fast for seconds, the share of completions."""
    found = []
    for seed, course in arms[arm].items():
        base = arms["trl"][seed].reaches(target, cost) if seed in arms.get("trl", {}) else None
        own = course.reaches(target, cost)
        if base and own:
            found.append(base / own if cost == "seconds" else own / base)
    return _spread(found, ".2f")


def _at_equal_steps(arms: Mapping[str, Mapping[int, Course]], arm: str) -> list[float]:
    found = []
    for seed, course in arms[arm].items():
        steps = min(other[seed].steps[-1] for other in arms.values() if seed in other)
        found.append(course.accuracy[course.steps.index(steps)])
    return found


def _spread(values: Sequence[float | None], form: str) -> str:
    known = [value for value in values if value is not None]
    if not known:
        return "-"
    return f"{statistics.median(known):{form}} ({min(known):{form}} to {max(known):{form}})"


def _write(path: Path, found: Mapping[str, Mapping[str, Mapping[int, Course]]], options: argparse.Namespace) -> None:
    rows = [
        {"task": task, "arm": arm, "seed": seed, **vars(course)}
        for task, arms in found.items()
        for arm, courses in arms.items()
        for seed, course in courses.items()
    ]
    path.write_text(json.dumps({"options": vars(options), "found": rows}, indent=2), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
