r"""Does credit for turns teach more than the outcome, in a game of several turns?

    python -m benchmarks.studies.turn_credit [--seeds 3] [--steps 30] [--arms outcome return turn gigpo]

The game of `examples/game.py`: a treasure is a few moves away, and the player has five. The tiny model is warm-started
on games that were played badly. From there it is trained in each arm, on the same games, with equally many updates:

* outcome: `advantage: zscore` of the game's reward, won or lost;
* return: `advantage: process` with `credit: return` on the game's rewards for turns, nearer or farther, beside it;
* turn: the same with `credit: turn`, a turn against the same turn of the group's other games (MT-GRPO);
* gigpo: `advantage: gigpo`, a turn against turns that began on the same field, with the same rewards.

Every update logs the share of its fresh games that were won; at the end held-out games are played.
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.studies import task
from benchmarks.studies.numbers import smoothed, spread
from benchmarks.studies.picture import Panel, Point, Series
from benchmarks.studies.study import ROOT, Case, Place, Row, Shown, Study, main, of_arms
from grpo_verifiers.registry import import_reference

GAME = ROOT / "examples" / "game.py"
REWARD = "Treasure"
MOST = 128
"""Tokens of a game, at most."""
_SCORED: Mapping[str, Any] = {"verifiers": [{"name": "turn_reward", "weight": 0}], "advantage": "process"}
ARMS: Mapping[str, Mapping[str, Any]] = {
    "outcome": {"advantage": "zscore"},
    "return": {**_SCORED, "advantage": {"name": "process", "steps_from": "turn_reward", "credit": "return"}},
    "turn": {**_SCORED, "advantage": {"name": "process", "steps_from": "turn_reward", "credit": "turn"}},
    "gigpo": {"advantage": "gigpo"},
}


def cases(options: argparse.Namespace) -> list[Case]:
    """Every seed and arm."""
    return [
        {
            "arm": arm, "seed": seed, "steps": options.steps, "completions": options.completions, "rate": options.rate,
            "warm": options.warm_steps, "held_out": options.held_out,
        }
        for seed in range(options.seeds)
        for arm in options.arms
    ]  # fmt: skip


def run(case: Case, place: Place) -> dict[str, Any]:
    """Train one arm; the games that it won in every update, and held-out ones at the end."""
    folder = task.made_once(place.home / f"treasure-{case['warm']}", partial(_make, steps=case["warm"]))
    moves = import_reference(f"{GAME}:MOVES")
    fields = task.settings(
        seed=case["seed"], steps=case["steps"], completions=case["completions"], group=8, rate=case["rate"],
        objective="dapo", report=False, logging_steps=1, max_completion_length=MOST, environment=f"{GAME}:{REWARD}",
        max_tool_calling_iterations=moves, **ARMS[case["arm"]],
    )  # fmt: skip
    games = import_reference(f"{GAME}:dataset")()
    trained = task.train(folder, games["train"], fields)
    won = [log[f"rewards/{REWARD}/mean"] for log in trained.logs if f"rewards/{REWARD}/mean" in log]
    held_out = _won(trained.trainer, list(games["test"])[: case["held_out"]])
    return {"won": won, "held_out": held_out, "seconds": trained.seconds}


def _make(folder: Path, *, steps: int) -> None:
    from benchmarks.small_model import place
    from grpo_plus.cli.quickstart import tools
    from grpo_verifiers.tools.registry import get_environment

    shown = [method.schema for method in get_environment(f"{GAME}:{REWARD}").methods]
    rows = list(import_reference(f"{GAME}:solutions")())
    place(folder, tools.base(), rows, steps, 40, tools=shown)


def _won(trainer: Any, rows: Sequence[Mapping[str, Any]]) -> float:
    """The share of held-out games that are won, two each."""
    from grpo_plus.evaluation.run import judged_samples, pairs_of
    from grpo_plus.evaluation.sample import Sampler, SampleSettings
    from grpo_plus.evaluation.turns import TurnSampler

    trainer.model.eval()
    sampler = Sampler(trainer.model, trainer.processing_class, SampleSettings(max_completion_length=MOST))
    turns = TurnSampler(sampler, trainer, trainer.pipeline.tools)
    games = [dict(row) for row in rows]
    with turns.borrowed():
        batches = judged_samples(
            sampler, games, [], pairs=pairs_of(range(len(games)), 2, []), seed=0, batch=64, turns=turns
        )
        scores = [sample.verdicts[REWARD]["score"] for batch in batches for sample in batch]
    trainer.pipeline.tools.close()
    return sum(scores) / len(scores)


def reached(values: Sequence[float], goal: float, width: int = 5) -> int | None:
    """The first update whose smoothed value is at the goal; None if none is."""
    return next((at for at, value in enumerate(smoothed(values, width), 1) if at >= width and value >= goal), None)


def show(options: argparse.Namespace, rows: Sequence[Row]) -> Shown:
    """Games that were won, over the updates and held out."""
    table, lines = [], []
    for arm in options.arms:
        found = of_arms(rows, arm=arm)
        if not found:
            continue
        curves = [smoothed(row.found["won"]) for row in found]
        held_out = spread([row.found["held_out"] for row in found])
        marks = [reached(row.found["won"], options.goal) for row in found]
        table.append(
            [
                arm,
                spread([curve[0] for curve in curves]).text(),
                spread([curve[-1] for curve in curves]).text(),
                held_out.text(),
                held_out.interval(),
                ", ".join("-" if mark is None else str(mark) for mark in marks),
                spread([row.found["seconds"] for row in found]).text(".1f"),
            ]
        )
        places = [spread(list(values)) for values in zip(*curves, strict=True)]
        points = [
            Point(at, one.mean, one.mean - one.deviation, one.mean + one.deviation) for at, one in enumerate(places, 1)
        ]
        lines.append(Series(arm, points))
    columns = ["arm", "won, first update", "won, last updates", "held out: won", "95% interval",
               f"updates to {options.goal:.0%}", "seconds"]  # fmt: skip
    remarks = [
        "Mean ± deviation over seeds; of fresh games, the last five updates.",
        "Updates until so many fresh games are won, mean of five, seed by seed (-: never).",
    ]
    return Shown(columns, table, [Panel("games won by fresh samples", "update", "games won", lines)], remarks)


def _add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--arms", nargs="+", choices=list(ARMS), default=list(ARMS))
    parser.add_argument("--rate", type=float, default=2e-4)
    parser.add_argument("--completions", type=int, default=64, help="games of an update")
    parser.add_argument("--goal", type=float, default=0.8, help="share of games won")
    parser.add_argument("--held-out", type=int, default=90, help="games that are measured on, two samples each")
    parser.add_argument("--warm-steps", type=int, default=300)


STUDY = Study(
    name="turn_credit",
    title="Credit for turns against the outcome",
    about=__doc__ or "",
    steps=("updates", 30),
    seeds=3,
    cases=cases,
    run=run,
    show=show,
    quick={"seeds": 1, "steps": 2, "completions": 16, "held_out": 4, "warm_steps": 5},
    options=_add,
)

if __name__ == "__main__":
    sys.exit(main(STUDY))
