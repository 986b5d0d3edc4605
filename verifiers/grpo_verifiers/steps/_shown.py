"""Numbers as they are shown: how many digits, and whether they are a value rounded or cut."""

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
    return enough and off <= number.unit / 2 and off <= FARTHEST * abs(exact)


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
