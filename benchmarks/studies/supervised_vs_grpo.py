r"""From the same start: more supervised training, or GRPO? On the questions trained for, and on longer ones.

    python -m benchmarks.studies.supervised_vs_grpo [--seeds 5] [--steps 60] [--rates 1e-3]

The start is the quickstart's warm-started model, which guesses more often than it works a sum out. All arms go on from
it, on questions of two to four moves:

* grpo: `--steps` optimizer steps with the maths verifier as the reward; no solution is shown;
* supervised: the warm start goes on, with the solutions that it had, guesses among them;
* worked: supervised training on solutions that are all worked out and right, which GRPO never sees.

The supervised arms run twice: on as many solutions as GRPO drew completions, and for as many seconds as it trained.
Measured are sampled (temperature 1) and greedy answers to held-out questions of the same kind (test) and to questions
of five to seven moves (shifted), which nobody was trained on.
"""

import argparse
import sys
from collections.abc import Sequence
from typing import Any

from benchmarks.studies import task
from benchmarks.studies.numbers import Spread, spread
from benchmarks.studies.picture import Panel, Point, Series
from benchmarks.studies.study import Case, Place, Row, Shown, Study, main, of_arms

LONGER = (5, 7)
"""Moves of the shifted questions."""
LONG = 80
"""Tokens of an answer to one of them, at most."""
MEASURES = ("test", "test greedy", "shifted", "shifted greedy")
BUDGETS = ("samples", "seconds")
SUPERVISED = ("supervised", "worked")
BATCH = 80
"""Solutions of a supervised step, as in the warm start."""


def cases(options: argparse.Namespace) -> list[Case]:
    """For each seed the start, GRPO, and then the arms that have its budgets."""
    found: list[Case] = []
    for seed in range(options.seeds):
        base = {"seed": seed, "warm": options.warm_steps, "held_out": options.held_out}
        grpo = {"steps": options.steps, "completions": options.completions, "rate": options.grpo_rate}
        found += [{"arm": "start", **base}, {"arm": "grpo", **base, **grpo}]
        found += [
            {"arm": arm, "budget": budget, **base, "rate": rate, "as": grpo}
            for arm in SUPERVISED
            for budget in BUDGETS
            for rate in options.rates
        ]
    return found


