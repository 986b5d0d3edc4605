"""The logged metrics of a run as rules read them: finite values only, from the end, and facts of the config beside."""

import math
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean, median
from typing import Any, NamedTuple

MOST = 1000
"""Values of a run that `Curves.whole` gives, nearly twice as many at most: every log entry asks for them."""
Series = Mapping[str, tuple[Sequence[int], Sequence[Any]]]


class Window(NamedTuple):
    """Some neighbouring values of a metric, and the steps that they were logged at."""

    steps: list[int]
    values: list[float]

    @property
    def mean(self) -> float:
        """The mean; NaN of none."""
        return fmean(self.values) if self.values else math.nan

    @property
    def median(self) -> float:
        """The median; NaN of none."""
        return median(self.values) if self.values else math.nan

    @property
    def end(self) -> float:
        """The mean of the last tenth, the last value at least; NaN of none."""
        return Window(self.steps, self.values[-max(1, round(len(self.values) * 0.1)) :]).mean

    @property
    def ends(self) -> tuple[int, ...]:
        """First and last step."""
        return (self.steps[0], self.steps[-1]) if self.steps else ()


class Curves:
    """Series of metrics, after one step and up to another, and facts of the run.

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
        """What stands between ``start`` and ``end`` in the names of metrics."""
        found = [key for key in self.series if key.startswith(start) and key.endswith(end)]
        return [key[len(start) : len(key) - len(end)] for key in found if len(key) > len(start) + len(end)]

    def raw(self, key: str, count: int) -> list[Any]:
        """The last values as they were logged, those that are no numbers included."""
        steps, values = self.series.get(key, ((), ()))
        end = self._end(steps)
        return list(values[max(0, end - count) : end])

    def last(self, key: str, count: int) -> Window:
        """The last so many finite values, of at most twice as many entries."""
        steps, values = self.series.get(key, ((), ()))
        end = self._end(steps)
        start = max(bisect_right(steps, self.since), end - 2 * count)
        kept = _finite(steps[start:end], values[start:end])
        return Window(kept.steps[-count:], kept.values[-count:])

    def first(self, key: str, count: int) -> Window:
        """The first so many finite values, of at most twice as many entries."""
        steps, values = self.series.get(key, ((), ()))
        start = bisect_right(steps, self.since)
        end = min(self._end(steps), start + 2 * count)
        kept = _finite(steps[start:end], values[start:end])
        return Window(kept.steps[:count], kept.values[:count])

    def whole(self, key: str) -> Window:
        """All finite values; of a long run some of them, evenly spread."""
        steps, values = self.series.get(key, ((), ()))
        start, end = bisect_right(steps, self.since), self._end(steps)
        stride = max(1, (end - start) // MOST)
        return _finite(steps[start:end:stride], values[start:end:stride])

    def fact(self, name: str, default: Any = None) -> Any:
        """A fact of the run; the default where it is not known."""
        found = self.facts.get(name)
        return default if found is None else found

    def number(self, name: str) -> float | None:
        """A fact that is a finite number; None otherwise."""
        found = self.facts.get(name)
        return float(found) if found is not None and is_number(found) else None

    def _end(self, steps: Sequence[int]) -> int:
        return len(steps) if self.until == math.inf else bisect_right(steps, self.until)


def is_number(value: Any) -> bool:
    """A finite number that sums and squares."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= 1e150


def _finite(steps: Iterable[int], values: Iterable[Any]) -> Window:
    kept = [(step, float(value)) for step, value in zip(steps, values, strict=False) if is_number(value)]
    return Window([step for step, _ in kept], [value for _, value in kept])
