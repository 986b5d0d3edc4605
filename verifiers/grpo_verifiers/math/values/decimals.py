r"""Decimals that stand for exact values: rounded or cut correctly, to enough significant digits.

An irrational or repeating value is never written out, so a decimal may stand for it: ``0.3333`` for ``\frac13``,
``1.4142`` for ``\sqrt2``, on either side. A terminating value (an integer, ``\frac18``, another decimal) has an exact
decimal, and only that counts; two long decimals are the exception, for the shorter is then a rounding of the longer.
"""

from fractions import Fraction
from typing import NamedTuple

from grpo_verifiers.math.tree import Node
from grpo_verifiers.math.values.canon import exact
from grpo_verifiers.math.values.numeric import real_value

LONG = 2  # more digits than for an exact value make a decimal a rounding of a longer one
MAX_SIGNIFICANT = 17  # digits that a double can vouch for
_ROUNDING = Fraction(2, 10**15)  # relative error of a double after a few operations


class Decimal(NamedTuple):
    """A decimal as written: its value, the worth of its last digit, and its significant digits."""

    value: Fraction
    step: Fraction
    digits: int


def decimal_of(node: Node) -> Decimal | None:
    r"""The decimal that a node is: ``-0.333``, ``33.3\%``, ``3.14\times10^5``; None for anything else."""
    kind = node[0]
    if kind == "n" and node[2] is not None:
        step = Fraction(1, 10 ** node[2])
        count = abs(node[1]) / step
        return Decimal(node[1], step, len(str(count.numerator)) if count else 0)
    scale = Fraction(1)
    if kind == "-":
        scale = Fraction(-1)
    elif kind == "%":
        scale = Fraction(1, 100)
    elif kind == "*" and len(node) == 3 and node[2][0] == "^" and node[2][1] == ("n", 10, None):
        exponent = exact(node[2][2])
        if exponent is None or exponent.denominator != 1 or abs(exponent) > 40:
            return None
        scale = Fraction(10) ** int(exponent)
    else:
        return None
    inner = decimal_of(node[1])
    return inner and Decimal(inner.value * scale, inner.step * abs(scale), inner.digits)


def stands_for(gold: Node, answer: Node, digits: int) -> bool:
    """True if one side is a decimal of at least so many significant digits that stands for the other."""
    left, right = decimal_of(gold), decimal_of(answer)
    if left and right:
        coarse, fine = (left, right) if left.step >= right.step else (right, left)
        return coarse.digits >= digits + LONG and _is_cut(coarse, fine.value, Fraction(0))
    written, other = (left, answer) if left else (right, gold)
    if written is None or written.digits < digits:
        return False
    value = exact(other)
    if value is not None:
        return not _terminates(value) and _is_cut(written, value, Fraction(0))
    approximate = real_value(other)
    if approximate is None or written.digits > MAX_SIGNIFICANT:
        return False
    return _is_cut(written, Fraction(approximate), _ROUNDING * abs(Fraction(approximate)))


def _is_cut(written: Decimal, value: Fraction, error: Fraction) -> bool:
    """True if a decimal is a value, known up to an error, rounded to its last digit or cut behind it."""
    if written.value * value <= 0:
        return False
    gap = abs(value) - abs(written.value)
    return -written.step / 2 - error <= gap < written.step + error


def _terminates(value: Fraction) -> bool:
    below = value.denominator
    for prime in (2, 5):
        while below % prime == 0:
            below //= prime
    return below == 1