def run(case: Case, place: Place) -> dict[str, Any]:
    """Train one arm, and measure it."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    seed, arm = case["seed"], case["arm"]
    folder = task.warm(place.home, seed, case["warm"])
    tokenizer = AutoTokenizer.from_pretrained(folder)
    spent = {"samples": 0, "seconds": 0.0}
    if arm == "grpo":
        fields = task.settings(
            seed=seed, steps=case["steps"], completions=case["completions"], group=8, rate=case["rate"],
            lr_scheduler_type="linear", advantage="zscore", objective="dapo", verifiers=["math"], report=False,
        )  # fmt: skip
        trained = task.train(folder, task.questions(2048, seed + 1), fields)
        model, spent = trained.trainer.model, {"samples": trained.drawn, "seconds": trained.seconds}
    else:
        model = AutoModelForCausalLM.from_pretrained(folder)
        if arm != "start":
            budget = _budget(case, place)
            solutions = task.mixture(seed + 1000) if arm == "supervised" else task.right_solutions(seed + 1000, BATCH)
            done = task.supervise(model, tokenizer, solutions, rate=case["rate"], **budget)
            spent = {"samples": done.samples, "seconds": done.seconds}
    return {**spent, **_measured(model, tokenizer, case)}


def _budget(case: Case, place: Place) -> dict[str, Any]:
    """As many steps or seconds as GRPO took from this start."""
    shared = {name: case[name] for name in ("seed", "warm", "held_out")}
    wanted = {"arm": "grpo", **shared, **case["as"]}
    found = next((row.found for row in place.earlier if row.case == wanted), None)
    if found is None:
        raise RuntimeError(f"the run of GRPO that has the budget is missing: {wanted}")
    if case["budget"] == "seconds":
        return {"seconds": found["seconds"]}
    return {"steps": max(1, round(found["samples"] / BATCH))}


def _measured(model: Any, tokenizer: Any, case: Case) -> dict[str, float]:
    model.eval()
    found, count = {}, case["held_out"]
    for name, low, high, most in (("test", 2, 4, task.MOST), ("shifted", *LONGER, LONG)):
        rows = task.questions(count, case["seed"] + 1, low=low, high=high, held_out=True)
        for words, n, temperature in (("", 4, 1.0), (" greedy", 1, 0.0)):
            drawing = {"max_completion_length": most, "temperature": temperature}
            found[name + words] = task.accuracy(model, tokenizer, rows, n=n, seed=case["seed"], **drawing)
    return found


def show(options: argparse.Namespace, rows: Sequence[Row]) -> Shown:
    """Accuracy of the arms, and what each has gained from the same start."""
    arms: list[tuple[str, dict[str, Any]]] = [("start", {"arm": "start"}), ("grpo", {"arm": "grpo"})]
    for arm in SUPERVISED:
        for budget in BUDGETS:
            for rate in options.rates:
                words = f"{arm}, equal {budget}" + (f", {rate:g}" if len(options.rates) > 1 else "")
                arms.append((words, {"arm": arm, "budget": budget, "rate": rate}))
    start = {row.case["seed"]: row.found for row in of_arms(rows, arm="start")}
    table, series = [], []
    for at, (words, wanted) in enumerate(arms):
        found = of_arms(rows, **wanted)
        if not found:
            continue
        spreads = {name: spread([row.found[name] for row in found]) for name in MEASURES}
        gains = [
            spread(changes).interval("+.3f") if changes else "-"
            for changes in (
                [row.found[name] - start[row.case["seed"]][name] for row in found if row.case["seed"] in start]
                for name in ("test", "shifted")
            )
        ]
        if wanted["arm"] == "start":
            gains = ["", ""]
        spent = [
            spread([row.found[name] for row in found]).text(form)
            for name, form in (("samples", ",.0f"), ("seconds", ".1f"))
        ]
        table.append([words, *(spreads[name].text() for name in MEASURES), *gains, *spent])
        series.append((words, at, spreads))
    panels = [
        Panel(
            title, "", "share of right answers",
            [Series(words, [_point(at, spreads[name])]) for words, at, spreads in series],
            ticks=[str(at + 1) for at in range(len(arms))],
        )
        for name, title in (("test", "test: two to four moves"), ("shifted", "shifted: five to seven moves"))
    ]  # fmt: skip
    columns = ["arm", *MEASURES, "gain on test, 95%", "gain on shifted, 95%", "samples", "seconds"]
    remarks = [
        "Shares of right answers, mean ± deviation over seeds; 4 samples a question, or the greedy answer.",
        "Gains over the start of the same seed: Student's intervals of the mean.",
        "Seconds are those of training alone. Samples are solutions, or completions drawn.",
    ]
    return Shown(columns, table, panels, remarks)


def _point(at: int, found: Spread) -> Point:
    return Point(at, found.mean, found.mean - found.deviation, found.mean + found.deviation)


def _add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rates", nargs="+", type=float, default=[1e-3], help="learning rates of the supervised arms")
    parser.add_argument("--grpo-rate", type=float, default=2e-4)
    parser.add_argument("--completions", type=int, default=128, help="a step of GRPO")
    parser.add_argument("--held-out", type=int, default=256, help="questions of each kind that are measured on")
    parser.add_argument("--warm-steps", type=int, default=task.WARM)


STUDY = Study(
    name="supervised_vs_grpo",
    title="Supervised training against GRPO from one start",
    about=__doc__ or "",
    steps=("steps of GRPO", 60),
    seeds=5,
    cases=cases,
    run=run,
    show=show,
    quick={"seeds": 1, "steps": 2, "completions": 32, "held_out": 8, "warm_steps": 20},
    options=_add,
)

if __name__ == "__main__":
    sys.exit(main(STUDY))
