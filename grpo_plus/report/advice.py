"""Sentences on what is wrong by a run's curves, each with what to do; only where its end is clear."""

from grpo_plus.record.reader import Run
from grpo_plus.report.compare import at_the_end

ENOUGH = 20
"""Logged values before a curve says anything."""


def advice(run: Run) -> list[str]:
    """What the last tenth of a run says of a critic."""
    return [sentence for sentence in (_critic(run),) if sentence]


def _critic(run: Run) -> str | None:
    key = "critic/explained_variance"
    steps, values = run.series(key)
    warm_steps, warming = run.series("critic/warmup")
    ended = max((step for step, flag in zip(warm_steps, warming, strict=True) if flag), default=-1)
    since = [value for step, value in zip(steps, values, strict=True) if step > ended]
    found = at_the_end(run, key)
    if len(since) < ENOUGH or found is None or found > 0:
        return None
    return (
        f"the critic explains nothing of the returns (explained variance {found:.2f} over the last tenth of the "
        "run), so its advantages are noisier than those against a constant: set warmup_steps or more updates of "
        "critic, another learning_rate, or a critic with more weights of its own (on: adapter or model)"
    )
