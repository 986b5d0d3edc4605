"""The size of the advantages: steps that are too large, or none, though groups have contrast."""

from grpo_plus.diagnosis.curves import Curves
from grpo_plus.diagnosis.finding import Finding
from grpo_plus.diagnosis.reading import dead
from grpo_plus.diagnosis.rule import LEAST, WINDOW, Rule

KEY = "advantages/abs_mean"
LARGE = 5.0
SMALL = 0.01
ALL_DEAD = 0.9


def _large(curves: Curves) -> Finding | None:
    recent = curves.last(KEY, WINDOW)
    if len(recent.values) < LEAST or recent.median < LARGE:
        return None
    return Finding(
        "advantages_large",
        "warning",
        f"the advantages have a mean size of {recent.median:.3g}, where about 1 is usual",
        "rewards, or their weights, are large, and the estimator does not divide by their spread",
        "a smaller weight of the verifier whose score is largest, rewards between 0 and 1, or advantage: zscore",
        {KEY: recent.median},
        recent.ends,
    )


def _small(curves: Curves) -> Finding | None:
    recent, lifeless = curves.last(KEY, WINDOW), dead(curves)
    if len(recent.values) < LEAST or not lifeless.values or lifeless.mean >= ALL_DEAD:
        return None
    if recent.mean > SMALL * (1 - lifeless.mean):
        return None
    return Finding(
        "advantages_small",
        "warning",
        f"the mean size of the advantages is {recent.mean:.2g}, with {lifeless.mean:.0%} of the groups dead",
        "rewards differ by very little, and the estimator does not divide by their spread",
        "larger weights of the verifiers, or advantage: zscore",
        {KEY: recent.mean, "advantages/dead_group_fraction": lifeless.mean},
        recent.ends,
    )


RULES = (
    Rule("advantages_large", (KEY,), LARGE, _large),
    Rule("advantages_small", (KEY, "advantages/dead_group_fraction", "frac_reward_zero_std"), SMALL, _small),
)
