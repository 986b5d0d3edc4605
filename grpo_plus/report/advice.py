"""Sentences on what is wrong by a run's curves, each with what to do; only where its end is clear."""

from grpo_plus.record.reader import Run
from grpo_plus.report.compare import at_the_end

ENOUGH = 20
"""Logged values before a curve says anything."""
RARE = 0.02
"""A share of turns up to here that meet a state again is none to learn from."""
CHANCE = 0.52
"""A ranking accuracy up to here is one by chance."""


def advice(run: Run) -> list[str]:
    """What the last tenth of a run says of a critic, a reward model and the states of turns."""
    return [sentence for sentence in (_critic(run), _reward_model(run), _states(run)) if sentence]


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


def _reward_model(run: Run) -> str | None:
    key = "reward_model/accuracy"
    found = at_the_end(run, key)
    if len(run.series(key)[1]) < 3 or found is None or found > CHANCE:
        return None
    return (
        f"the reward model orders held-out pairs no better than chance (ranking accuracy {found:.2f} over its last "
        "trainings), so its reward is noise: look at what the verifiers order, give it more pairs (pairs, every) or "
        "another learning_rate, and weight: 0 meanwhile"
    )


def _states(run: Run) -> str | None:
    key = "advantages/anchored_fraction"
    found = at_the_end(run, key)
    name = run.info.get("parts", {}).get("advantage", {}).get("name")
    if name != "gigpo" or len(run.series(key)[1]) < ENOUGH or found is None or found > RARE:
        return None
    return (
        f"next to no turn began in a state that another turn of its group began in ({found:.1%} over the last tenth of "
        "the run), so gigpo was zscore: leave out of state_key what no longer matters, or take advantage: process with "
        "credit: turn"
    )
