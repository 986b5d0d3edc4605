"""The best of several variants, by intervals of differences over seeds rather than single numbers."""

from collections.abc import Mapping, Sequence

from grpo_verifiers.stats import Interval, difference

LESS = ("dead groups", "seconds a step", "seconds")
"""Figures of which less is better; of all other figures, more."""
UNRANKED = ("tokens saved",)
"""Figures that do not measure the quality of a model."""


def verdict(title: str, values: Mapping[str, Sequence[float]]) -> tuple[str | None, str]:
    """The name of the best, None without a clear one, and a sentence about it.

    ``values`` has the figures of each variant, one a seed. The best is named where the interval of its difference from
    every other leaves out 0, at 95% for all comparisons together (Bonferroni).
    """
    seeds = {name: list(each) for name, each in values.items() if each}
    if len(seeds) < 2:
        return None, ""
    sign = -1.0 if title in LESS else 1.0
    means = {name: sign * sum(each) / len(each) for name, each in seeds.items()}
    best = max(means, key=lambda name: means[name])
    if min(map(len, seeds.values())) < 2:
        return (
            None,
            f"{title}: one seed of a variant has no spread, so no difference is claimed (--seeds 3).",
        )
    confidence = 1 - 0.05 / (len(seeds) - 1)
    gaps = {
        name: difference([sign * value for value in seeds[best]], [sign * value for value in each], confidence)
        for name, each in seeds.items()
        if name != best
    }
    nearest = min(gaps, key=lambda name: gaps[name].value)
    if min(each.low for each in gaps.values()) > 0:
        return best, f"{title}: {best} is best, {_gap(gaps[nearest], sign)} from {nearest}."
    close = min(gaps, key=lambda name: gaps[name].low)
    return None, f"{title}: no difference seen between {best} and {close} ({_gap(gaps[close], sign)} over the seeds)."


def _gap(gap: Interval, sign: float) -> str:
    low, high = sorted((sign * gap.low, sign * gap.high))
    return f"{sign * gap.value:+.3g} ({low:+.3g} to {high:+.3g})"
