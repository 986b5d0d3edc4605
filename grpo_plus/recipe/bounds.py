"""`Bounds`: the values that a number may have, and the words for them in a message."""

import math
from dataclasses import dataclass
from numbers import Real
from typing import Any


@dataclass(frozen=True)
class Bounds:
    """The values a number may have; an end that is ``open`` does not belong to them.

    Attributes:
        low: the least.
        high: the largest.
        open_low: ``low`` itself is outside.
        open_high: ``high`` itself is outside.
        finite: infinity is outside, where no end says so.
        whole_from: numbers from here on must be whole; None: no number must.
        told: words for a message, where those made of the ends would not do.
    """

    low: float = float("-inf")
    high: float = float("inf")
    open_low: bool = False
    open_high: bool = False
    finite: bool = False
    whole_from: float | None = None
    told: str = ""

    def holds(self, value: Any) -> bool:
        """Whether a number is one of them; an integer beyond the largest float never is."""
        inside = self.low <= value <= self.high
        at_open_end = (self.open_low and value == self.low) or (self.open_high and value == self.high)
        broken = self.whole_from is not None and value >= self.whole_from and value % 1 != 0
        too_large = _is_infinite(value) and (self.finite or value not in (math.inf, -math.inf))
        return inside and not at_open_end and not broken and not too_large

    def words(self) -> str:
        """The bounds, to stand behind "expected"."""
        if self.told:
            return self.told
        words = [f"{'more than' if self.open_low else 'at least'} {_plain(self.low)}"] if self.low > -math.inf else []
        words += [f"{'less than' if self.open_high else 'at most'} {_plain(self.high)}"] if self.high < math.inf else []
        words += ["finite" if words else "a finite number"] if self.finite else []
        return " and ".join(words)

    def problem(self, name: str, value: object) -> str | None:
        """What is wrong with a value; None when nothing is, or when it is no number at all."""
        if isinstance(value, bool) or not isinstance(value, Real) or self.holds(value):
            return None
        return f"{name} is {value!r}, expected {self.words()}."


def _is_infinite(value: Any) -> bool:
    try:
        return math.isinf(value)
    except OverflowError:  # an integer beyond the largest float
        return True


def _plain(value: float) -> str:
    return str(int(value)) if float(value).is_integer() else f"{value:g}"
