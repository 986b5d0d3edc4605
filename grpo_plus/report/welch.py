"""The difference of two means over a few independent runs, with Welch's interval (Biometrika 34, 1947).

Assumes that the runs of each side are normal around their mean; the two sides may spread differently. With two runs a
side the interval is wide, as it should be. Without any spread on either side it is a point.
"""

from collections.abc import Sequence
from math import exp, lgamma, log, log1p, sqrt

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
    half = student_quantile((1 + confidence) / 2, freedom) * sqrt(error)
    return Share(gap, gap - half, gap + half)


def student_quantile(share_below: float, freedom: float) -> float:
    """The value that a share of Student's distribution lies below, for a share above a half.

    >>> round(student_quantile(0.975, 4), 3)
    2.776
    """
    low, high = 0.0, 1.0
    while _student_above(high, freedom) > 1 - share_below:
        high *= 2
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if _student_above(middle, freedom) > 1 - share_below else (low, middle)
    return high


def _student_above(value: float, freedom: float) -> float:
    """The share of Student's distribution above a value of at least 0."""
    return _beta_below(freedom / (freedom + value * value), freedom / 2, 0.5) / 2


def _beta_below(x: float, a: float, b: float) -> float:
    """The regularised incomplete beta function, by its continued fraction (Lentz's method)."""
    if x <= 0 or x >= 1:
        return float(x >= 1)
    if x > (a + 1) / (a + b + 2):
        return 1 - _beta_below(1 - x, b, a)
    front = exp(lgamma(a + b) - lgamma(a) - lgamma(b) + a * log(x) + b * log1p(-x)) / a
    tiny, c, d = 1e-300, 1.0, 0.0
    found = 1.0
    for step in range(600):
        m = step // 2
        if step == 0:
            term = 1.0
        elif step % 2 == 0:
            term = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        else:
            term = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        d = 1 / ((1 + term * d) or tiny)
        c = (1 + term / c) or tiny
        found *= c * d
        if step and abs(1 - c * d) < 1e-15:
            break
    return front * (found - 1)


def _mean_and_error(values: Sequence[float]) -> tuple[float, float]:
    """The mean, and the variance of the mean."""
    middle = sum(values) / len(values)
    return middle, sum((value - middle) ** 2 for value in values) / (len(values) - 1) / len(values)
