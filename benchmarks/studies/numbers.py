"""Statistics of studies: spread over seeds, Student's intervals, the noise of a gradient, slopes."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from math import atan, cos, exp, inf, isfinite, log, pi, sin, sqrt
from statistics import NormalDist
from typing import Any


@dataclass(frozen=True)
class Spread:
    """A mean over seeds, the standard deviation, and a 95% confidence interval of the mean (Student's).

    With one seed the deviation is 0 and the interval has no bounds.
    """

    mean: float
    deviation: float
    low: float
    high: float
    count: int

    def text(self, form: str = ".3f") -> str:
        """``mean ± deviation``; the mean alone with one seed."""
        return f"{self.mean:{form}}" + (f" ± {self.deviation:{form}}" if self.count > 1 else "")

    def interval(self, form: str = ".3f") -> str:
        """``low to high``; ``-`` with one seed."""
        return f"{self.low:{form}} to {self.high:{form}}" if self.count > 1 else "-"


def spread(values: Sequence[float]) -> Spread:
    """Mean, sample deviation and interval.

    >>> spread([1.0, 2.0, 3.0]).text(".1f")
    '2.0 ± 1.0'
    """
    if not values:
        raise ValueError("there are no values to take the mean of.")
    mean = statistics.fmean(values)
    if len(values) == 1:
        return Spread(mean, 0.0, -inf, inf, 1)
    deviation = statistics.stdev(values)
    half = student(len(values) - 1) * deviation / sqrt(len(values))
    return Spread(mean, deviation, mean - half, mean + half, len(values))


def student(degrees: int, confidence: float = 0.95) -> float:
    """The t with ``confidence`` of Student's distribution between -t and t.

    >>> round(student(4), 3)
    2.776
    """
    low, high = 0.0, 1.0
    while _within(high, degrees) < confidence:
        high *= 2
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if _within(middle, degrees) < confidence else (low, middle)
    return (low + high) / 2


def _within(t: float, degrees: int) -> float:
    """P(-t < T < t) for whole degrees of freedom: the finite series (Abramowitz and Stegun 26.7.3 and 26.7.4)."""
    angle = atan(t / sqrt(degrees))
    odd = degrees % 2
    term, total = (cos(angle), 0.0) if odd else (1.0, 0.0)
    for power in range(1 + odd, degrees, 2):
        total += term
        term *= cos(angle) ** 2 * power / (power + 1)
    return 2 / pi * (angle + sin(angle) * total) if odd else sin(angle) * total


@dataclass(frozen=True)
class Noise:
    """The noise of a random vector such as a gradient.

    ``variance`` is the trace of the covariance, ``signal`` the squared norm of the mean; both estimates are unbiased,
    so ``signal`` may come out below 0. ``ratio`` is variance over signal, infinite without a signal; ``log_error`` the
    standard error of its logarithm, by the jackknife over the samples. ``largest`` is the share of one sample, the
    noisiest, in all squared distances from the mean: where it is large, few rare samples make the variance.
    """

    variance: float
    signal: float
    ratio: float
    log_error: float
    largest: float


def noise(gram: Any) -> Noise:
    """The noise of B independent samples from their inner products (B, B), in float64.

    With E[g_i·g_i] = tr Σ + |μ|² and E[g_i·g_j] = |μ|², the mean product of different samples estimates |μ|², and what
    the mean square has above it is tr Σ: no square of an estimated mean, so nothing to correct.
    """
    count = len(gram)
    if count < 3:
        raise ValueError(f"the noise of {count} samples cannot be told from their mean: draw at least 3.")
    squares = [float(gram[at][at]) for at in range(count)]
    others = [sum(float(value) for value in gram[at]) - squares[at] for at in range(count)]
    all_squares, all_others = sum(squares), sum(others)

    def of(squared: float, crossed: float, n: int) -> tuple[float, float, float]:
        signal = crossed / (n * (n - 1))
        variance = squared / n - signal
        return variance, signal, variance / signal if signal > 0 else inf

    variance, signal, ratio = of(all_squares, all_others, count)
    mean_square = (all_squares + all_others) / count**2
    apart = [squares[at] - 2 * (squares[at] + others[at]) / count + mean_square for at in range(count)]
    largest = max(apart) / (sum(apart) or 1.0)
    left = [of(all_squares - squares[at], all_others - 2 * others[at], count - 1)[2] for at in range(count)]
    if not isfinite(ratio) or ratio <= 0 or not all(isfinite(value) and value > 0 for value in left):
        return Noise(variance, signal, ratio, inf, largest)
    logs = [log(value) for value in left]
    error = sqrt((count - 1) * statistics.pvariance(logs))
    return Noise(variance, signal, ratio, error, largest)


def quotient(over: Sequence[Noise], under: Sequence[Noise]) -> tuple[float, float, float] | None:
    """The ratio of two noise ratios, the geometric mean over seeds, with its 95% interval; None where one is unknown.

    The errors are those of the jackknife, so that one seed has an interval, too.
    """
    pairs = list(zip(over, under, strict=True))
    if not pairs or not all(_known(one) and _known(other) for one, other in pairs):
        return None
    middle = statistics.fmean(log(one.ratio / other.ratio) for one, other in pairs)
    error = sqrt(sum(one.log_error**2 + other.log_error**2 for one, other in pairs)) / len(pairs)
    half = NormalDist().inv_cdf(0.975) * error
    return exp(middle), exp(middle - half), exp(middle + half)


def _known(value: Noise) -> bool:
    return isfinite(value.ratio) and value.ratio > 0 and isfinite(value.log_error)


def slope(xs: Sequence[float], ys: Sequence[float]) -> float | None:
    """The exponent of y ~ x^exponent by least squares on logarithms; None with fewer than two known points.

    >>> round(slope([1, 2, 4], [8, 4, 2]), 6)
    -1.0
    """
    points = [(log(x), log(y)) for x, y in zip(xs, ys, strict=True) if x > 0 and y > 0 and isfinite(y)]
    if len({x for x, _ in points}) < 2:
        return None
    return statistics.linear_regression(*zip(*points, strict=True)).slope


def smoothed(values: Sequence[float], width: int = 5) -> list[float]:
    """The mean of each value with those right before it."""
    return [statistics.fmean(values[max(0, at + 1 - width) : at + 1]) for at in range(len(values))]


def crossing(spent: Sequence[float], values: Sequence[float], target: float) -> float | None:
    """The cost at which values first reach the target, between two measurements by interpolation; None: never."""
    for at, value in enumerate(values):
        if value >= target:
            if at == 0:
                return spent[0]
            before, rise = values[at - 1], value - values[at - 1]
            return spent[at - 1] + (target - before) / rise * (spent[at] - spent[at - 1])
    return None
