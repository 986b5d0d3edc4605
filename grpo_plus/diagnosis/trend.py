"""How much a noisy series has changed, with a confidence interval; quantiles of Student's t without a library.

`change` compares the first third of a series with the last. Neighbouring values of a training run are alike, so the
number of values is reduced by their lag-1 autocorrelation r: n (1 − r) / (1 + r), with r of the values around a line
through their third.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import fmean

LEAST = 4
"""Values in a third before it says anything."""
CONFIDENCE = 0.995
"""One-sided."""


@dataclass(frozen=True)
class Change:
    """The means of the first and the last third, and the interval of their difference."""

    before: float
    after: float
    low: float
    high: float

    @property
    def rises(self) -> bool:
        """Surely above what it was."""
        return self.low > 0


def change(values: Sequence[float], confidence: float = CONFIDENCE) -> Change | None:
    """The change of a series; None for a short one.

    >>> change([0.0, 0.1] * 6 + [1.0, 1.1] * 6).rises, change([0.0, 1.0] * 12).rises, change([1.0])
    (True, False, None)
    """
    size = len(values) // 3
    if size < LEAST:
        return None
    first, last = list(values[:size]), list(values[-size:])
    parts = [_errors(first), _errors(last)]
    effective = size * _shrunk([error for part in parts for error in part], size)
    spread = math.sqrt(sum(_square(part) / max(1, size - 2) / effective for part in parts))
    reach = student(confidence, max(2.0, 2 * (effective - 1))) * spread
    before, after = fmean(first), fmean(last)
    return Change(before, after, after - before - reach, after - before + reach)


def _errors(values: Sequence[float]) -> list[float]:
    """What a straight line leaves over: a trend is no noise."""
    mean, middle = fmean(values), (len(values) - 1) / 2
    slope = math.fsum((at - middle) * value for at, value in enumerate(values))
    slope /= math.fsum((at - middle) ** 2 for at in range(len(values)))
    return [value - mean - slope * (at - middle) for at, value in enumerate(values)]


def _square(errors: Sequence[float]) -> float:
    return math.fsum(error * error for error in errors)


def _shrunk(errors: Sequence[float], size: int) -> float:
    """The share of independent values."""
    total = _square(errors)
    if total <= 1e-300:
        return 1.0
    pairs = [errors[at] * errors[at + 1] for at in range(len(errors) - 1) if at + 1 != size]
    alike = min(0.9, max(0.0, math.fsum(pairs) / total + 3 / size))  # the line is theirs: r is low by about 3 / n
    return max((1 - alike) / (1 + alike), 1.5 / size)


@lru_cache(1000)
def student(share_below: float, freedom: float) -> float:
    """The value that a share of Student's distribution lies below, for a share above a half.

    >>> round(student(0.975, 4), 3)
    2.776
    """
    low, high = 0.0, 1.0
    while _student_above(high, freedom) > 1 - share_below:
        high *= 2
    while high - low > 1e-12 * high:
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
    front = math.exp(math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)) / a
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
