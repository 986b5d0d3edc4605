"""Statistics without torch: means, percentiles, Student's t, and confidence intervals of means and of differences.

The interval of a share is Wilson's (1927). Samples of one question are correlated, so the question is the unit of
variation: the number of trials is that of independent trials with the same variance of the mean (Korn and Graubard
1998, for clustered surveys). Unlike a normal interval it stays in [0, 1] and has a width when all
questions agree.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from math import atan, exp, floor, fsum, lgamma, pi, sqrt
from typing import Any, NamedTuple

Z = 1.9599639845400536
"""97.5% of the normal distribution lie below it."""


class Interval(NamedTuple):
    """A value with the ends of its 95% confidence interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class MeanEstimate:
    """A mean over ``questions`` questions, and its 95% confidence interval."""

    value: float
    low: float
    high: float
    questions: int


def share(values: Sequence[float], samples: float = 1.0) -> MeanEstimate:
    """The mean of one number in [0, 1] for each question, with its interval.

    >>> share([0.0, 1.0, 1.0, 1.0], samples=4).value
    0.75

    ``samples`` is the average number of samples of a question; the interval is never narrower than for that many
    independent trials each.

    Raises:
        ValueError: there are no questions, or a value is outside [0, 1].
    """
    questions = _count(values)
    if min(values) < 0 or max(values) > 1:
        raise ValueError(f"shares lie between 0 and 1, got {min(values)} to {max(values)}.")
    mean = sum(values) / questions
    spread = sum((value - mean) ** 2 for value in values) / questions
    trials = questions * max(1.0, samples)
    if spread > 0:
        trials = min(trials, mean * (1 - mean) / (spread / questions))
    middle = (mean + Z * Z / (2 * trials)) / (1 + Z * Z / trials)
    half = Z / (1 + Z * Z / trials) * sqrt(mean * (1 - mean) / trials + Z * Z / (4 * trials * trials))
    # At 0 and 1, rounding could put the mean itself outside.
    return MeanEstimate(mean, max(0.0, min(mean, middle - half)), min(1.0, max(mean, middle + half)), questions)


def mean(values: Sequence[float]) -> MeanEstimate:
    """The mean of one number for each question, such as a score or a paired difference, with a normal interval.

    >>> mean([0.25, 0.75]).value
    0.5
    """
    questions = _count(values)
    middle = sum(values) / questions
    if questions == 1:
        return MeanEstimate(middle, float("-inf"), float("inf"), 1)
    spread = sum((value - middle) ** 2 for value in values) / (questions - 1)
    half = Z * sqrt(spread / questions)
    return MeanEstimate(middle, middle - half, middle + half, questions)


def _count(values: Sequence[float]) -> int:
    if not values:
        raise ValueError("there are no questions to take the mean of.")
    return len(values)


def evenly(places: Sequence[int], count: int | None) -> Sequence[int]:
    """At most ``count`` of the places, at even distances and with the first; None: all.

    >>> evenly(range(10), 4)
    [0, 2, 5, 7]
    """
    if count is None or len(places) <= count:
        return places
    return [places[number * len(places) // count] for number in range(count)]


def percentile(values: Sequence[float], share: float) -> float:
    """Linear interpolation between the two nearest values."""
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    low = floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def mean_and_spread(values: Sequence[float]) -> tuple[float, float]:
    """Mean and sample standard deviation; a single value has none."""
    mean = fsum(values) / len(values)
    if len(values) < 2:
        return mean, 0.0
    return mean, sqrt(fsum((value - mean) ** 2 for value in values) / (len(values) - 1))


def difference(first: Sequence[float], second: Sequence[float], confidence: float = 0.95) -> Interval:
    """The difference of two means over independent runs, with Welch's interval (Biometrika 34, 1947).

    >>> round(difference([3.0, 5.0], [1.0, 1.0, 1.0]).value, 6)
    3.0

    Assumes that the runs of each side are normal around their mean; the two sides may spread differently. Without any
    spread on either side it is a point.

    Raises:
        ValueError: one of them has fewer than two values, which say nothing of the spread.
    """
    if min(len(first), len(second)) < 2:
        raise ValueError("a difference of means needs two values of each at least.")
    sides = first, second
    means, spreads = zip(*map(mean_and_spread, sides), strict=True)
    errors = [spread**2 / len(values) for spread, values in zip(spreads, sides, strict=True)]
    gap, error = means[0] - means[1], sum(errors)
    if error == 0:
        return Interval(gap, gap, gap)
    freedom = error**2 / sum(each**2 / (len(values) - 1) for each, values in zip(errors, sides, strict=True))
    half = student_quantile((1 + confidence) / 2, freedom) * sqrt(error)
    return Interval(gap, gap - half, gap + half)


def student_quantile(share_below: float, freedom: float) -> float:
    """The value that a share of Student's distribution lies below: a share above a half, a freedom of at least 1.

    >>> round(student_quantile(0.975, 4), 3)
    2.776
    """
    low, high = 0.0, 1.0
    while _student_below(high, freedom) < share_below:
        high *= 2
    while low < (middle := (low + high) / 2) < high:
        low, high = (middle, high) if _student_below(middle, freedom) < share_below else (low, middle)
    return high


def _student_below(value: float, freedom: float) -> float:
    """The share of Student's distribution below a value of at least 0.

    It is an integral of cos(x)^(freedom - 1) up to arctan(value / √freedom), by Gauss and Legendre's formula.
    """
    half = atan(value / sqrt(freedom)) / 2
    factor = exp(lgamma((freedom + 1) / 2) - lgamma(freedom / 2)) / sqrt(pi)
    np, places, weights = _gauss_legendre()
    return 0.5 + factor * half * float(weights @ np.cos(half * (1 + places)) ** (freedom - 1))


@cache
def _gauss_legendre() -> Any:
    """NumPy, with the places and weights of 64 points: most uses of this module need no NumPy."""
    import numpy as np

    return np, *np.polynomial.legendre.leggauss(64)
