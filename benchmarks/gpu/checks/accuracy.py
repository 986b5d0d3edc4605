"""Time to the same held-out accuracy: stock TRL and this project train the same warm-started model in turn."""

from typing import Any

from benchmarks.gpu.check import Context
from benchmarks.gpu.checks.setup import release

TARGET = 0.9
ARMS: dict[str, dict[str, Any] | None] = {"TRL": None, "ours": {}, "roulette": {"dead_groups": "roulette"}}
"""Fields of our config; None for stock TRL."""


def run(context: Context, *, hidden: int = 1280, steps: int = 60, every: int = 4) -> None:
    """The quickstart's sums, on a model of 30 million weights (``hidden`` 1280)."""
    from benchmarks.small_model import RATE, warm_start
    from benchmarks.studies.task import measuring, questions, settings, train

    warm = 550
    if context.tiny:
        hidden, steps, every, warm = 64, 2, 2, 4
    folder = context.folder / "warm"
    warm_start(
        folder, steps=warm, hidden=hidden, singles=8, rate=RATE * min(1.0, 128 / hidden), use_cpu=not context.cuda
    )
    rows = questions(64 if context.tiny else 2048, 1)
    measure = measuring(folder, questions(8 if context.tiny else 192, 1, held_out=True), 0)
    told = []
    for name, ours in ARMS.items():
        fields = settings(
            seed=0, steps=steps, completions=32 if context.tiny else 256, group=16, rate=7e-5 * min(1.0, 128 / hidden),
            loss_type="dapo", use_cpu=not context.cuda,
        )  # fmt: skip
        if ours is not None:
            fields |= {"verifiers": ["math"], "report": False, **ours}
        course = train(folder, rows, fields, measure=measure, every=every, target=TARGET, stock=ours is None).course
        seconds, drawn = course.reaches(TARGET, "seconds"), course.reaches(TARGET, "drawn")
        context.report(
            **{name: {"seconds": seconds, "drawn": drawn, "accuracy": course.accuracy, "at": course.seconds}}
        )
        reached = "not reached" if seconds is None else f"{seconds:.0f} s"
        told.append(f"{name} {course.accuracy[0]:.0%} → {course.accuracy[-1]:.0%}, {TARGET:.0%}: {reached}")
        release()
        if not context.tiny:
            context.expect(course.accuracy[-1] > course.accuracy[0] + 0.1, f"{name} learned nothing")
    context.headline("; ".join(told))
