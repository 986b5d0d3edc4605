r"""How does the noise of the gradient fall with the group size G?

    python -m benchmarks.studies.gradient_variance [--seeds 3] [--steps 128] [--estimators zscore center rloo]

At fixed weights (the quickstart's warm-started model, learning rate 0) a trainer draws many independent generation
batches, and its own loss gives the gradient of each. Shown is the trace of the gradients' covariance over the squared
norm of their mean, both estimated without bias. A common factor cancels, so `rloo`, which is G/(G-1) times `center`,
has the ratios of `center`.

Three questions are asked, and they differ:

* same: 8 prompts, the same in every batch. Only completions vary. The papers' O(1/G) is about this;
* prompts: 8 fresh prompts a batch. Prompts vary too, and no group size averages that away;
* completions: 256 completions a batch, so 256/G fresh prompts. What to do with a budget.

O(1/G) says that 64 completions a prompt have 8/64 = 12.5% of the variance of 8; and a mean of 64 independent
completions has 1/√64 = 12.5% of the standard deviation of one, which is the same law. Tested is the first.
"""

import argparse
import math
import sys
from collections.abc import Sequence
from itertools import islice
from typing import Any

from transformers import TrainerCallback

from benchmarks.studies import task
from benchmarks.studies.numbers import Noise, noise, quotient, slope, spread
from benchmarks.studies.picture import Panel, Point, Series
from benchmarks.studies.study import Case, Place, Row, Shown, Study, main, of_arms

MODES = {
    "same": "the same prompts in every batch",
    "prompts": "as many fresh prompts in every batch",
    "completions": "as many completions, fresh prompts",
}


class Gradients(TrainerCallback):
    """Keeps the gradient of each optimizer step, and tells whether the weights stay as they are."""

    def __init__(self) -> None:
        self.rows: list[Any] = []
        self.moved = False
        self._first: Any = None

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **keywords: Any) -> None:  # noqa: ARG002
        """A parameter without a gradient (no group of the batch had contrast) has a gradient of zeros."""
        import torch

        parameters = [parameter for parameter in keywords["model"].parameters() if parameter.requires_grad]
        parts = [torch.zeros_like(one) if one.grad is None else one.grad for one in parameters]
        self.rows.append(torch.cat([part.detach().flatten() for part in parts]))
        weights = torch.cat([one.detach().flatten() for one in parameters])
        self._first = weights if self._first is None else self._first
        self.moved = self.moved or not torch.equal(weights, self._first)


def inner_products(rows: Sequence[Any]) -> list[list[float]]:
    """The products (B, B) of gradients in float64, without a second copy of all of them."""
    import torch

    count, size = len(rows), len(rows[0])
    total = torch.zeros(count, count, dtype=torch.float64)
    for start in range(0, size, 1 << 16):
        block = torch.stack([one[start : start + (1 << 16)] for one in rows]).double()
        total += block @ block.T
    found: list[list[float]] = total.tolist()
    return found


def cases(options: argparse.Namespace) -> list[Case]:
    """Every seed, question, estimator and group size; the same seed draws the same completions for all estimators."""
    return [
        {
            "seed": seed, "mode": mode, "estimator": estimator, "group": group, "batches": options.steps,
            "prompts": options.completions // group if mode == "completions" else options.prompts,
            "objective": options.objective, "warm": options.warm_steps,
        }
        for seed in range(options.seeds)
        for mode in options.modes
        for estimator in options.estimators
        for group in options.groups
    ]  # fmt: skip


def run(case: Case, place: Place) -> dict[str, Any]:
    """Draw the batches of a case, and estimate the noise of their gradients."""
    from grpo_plus.cli.quickstart import chains, row

    model = task.warm(place.home, 0, case["warm"])
    group, prompts, batches = case["group"], case["prompts"], case["batches"]
    # Independent draws: prompts may come twice, in one batch, too.
    needed = prompts * (1 if case["mode"] == "same" else batches)
    rows = [row(chain) for chain in islice(chains(1000 + case["seed"]), needed)]
    fields = task.settings(
        seed=case["seed"], steps=batches, completions=2 * prompts * group, group=group, rate=0.0,
        gradient_accumulation_steps=1, max_grad_norm=0.0, weight_decay=0.0, report=False,
        advantage=case["estimator"], objective=case["objective"], verifiers=["math"],
    )  # fmt: skip
    kept = Gradients()
    trained = task.train(model, rows, fields, callbacks=[kept])
    if len(kept.rows) != batches or kept.moved:
        raise RuntimeError(f"{len(kept.rows)} gradients of {batches} batches, weights moved: {kept.moved}")
    found = noise(inner_products(kept.rows))
    return {
        "variance": found.variance, "signal": found.signal,
        "ratio": found.ratio if math.isfinite(found.ratio) else None,
        "log_error": found.log_error if math.isfinite(found.log_error) else None,
        "largest": found.largest, "drawn": trained.drawn, "training_seconds": trained.seconds,
    }  # fmt: skip


