"""The logged metrics of a run as rules read them: series of finite values, and facts of the config."""

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from statistics import fmean, median
from typing import Any, NamedTuple

MOST = 1000
"""`Curves.full` returns fewer than twice as many values: rules read them at every log entry."""
Series = Mapping[str, tuple[Sequence[int], Sequence[Any]]]
_NEVER: tuple[Sequence[int], Sequence[Any]] = ((), ())


class MetricWindow(NamedTuple):
    """Consecutive values of a metric, and the steps at which they were logged."""

    steps: list[int]
    values: list[float]

    @property
    def mean(self) -> float:
        """The mean; NaN if empty."""
        return fmean(self.values) if self.values else math.nan

    @property
    def median(self) -> float:
        """The median; NaN if empty."""
        return median(self.values) if self.values else math.nan

    @property
    def end(self) -> float:
        """The mean of the last tenth, at least of the last value; NaN if empty."""
        return MetricWindow(self.steps, self.values[-max(1, round(len(self.values) * 0.1)) :]).mean

    @property
    def beginning(self) -> float:
        """The mean of the first tenth, at least of the first value; NaN if empty."""
        return MetricWindow(self.steps, self.values[::-1]).end

    @property
    def ends(self) -> tuple[int, ...]:
        """First and last step; empty if there are no values."""
        return (self.steps[0], self.steps[-1]) if self.steps else ()


class Curves:
    """Metrics by step in the range ``since`` < step <= ``until``, and facts of the run.

    >>> curves = Curves({"reward": ([1, 2, 3], [0.0, float("nan"), 1.0])}, until=2)
    >>> curves.last("reward", 5).values, curves.last("kl", 5).values
    ([0.0], [])
    """

    def __init__(
        self, series: Series, facts: Mapping[str, Any] | None = None, until: float = math.inf, since: float = -math.inf
    ) -> None:
        self.series = series
        self.facts = dict(facts or {})
        self.until, self.since = until, since

    def names(self, start: str, end: str = "") -> list[str]:
        """The middle parts of the metrics' names that begin with ``start`` and end with ``end``."""
        keys = [key for key in self.series if key.startswith(start) and key.endswith(end)]
        return [key[len(start) : len(key) - len(end)] for key in keys if len(key) > len(start) + len(end)]

    def raw(self, key: str, count: int) -> list[Any]:
        """The last ``count`` values as logged, non-numbers included."""
        _, values = self.series.get(key, _NEVER)
        _, end = self._range(key)
        return list(values[max(0, end - count) : end])

    def last(self, key: str, count: int) -> MetricWindow:
        """The last ``count`` finite values among the last 2 × ``count`` entries."""
        start, end = self._range(key)
        window = self._finite(key, slice(max(start, end - 2 * count), end))
        return MetricWindow(window.steps[-count:], window.values[-count:])

    def first(self, key: str, count: int) -> MetricWindow:
        """The first ``count`` finite values among the first 2 × ``count`` entries."""
        start, end = self._range(key)
        window = self._finite(key, slice(start, min(end, start + 2 * count)))
        return MetricWindow(window.steps[:count], window.values[:count])

    def full(self, key: str) -> MetricWindow:
        """All finite values; an evenly spaced subset of a long run."""
        start, end = self._range(key)
        return self._finite(key, slice(start, end, max(1, (end - start) // MOST)))

    def fact(self, name: str, default: Any = None) -> Any:
        """A fact of the run, or the default if it is missing."""
        value = self.facts.get(name)
        return default if value is None else value

    def number(self, name: str) -> float | None:
        """A fact as a float; None if it is not a finite number."""
        value = self.facts.get(name)
        return float(value) if value is not None and is_number(value) else None

    def _range(self, key: str) -> tuple[int, int]:
        steps, _ = self.series.get(key, _NEVER)
        end = len(steps) if self.until == math.inf else bisect_right(steps, self.until)
        return bisect_right(steps, self.since), end

    def _finite(self, key: str, place: slice) -> MetricWindow:
        steps, values = self.series.get(key, _NEVER)
        points = zip(steps[place], values[place], strict=False)
        finite = [(step, float(value)) for step, value in points if is_number(value)]
        return MetricWindow([step for step, _ in finite], [value for _, value in finite])


def is_number(value: Any) -> bool:
    """Return True for a finite number whose square is finite too."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= 1e150
