"""Decimals that stand for other values by rounding, and how far such roundings may walk.

A number as shown has digits, and is a value rounded or cut at the last of them. Each rounding is right to the digits
shown, and still 0.9945 = 0.995 = 1.00 = 1.0045 = 1.005 = 1.01 walks as far as one likes. So values that are linked by
rounding, in one chain or over many lines, may not spread over more than one unit of the last place of the coarsest
decimal among them.
"""

from fractions import Fraction
from typing import NamedTuple

from grpo_verifiers.math.tree import Node

MIN_ROUNDED, MIN_CUT = 2, 4
"""Significant digits of a decimal that is rounded, and of one that is cut."""
FARTHEST = Fraction(1, 20)
"""Largest relative error of a rounded number: that of two digits."""
_MAX_EXPONENT = 400


class Shown(NamedTuple):
    """A number as written: its value, the unit of its last digit, how many digits are significant."""

    value: Fraction
    unit: Fraction
    digits: int


def shown(node: Node, *, about: bool) -> Shown | None:
    r"""A decimal, a percentage or ``6.02 \cdot 10^{23}`` as written; with ``about``, an integer as well."""
    scale = Fraction(1)
    if node[0] == "-":
        scale, node = -scale, node[1]
    if node[0] == "%":
        scale, node = scale / 100, node[1]
    if node[0] == "*" and len(node) == 3 and (power := _power_of_ten(node[2])) is not None:
        scale, node = scale * power, node[1]
    if node[0] != "n" or (node[2] is None and not about):
        return None
    value, places = node[1], node[2] or 0
    digits = str(value.numerator * 10**places // value.denominator).lstrip("0")
    zeros = 0
    if node[2] is None and len(kept := digits.rstrip("0")) >= MIN_ROUNDED:
        zeros = len(digits) - len(kept)
    return Shown(value * scale, abs(scale) * Fraction(10) ** (zeros - places), len(digits) - zeros)


def rounds(number: Shown, exact: Fraction, *, about: bool) -> bool:
    """True if a number is a value rounded at its last digit, up or to even, and has the digits that this takes."""
    off = abs(number.value - exact)
    enough = about or number.digits >= MIN_ROUNDED
    if off == number.unit / 2 and abs(number.value) < abs(exact) and number.value / number.unit % 2:
        return False  # a half goes up, or to an even digit
    return enough and off <= number.unit / 2 and off <= FARTHEST * max(abs(exact), abs(number.value))


def cuts(number: Shown, exact: Fraction) -> bool:
    """True if a number is a value cut at its last digit, and has the digits that this takes."""
    short = abs(exact) - abs(number.value)
    return number.digits >= MIN_CUT and number.value * exact > 0 and 0 <= short < number.unit


def _power_of_ten(node: Node) -> Fraction | None:
    if node[0] != "^" or node[1] != ("n", 10, None):
        return None
    sign, exponent = (-1, node[2][1]) if node[2][0] == "-" else (1, node[2])
    if exponent[0] != "n" or exponent[2] is not None or exponent[1] > _MAX_EXPONENT:
        return None
    return Fraction(10) ** (sign * int(exponent[1]))


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