def of_row(row: Row) -> Noise:
    """The noise that a run found; JSON has no infinity."""
    found = row.found
    ratio, error = (math.inf if found[name] is None else found[name] for name in ("ratio", "log_error"))
    return Noise(found["variance"], found["signal"], ratio, error, found["largest"])


def show(options: argparse.Namespace, rows: Sequence[Row]) -> Shown:
    """Noise by group size, its slope, and the ratio that is claimed to be 12.5%."""
    low, high = (8, 64) if {8, 64} <= set(options.groups) else (min(options.groups), max(options.groups))
    columns = ["question", "estimator", *(f"G = {group}" for group in options.groups)]
    columns += [f"G {high} over {low}: {low / high:.1%} claimed", "exponent: -1 claimed", "largest share of a batch"]
    table, panels = [], []
    for mode in options.modes:
        series = []
        for estimator in options.estimators:
            by_group = {group: of_arms(rows, mode=mode, estimator=estimator, group=group) for group in options.groups}
            spreads = {group: _ratios(found) for group, found in by_group.items()}
            ends = [{row.case["seed"]: of_row(row) for row in by_group[group]} for group in (high, low)]
            seeds = sorted(ends[0].keys() & ends[1].keys())
            claimed = quotient([ends[0][seed] for seed in seeds], [ends[1][seed] for seed in seeds])
            known = {group: found for group, found in spreads.items() if found is not None}
            exponent = slope(list(known), [found.mean for found in known.values()])
            table.append([
                mode, estimator, *("-" if found is None else found.text(".3g") for found in spreads.values()),
                "-" if claimed is None else f"{claimed[0]:.1%} ({claimed[1]:.1%} to {claimed[2]:.1%})",
                "-" if exponent is None else f"{exponent:.2f}",
                f"{max((row.found['largest'] for found in by_group.values() for row in found), default=0):.0%}",
            ])  # fmt: skip
            bars = [
                Point(group, at.mean, at.mean - at.deviation, at.mean + at.deviation) for group, at in known.items()
            ]
            series.append(Series(estimator, bars))
            if known and estimator == options.estimators[0]:
                first, at = next(iter(known.items()))
                law = [Point(group, *[at.mean * first / group] * 3) for group in options.groups]
                series.append(Series("1/G from the first", law, dashed=True))
        panels.append(Panel(MODES[mode], "group size G", "variance / |mean|²", series, log=True))
    remarks = [
        "Variance of the gradient over the squared norm of its mean: mean ± deviation over seeds.",
        "In brackets: 95% intervals by the jackknife over batches.",
        "Last column: the most that one batch has of all squared distances from the mean. Above a half, rare",
        "completions make the variance: draw more batches.",
        *(f"{mode}: {MODES[mode]}." for mode in options.modes),
    ]
    return Shown(columns, table, panels, remarks)


def _ratios(rows: Sequence[Row]) -> Any:
    values = [row.found["ratio"] for row in rows if row.found["ratio"] is not None]
    return spread(values) if values else None


def _add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--estimators", nargs="+", default=["zscore", "center", "rloo"])
    parser.add_argument("--groups", nargs="+", type=int, default=[2, 4, 8, 16, 32, 64])
    parser.add_argument("--modes", nargs="+", choices=tuple(MODES), default=list(MODES), help="questions asked")
    parser.add_argument("--prompts", type=int, default=8, help="a batch, where their number is fixed")
    parser.add_argument("--completions", type=int, default=256, help="a batch, where their number is fixed")
    parser.add_argument("--objective", default="dr_grpo", help="dr_grpo: a sum over tokens by a constant")
    parser.add_argument("--warm-steps", type=int, default=task.WARM)


STUDY = Study(
    name="gradient_variance",
    title="Noise of the gradient by group size",
    about=__doc__ or "",
    steps=("batches", 128),
    seeds=3,
    cases=cases,
    run=run,
    show=show,
    quick={
        "seeds": 1,
        "steps": 6,
        "groups": [2, 4],
        "estimators": ["center"],
        "modes": ["same", "completions"],
        "prompts": 4,
        "completions": 16,
        "warm_steps": 20,
    },
    options=_add,
)

if __name__ == "__main__":
    sys.exit(main(STUDY))
