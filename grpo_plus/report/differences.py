"""The best of several variants, by intervals of differences over seeds rather than single numbers."""

from collections.abc import Mapping, Sequence
from math import atan, exp, fsum, lgamma, pi, sqrt

import numpy as np

from grpo_plus.record.reader import Share

LESS = ("dead groups", "seconds a step", "seconds")
"""Figures of which less is better; of all other figures, more."""
UNRANKED = ("tokens saved",)
"""Figures that do not measure the quality of a model."""
_PLACES, _WEIGHTS = np.polynomial.legendre.leggauss(64)


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


def _gap(gap: Share, sign: float) -> str:
    low, high = sorted((sign * gap.low, sign * gap.high))
    return f"{sign * gap.value:+.3g} ({low:+.3g} to {high:+.3g})"


def mean_and_spread(values: Sequence[float]) -> tuple[float, float]:
    """Mean and sample standard deviation; a single value has none."""
    mean = fsum(values) / len(values)
    if len(values) < 2:
        return mean, 0.0
    return mean, sqrt(fsum((value - mean) ** 2 for value in values) / (len(values) - 1))


def difference(ones: Sequence[float], rest: Sequence[float], confidence: float = 0.95) -> Share:
    """The difference of two means over independent runs, with Welch's interval (Biometrika 34, 1947).

    >>> round(difference([3.0, 5.0], [1.0, 1.0, 1.0]).value, 6)
    3.0

    Assumes that the runs of each side are normal around their mean; the two sides may spread differently. Without any
    spread on either side it is a point.

    Raises:
        ValueError: one of them has fewer than two values, which have no spread.
    """
    if min(len(ones), len(rest)) < 2:
        raise ValueError("a difference of means needs two values of each at least.")
    sides = ones, rest
    means, spreads = zip(*map(mean_and_spread, sides), strict=True)
    errors = [spread**2 / len(values) for spread, values in zip(spreads, sides, strict=True)]
    gap, error = means[0] - means[1], sum(errors)
    if error == 0:
        return Share(gap, gap, gap)
    freedom = error**2 / sum(each**2 / (len(values) - 1) for each, values in zip(errors, sides, strict=True))
    half = student_quantile((1 + confidence) / 2, freedom) * sqrt(error)
    return Share(gap, gap - half, gap + half)


def student_quantile(share_below: float, freedom: float) -> float:
    """The value that a share of Student's distribution lies below: a share above a half, a freedom of at least 1.

    >>> round(student_quantile(0.975, 4), 3)
    2.776
    """
    low, high = 0.0, 1.0
    while _student_below(high, freedom) < share_below:
        high *= 2
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if _student_below(middle, freedom) < share_below else (low, middle)
    return high


def _student_below(value: float, freedom: float) -> float:
    """The share of Student's distribution below a value of at least 0.

    It is an integral of cos(x)^(freedom - 1) up to arctan(value / √freedom), by Gauss and Legendre's formula.
    """
    half = atan(value / sqrt(freedom)) / 2
    factor = exp(lgamma((freedom + 1) / 2) - lgamma(freedom / 2)) / sqrt(pi)
    return 0.5 + factor * half * float(_WEIGHTS @ np.cos(half * (1 + _PLACES)) ** (freedom - 1))
