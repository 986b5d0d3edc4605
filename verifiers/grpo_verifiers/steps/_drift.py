"""Values that a solution sets equal by rounding, and how far they have come from each other.

Each rounding is right to the digits shown, and still 0.9945 = 0.995 = 1.00 = 1.0045 = 1.005 = 1.01 walks as far as one
likes. So values that are linked by rounding, in one chain or over many lines, may not spread over more than one unit of
the last place of the coarsest decimal among them.
"""

from fractions import Fraction
from typing import NamedTuple


class Rounding(NamedTuple):
    """Two values that a rounding sets equal, and the unit of the last place shown."""

    left: Fraction
    right: Fraction
    unit: Fraction


class Drift:
    """Groups of values linked by rounding: lowest, highest, coarsest unit."""

    def __init__(self) -> None:
        self._group: dict[Fraction, int] = {}
        self._spans: list[tuple[Fraction, Fraction, Fraction]] = []
        self._members: list[list[Fraction]] = []

    def allows(self, link: Rounding) -> bool:
        """True if the two values and all that are linked with them stay together; they are linked if so."""
        first, second = self._of(link.left), self._of(link.right)
        low, high, unit = (
            pick(self._spans[first][at], self._spans[second][at]) for at, pick in enumerate((min, max, max))
        )
        unit = max(unit, link.unit)
        if high - low > unit:
            return False
        if len(self._members[first]) < len(self._members[second]):
            first, second = second, first
        if first != second:
            for value in self._members[second]:
                self._group[value] = first
            self._members[first] += self._members[second]
            self._members[second] = []
        self._spans[first] = low, high, unit
        return True

    def _of(self, value: Fraction) -> int:
        if value not in self._group:
            self._group[value] = len(self._spans)
            self._spans.append((value, value, Fraction(0)))
            self._members.append([value])
        return self._group[value]
