"""The difference of two means over a few independent runs, with Welch's interval (Biometrika 34, 1947).

Assumes that the runs of each side are normal around their mean; the two sides may spread differently. With two runs a
side the interval is wide, as it should be. Without any spread on either side it is a point.
"""

from collections.abc import Sequence
from math import sqrt

from grpo_plus.diagnosis.trend import student
from grpo_plus.record.measured import Share


def difference(ones: Sequence[float], others: Sequence[float], confidence: float = 0.95) -> Share:
    """The difference of two means over independent runs, with Welch's interval (1947).

    >>> round(difference([3.0, 5.0], [1.0, 1.0, 1.0]).value, 6)
    3.0

    Without any spread the interval is the value itself.

    Raises:
        ValueError: one of them has fewer than two values, which say nothing of the spread.
    """
    if min(len(ones), len(others)) < 2:
        raise ValueError("a difference of means needs two values of each at least.")
    means, errors = zip(*(_mean_and_error(values) for values in (ones, others)), strict=True)
    gap, error = means[0] - means[1], sum(errors)
    if error == 0:
        return Share(gap, gap, gap)
    freedom = error**2 / sum(each**2 / (len(values) - 1) for each, values in zip(errors, (ones, others), strict=True))
    half = student((1 + confidence) / 2, freedom) * sqrt(error)
    return Share(gap, gap - half, gap + half)


def _mean_and_error(values: Sequence[float]) -> tuple[float, float]:
    """The mean, and the variance of the mean."""
    middle = sum(values) / len(values)
    return middle, sum((value - middle) ** 2 for value in values) / (len(values) - 1) / len(values)
