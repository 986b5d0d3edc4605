r"""Do scores of steps teach more than the outcome, in equally many updates? Alone, and beside it.

    python -m benchmarks.studies.outcome_process_both [--seeds 5] [--steps 60] [--arms outcome process both]
    python -m benchmarks.studies.outcome_process_both --padding      # trains nothing: what easy lines would earn

A tiny model is warm-started on worked solutions of sums of which three lines in ten are wrong, so that it slips as
often itself. From each seed it is trained in each arm, on the same questions:

* outcome: `advantage: zscore` on the `math` verifier;
* process: `advantage: process` on the scores of `math_steps` alone;
* both: the same with `outcome_weight: 1`;
* distinct, capped: both, with a policy against padding with easy lines (`distinct`, `max_steps: 3`).

Every update logs the step accuracy (the share of lines whose equation holds, mean over completions) and the outcome of
its fresh samples; at the end both are measured on held-out questions.
"""

import argparse
import math
import random
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from benchmarks.studies import task
from benchmarks.studies.numbers import smoothed, spread
from benchmarks.studies.picture import Panel, Point, Series
from benchmarks.studies.study import Case, Place, Row, Shown, Study, main, of_arms
from grpo_plus.cli.quickstart import SumChain, chains, distinct

SLIPS = 0.3
"""Share of the warm start's lines with a wrong result."""
POLICIES: Mapping[str, Mapping[str, Any]] = {
    "process": {},
    "both": {},
    "distinct": {"distinct": True},
    "capped": {"max_steps": 3},
}
"""Options of the `math_steps` that teaches; the one that measures has none."""
ARMS = ("outcome", *POLICIES)
MEASURES = {"steps": "step accuracy", "outcome": "outcome"}


def solution(chain: SumChain, rng: random.Random) -> str:
    """A line for each move and the boxed result; a line may be wrong, and the rest follows from it."""
    value, lines = chain.start, []
    for sign, number in chain.moves:
        result = value + number if sign == "+" else value - number
        if rng.random() < SLIPS:
            result = max(0, result + rng.choice((-2, -1, 1, 2)))
        lines.append(f"{value}{sign}{number}={result}")
        value = result
    return "\n".join([*lines, f"\\boxed{{{value}}}"])


def cases(options: argparse.Namespace) -> list[Case]:
    """Every seed and arm."""
    return [
        {
            "arm": arm, "seed": seed, "steps": options.steps, "warm": options.warm_steps, "rate": options.rate,
            "held_out": options.held_out,
        }
        for seed in range(options.seeds)
        for arm in options.arms
    ]  # fmt: skip


def parts(arm: str) -> dict[str, Any]:
    """The advantage estimator and the verifiers of an arm."""
    measure = {"name": "math_steps", "label": "measure", "weight": 0, "aggregate": "mean"}
    if arm == "outcome":
        return {"advantage": "zscore", "verifiers": ["math", measure]}
    taught = {"name": "math_steps", "weight": 0, **dict(POLICIES[arm])}
    outcome: Any = {"name": "math", "weight": 0} if arm == "process" else "math"
    keywords = {"outcome_weight": 0.0 if arm == "process" else 1.0, "steps_from": "math_steps"}
    return {"advantage": {"name": "process", **keywords}, "verifiers": [outcome, measure, taught]}


def run(case: Case, place: Place) -> dict[str, Any]:
    """Train one arm; what its samples scored in every update, and what it scores on held-out questions."""
    seed = case["seed"]
    folder = _slipping(place.home, case["warm"])
    rows = [_row(chain) for chain in islice(chains(seed=100 + seed), 8 * case["steps"])]
    fields = task.settings(
        seed=seed, steps=case["steps"], completions=128, group=8, rate=case["rate"], gradient_accumulation_steps=1,
        objective="dapo", report=False, logging_steps=1, **parts(case["arm"]),
    )  # fmt: skip
    trained = task.train(folder, rows, fields)
    logs = [log for log in trained.logs if "rewards/measure/mean" in log]
    return {
        "steps": [_known(log["rewards/measure/mean"]) for log in logs],
        "outcome": [_known(log["rewards/math/mean"]) for log in logs],
        "seconds": trained.seconds,
        "held_out": _held_out(trained.trainer, case),
    }


def _known(value: float | None) -> float:
    """0 for the mean of an update whose samples state nothing that can be judged."""
    return 0.0 if value is None or math.isnan(value) else value


def _row(chain: SumChain) -> dict[str, Any]:
    return {"prompt": f"{chain.question}=\n", "answer": str(chain.answer)}


def _held_out(trainer: Any, case: Case) -> dict[str, float]:
    from grpo_plus.evaluation.run import evaluate
    from grpo_plus.evaluation.sample import SampleSettings
    from grpo_verifiers import get_verifier

    rows = [_row(chain) for chain in distinct(chains(seed=1, held_out=True), case["held_out"])]
    judges = [get_verifier("math_steps", aggregate="mean"), get_verifier("math")]
    drawing = SampleSettings(max_completion_length=task.MOST)
    found = evaluate(trainer.model, trainer.processing_class, rows, judges, n=4, drawing=drawing, seed=case["seed"])
    scores = (found.results[name].score for name in ("math_steps", "math"))
    return {name: 0.0 if score is None else score.value for name, score in zip(MEASURES, scores, strict=True)}


