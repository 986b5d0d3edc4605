"""Which of several variants is best, if that can be told: intervals of differences over seeds, not single numbers."""

from collections.abc import Mapping, Sequence

from grpo_verifiers.stats import Interval, difference

LESS = ("dead groups", "seconds a step", "seconds")
"""Figures of which less is better; the others are better the larger they are."""
UNRANKED = ("tokens saved",)
"""Figures that say nothing of how good a model is."""


def verdict(title: str, values: Mapping[str, Sequence[float]]) -> tuple[str | None, str]:
    """The name of the best, None where none can be told, and a sentence about it.

    ``values`` has the figures of each variant, one a seed. The best is named where the interval of its difference from
    every other leaves out 0, at 95% for all comparisons together (Bonferroni).
    """
    held = {name: list(each) for name, each in values.items() if each}
    if len(held) < 2:
        return None, ""
    sign = -1.0 if title in LESS else 1.0
    means = {name: sign * sum(each) / len(each) for name, each in held.items()}
    best = max(means, key=lambda name: means[name])
    if min(map(len, held.values())) < 2:
        return (
            None,
            f"{title}: one seed of a variant says nothing of its spread, so no difference is claimed (--seeds 3).",
        )
    confidence = 1 - 0.05 / (len(held) - 1)
    others = {
        name: difference([sign * value for value in held[best]], [sign * value for value in each], confidence)
        for name, each in held.items()
        if name != best
    }
    nearest = min(others, key=lambda name: others[name].value)
    if min(each.low for each in others.values()) > 0:
        return best, f"{title}: {best} is best, {_gap(others[nearest], sign)} from {nearest}."
    close = min(others, key=lambda name: others[name].low)
    return None, f"{title}: no difference seen between {best} and {close} ({_gap(others[close], sign)} over the seeds)."


def _gap(gap: Interval, sign: float) -> str:
    low, high = sorted((sign * gap.low, sign * gap.high))
    return f"{sign * gap.value:+.3g} ({low:+.3g} to {high:+.3g})"
