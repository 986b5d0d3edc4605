"""The change of a noisy series, with a confidence interval.

`change` compares the first third of a series with the last. Neighbouring values of a training run are alike, so the
number of values is reduced by their lag-1 autocorrelation r: n (1 − r) / (1 + r), with r of the values around a line
through their third.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from grpo_verifiers.stats import student_quantile

LEAST = 4
"""Values needed in a third."""
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
        """True if the later mean is surely higher."""
        return self.low > 0


def change(values: Sequence[float]) -> Change | None:
    """Return the change of a series, or None if it is too short.

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
    reach = student_quantile(CONFIDENCE, max(2.0, 2 * (effective - 1))) * spread
    before, after = fmean(first), fmean(last)
    return Change(before, after, after - before - reach, after - before + reach)


def _errors(values: Sequence[float]) -> list[float]:
    """The residuals of a straight line: a trend is no noise."""
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
    alike = min(0.9, max(0.0, math.fsum(pairs) / total + 3 / size))  # the line is a fit: r is low by about 3 / n
    return max((1 - alike) / (1 + alike), 1.5 / size)