def _slipping(home: Path, steps: int) -> Path:
    """The model that slips, made at the first call and kept."""
    return task.made_once(home / f"slips-{steps}", partial(_make_slipping, steps=steps))


def _make_slipping(folder: Path, *, steps: int) -> None:
    from grpo_plus.testing import make_tiny_model

    model, tokenizer = make_tiny_model(layers=3, hidden=96, initializer_range=0.02, seed=0)
    task.supervise(model, tokenizer, _batches(), rate=3e-3, steps=steps)
    tokenizer.save_pretrained(folder)
    model.save_pretrained(folder)


def _batches() -> Iterator[list[tuple[Any, str]]]:
    source, rng = chains(seed=2), random.Random(0)
    while True:
        yield [(f"{chain.question}=\n", solution(chain, rng)) for chain in islice(source, 64)]


def reached(values: Sequence[float], goal: float, width: int = 5) -> int | None:
    """The first update whose smoothed value is at the goal; None if none is."""
    return next((at for at, value in enumerate(smoothed(values, width), 1) if at >= width and value >= goal), None)


def show(options: argparse.Namespace, rows: Sequence[Row]) -> Shown:
    """Where the arms end, and how their samples did on the way."""
    table = []
    lines: dict[str, list[Series]] = {name: [] for name in MEASURES}
    for arm in options.arms:
        found = of_arms(rows, arm=arm)
        if not found:
            continue
        curves = {name: [smoothed(row.found[name]) for row in found] for name in MEASURES}
        ends = [spread([curve[-1] for curve in curves[name]]).text() for name in MEASURES]
        held_out = [spread([row.found["held_out"][name] for row in found]).text() for name in MEASURES]
        marks = [reached(row.found["steps"], options.goal) for row in found]
        seconds = spread([row.found["seconds"] for row in found]).text(".1f")
        table.append([arm, *ends, *held_out, " ".join("-" if mark is None else str(mark) for mark in marks), seconds])
        for name in MEASURES:
            places = [spread(list(values)) for values in zip(*curves[name], strict=True)]
            points = [
                Point(at, one.mean, one.mean - one.deviation, one.mean + one.deviation)
                for at, one in enumerate(places, 1)
            ]
            lines[name].append(Series(arm, points))
    panels = [Panel(f"{words} of fresh samples", "update", words, lines[name]) for name, words in MEASURES.items()]
    columns = ["arm", "step accuracy", "outcome", "held out: steps", "held out: outcome",
               f"updates to {options.goal:g}", "seconds"]  # fmt: skip
    remarks = [
        "Mean ± deviation over seeds; of fresh samples, the last five updates.",
        "Updates until the step accuracy is at the goal, seed by seed (-: never).",
    ]
    return Shown(columns, table, panels, remarks)


def padding(samples: int = 200) -> None:
    """Print what samples with slips score, bare and with easy lines before them, by aggregate and policy."""
    from grpo_verifiers.steps import math_steps

    rng = random.Random(0)
    texts = [solution(chain, rng) for chain in islice(chains(seed=3), samples)]
    columns = (0, 10, 100)
    print(f"mean score of {samples} solutions with wrong lines ({SLIPS:.0%} of all), and with easy lines before them")
    print(f"{'aggregate, policy':32s}" + "".join(f"{f'+{easy} lines':>12s}" for easy in columns))
    policies = [{}, POLICIES["distinct"], POLICIES["capped"], {"distinct": True, "max_steps": 3}]
    for options in [{"aggregate": how, **policy} for how in ("mean", "last", "min", "product") for policy in policies]:
        means = []
        for easy in columns:
            pad = "".join(f"{k}+{k + 1}={2 * k + 1}\n" for k in range(1, easy + 1))
            scores = [math_steps("", f"{pad}{text}\n", **options).score for text in texts]
            means.append(statistics.fmean(score for score in scores if score is not None))
        name = ", ".join([options["aggregate"], *(f"{key} {options[key]}" for key in options if key != "aggregate")])
        print(f"{name:32s}" + "".join(f"{mean:12.3f}" for mean in means))


def _add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=["outcome", "process", "both"])
    parser.add_argument("--rate", type=float, default=1e-4)
    parser.add_argument("--goal", type=float, default=0.7, help="step accuracy to reach")
    parser.add_argument("--held-out", type=int, default=256, help="questions that are measured on")
    parser.add_argument("--warm-steps", type=int, default=500)
    parser.add_argument("--padding", action="store_true", help="print what easy lines earn, and train nothing")


STUDY = Study(
    name="outcome_process_both",
    title="Outcome against process against both",
    about=__doc__ or "",
    steps=("updates", 60),
    seeds=5,
    cases=cases,
    run=run,
    show=show,
    quick={"seeds": 1, "steps": 2, "held_out": 4, "warm_steps": 5},
    options=_add,
)

if __name__ == "__main__":
    if "--padding" in sys.argv[1:]:
        padding()
        sys.exit(0)
    sys.exit(main(STUDY))
