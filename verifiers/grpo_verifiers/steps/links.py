r"""True if one link of a chain of equations holds: exact arithmetic first, then numbers.

=================================================== ============= =====================================================
statement                                           verdict       because
=================================================== ============= =====================================================
``2/3 = 0.67``, ``10/3 = 3.3``                      holds         a decimal of two significant digits or more, rounded
``1/3 = 0.3``, ``0.009 = 0.00``                     wrong         fewer digits
``2/3 = 0.6666``, ``\pi = 3.1415``                  holds         four digits or more of a number without an end, cut
``2/3 = 0.66``, ``5.00 = 5.009``                    wrong         neither rounded nor cut so
``10/3 = 3``                                        wrong         only \approx rounds to integers
``3 \approx 3.02``, ``1234 \approx 1200``           holds         right to the digits shown (1200 shows two)
``100 \approx 101``, ``0.3 \approx 1/3``            wrong         not so, or further off than 5%
``\pi \cdot 25 \approx 3.14 \cdot 25``              holds         no side is a number: 0.5%
``50\% = 50``, ``5\% + 5\% = 10``                   wrong         a percent sign is a hundredth
``1/4 \cdot 100 = 25\%``                            holds         the hundredth is on the other side
``100 - 25 = 75\%``                                 unscored      100 may mean 100%
``7! = 7``, ``3 + 4 = 8!``                          wrong         as a factorial and as an exclamation at the end
``3 + 4 = 7!``                                      holds         as an exclamation
``\log 100 = 2``, ``\log 8 = 4``                    holds, wrong  a base that is not written is 10 or e
``\log 8 = 3``, ``\sin 30 = 0.5``                   unscored      right in base 2, in degrees, which are not written
``20\% of 50 = 10``, ``17 mod 5 = 2``               unscored      only signs of arithmetic are read
``0 \cdot 5 = 0``, ``x + 0 = x``                    unscored      nothing to be right or wrong about
``2x + 3 = 7``, ``5 km = 500 m``                    unscored      a condition, a definition; units
=================================================== ============= =====================================================

Each rounding is right to the digits shown, and still 0.9945 = 0.995 = 1.00 = 1.0045 = 1.005 = 1.01 walks as far as one
likes. So values that are linked by rounding, in one chain or over many lines, may not spread over more than one unit of
the last place of the coarsest decimal among them.
"""

import math
from collections.abc import Callable, Iterator
from enum import Enum
from fractions import Fraction
from functools import lru_cache, partial
from typing import NamedTuple

from grpo_verifiers.math.compare.leaf import UNKNOWN, same_value, with_base
from grpo_verifiers.math.compare.quantities import angles, quantity
from grpo_verifiers.math.grammar.parser import parse
from grpo_verifiers.math.grammar.tokens import ParseError
from grpo_verifiers.math.options import Options
from grpo_verifiers.math.tree import STRUCTURES, Node, children, map_children, number, walk
from grpo_verifiers.math.values.canon import NoFormError, TooBigError, canon, exact
from grpo_verifiers.math.values.numeric import real_value
from grpo_verifiers.math.words.vocabulary import FUNCTIONS
from grpo_verifiers.steps.equations import EquationChain

MIN_ROUNDED, MIN_CUT = 2, 4
"""Least significant digits of a rounded decimal, and of a cut one."""
FARTHEST = Fraction(1, 20)
"""Largest relative error of a rounded number: that of two digits."""
_MAX_EXPONENT = 400


class WrittenNumber(NamedTuple):
    """A number as written: its value, the unit of its last digit, how many digits are significant."""

    value: Fraction
    unit: Fraction
    digits: int


def written_number(node: Node, *, about: bool) -> WrittenNumber | None:
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
    if node[2] is None and len(significant := digits.rstrip("0")) >= MIN_ROUNDED:
        zeros = len(digits) - len(significant)
    return WrittenNumber(value * scale, abs(scale) * Fraction(10) ** (zeros - places), len(digits) - zeros)


def rounds(number: WrittenNumber, exact: Fraction, *, about: bool) -> bool:
    """True if a number is a value rounded at its last digit, up or to even, with enough digits."""
    off = abs(number.value - exact)
    enough = about or number.digits >= MIN_ROUNDED
    if off == number.unit / 2 and abs(number.value) < abs(exact) and number.value / number.unit % 2:
        return False  # a half rounds up, or to an even digit
    return enough and off <= number.unit / 2 and off <= FARTHEST * max(abs(exact), abs(number.value))


def cuts(number: WrittenNumber, exact: Fraction) -> bool:
    """True if a number is a value cut at its last digit, with enough digits."""
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


class RoundingDrift:
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


_OPTIONS = Options(evaluated=False, reduced=False, percent="value", decimals=0)
_NOT_VALUES = STRUCTURES | {"rel", "pm", "unit", "currency", "big"}
_MAX_TERMS = 400
"""Limit for multiplying out an identity in letters."""
_ABOUT = Fraction(1, 200)
"""Largest relative difference of two expressions that are about equal and no numbers."""
ZERO, ONE, HUNDRED = number(0), number(1), number(100)
LinkVerdict = tuple["Holds", Rounding | None]


class Holds(Enum):
    """The verdict on a link."""

    YES = "yes"
    NO = "no"
    NOTHING = "nothing"  # it cannot be wrong, or cannot be decided


class Link(NamedTuple):
    """Two sides of a sign, the verdict on them, the offset of the sign, and the rounding of one side to the other."""

    holds: Holds
    key: frozenset[Node]
    text: str
    at: int
    rounding: Rounding | None


def links(chain: EquationChain, *, rounding: bool) -> Iterator[Link]:
    """The links of a chain that can be judged; with ``rounding`` a decimal may be a rounded value."""
    nodes = [_read(side) for side in chain.sides]
    for at, sign in enumerate(chain.signs):
        first, second = nodes[at], nodes[at + 1]
        if first is None or second is None or sign == "?":
            continue
        left, right = angles(first, second) or (quantity(first)[0], quantity(second)[0])
        if any(top[0] in _NOT_VALUES for side in (left, right) for top in walk(side)):
            continue
        last = at + 1 == len(chain.signs)
        holds, rounded = _holds(left, right, sign, rounding=rounding)
        if holds is Holds.NO and last and right[0] == "!":  # "5 + 2 = 7!" is an exclamation
            holds, rounded = _holds(left, right[1], sign, rounding=rounding)
        if holds is Holds.NO and at == 0 and chain.dash and (signed := _read(f"-{chain.sides[0]}")) is not None:
            again = _holds(quantity(signed)[0], right, sign, rounding=rounding)
            holds, rounded = again if again[0] is Holds.YES else (holds, rounded)
        if holds is Holds.NO and last and chain.cut and _may_go_on(left, right):
            holds = Holds.NOTHING
        text = f"{chain.sides[at]} {'=' if sign == '=' else '≈'} {chain.sides[at + 1]}"
        yield Link(holds, frozenset({plain(left), plain(right)}), text, chain.at[at], rounded)


def _read(side: str) -> Node | None:
    if not side:
        return None
    try:
        return parse(side)
    except (ParseError, RecursionError):
        return None


@lru_cache(maxsize=4096)
def _holds(left: Node, right: Node, sign: str, *, rounding: bool) -> LinkVerdict:
    nothing = Holds.NOTHING, None
    if plain(left) == plain(right) or _terms(left) + _terms(right) > _MAX_TERMS:
        return nothing
    for node in (left, right):
        try:
            canon(node)
        except TooBigError:
            return nothing  # too large for a calculation
        except NoFormError:
            pass
    if is_symbolic(left) or is_symbolic(right):
        # An identity holds; any other equation may be a definition or a condition.
        return (Holds.YES, None) if sign == "=" and same_value(left, right, _OPTIONS)[0] else nothing

    compare = _about if sign == "~=" else partial(_equal, rounding=rounding)
    result = compare(left, right)
    return result if result[0] is not Holds.NO else _read_otherwise(left, right, compare)


def _equal(left: Node, right: Node, *, rounding: bool) -> LinkVerdict:
    outcome, reason = same_value(left, right, _OPTIONS)
    if reason == UNKNOWN:
        return Holds.NOTHING, None
    if outcome:
        return Holds.YES, None
    result = _find_rounding(left, right, about=False) if rounding else None
    return (Holds.NO, None) if result is None else (Holds.YES, result)


def _about(left: Node, right: Node) -> LinkVerdict:
    first, second = _value(left), _value(right)
    if first is None or second is None:
        return Holds.NOTHING, None
    if first == second:
        return Holds.YES, None
    result = _find_rounding(left, right, about=True)
    if result is None and written_number(left, about=True) is None and written_number(right, about=True) is None:
        unit = _ABOUT * max(abs(first), abs(second))
        result = Rounding(first, second, unit) if abs(first - second) <= unit else None
    return (Holds.NO, None) if result is None else (Holds.YES, result)


def _find_rounding(left: Node, right: Node, *, about: bool) -> Rounding | None:
    for side, rounded in ((left, right), (right, left)):
        value, decimal = _value(side), written_number(rounded, about=about)
        if value is None or decimal is None:
            continue
        endless = (number := exact(side)) is None or 10**60 % number.denominator != 0
        if rounds(decimal, value, about=about) or (endless and cuts(decimal, value)):
            return Rounding(value, decimal.value, decimal.unit)
    return None


def _read_otherwise(left: Node, right: Node, compare: Callable[[Node, Node], LinkVerdict]) -> LinkVerdict:
    """The verdict on a link that is wrong as written, by other readings of a percent sign, a base or degrees."""
    no: LinkVerdict = Holds.NO, None
    for side, other in ((left, right), (right, left)):
        if side[0] == "%" and other[0] != "n" and HUNDRED in walk(other):
            as_unit = compare(side[1], other)[0]
            if as_unit is Holds.YES and not (other[0] == "*" and HUNDRED in other):
                as_unit = Holds.NOTHING
            return as_unit, None
    if any(top[:2] == ("log", None) for node in (left, right) for top in walk(node)):
        ten, two = (compare(with_base(left, base), with_base(right, base)) for base in (10, 2))
        return ten if ten[0] is not Holds.NO else (Holds.NOTHING, None) if two[0] is Holds.YES else two
    degrees = _in_degrees(left), _in_degrees(right)
    result = compare(*degrees) if degrees != (left, right) else no
    return (Holds.NOTHING, None) if result[0] is Holds.YES else result


def _in_degrees(node: Node) -> Node:
    if node[0] == "f" and node[1] in {"sin", "cos", "tan"} and len(node[2]) == 1 and node[2][0][0] == "n":
        return ("f", node[1], (("deg", node[2][0]),))
    return map_children(node, _in_degrees)


def _terms(node: Node) -> float:
    """An upper bound on the terms of an expression in letters after multiplying out."""
    if not is_symbolic(node):
        return 1.0
    kind = node[0]
    if kind == "^":
        power = node[2][1] if node[2][0] == "n" else Fraction(1)
        return float(min(_terms(node[1]) ** min(float(abs(power)), 64.0), 1e9))
    counts = [_terms(part) for part in children(node)]
    if kind == "*":
        return min(math.prod(counts), 1e9)
    return min(sum(counts, 1.0), 1e9)


def is_symbolic(node: Node) -> bool:
    """True if an expression has variables."""
    for top in walk(node):
        if top[0] == "v" and top[1] not in {"pi", "inf"}:
            return True
        if top[0] == "f" and top[1] not in FUNCTIONS:
            return True
    return False


def plain(node: Node) -> Node:
    """An expression in a plain form: terms in order, without added zeros and factors of one."""
    node = map_children(node, plain)
    kind = node[0]
    if kind == "n":
        return number(node[1])
    if kind == "-" and node[1][0] == "n":
        return number(-node[1][1])
    if kind == "-" and node[1][0] == "-":
        return node[1][1]  # type: ignore[no-any-return]  # a node
    if kind in {"+", "*"}:
        if kind == "*" and ZERO in node[1:] and all(part[0] == "n" for part in node[1:]):
            return ZERO
        idle = ZERO if kind == "+" else ONE
        parts = sorted((part for part in node[1:] if part != idle), key=repr)
        return idle if not parts else parts[0] if len(parts) == 1 else (kind, *parts)
    if kind in {"/", "^"} and node[2] == ONE:
        return node[1]  # type: ignore[no-any-return]  # a node
    return ZERO if kind == "/" and node[1] == ZERO and node[2][0] == "n" and node[2] != ZERO else node


def shape(node: Node) -> Node:
    """An expression with every number alike: ``3 + 4`` and ``5 + 1`` have one shape, ``3 + 4 + 5`` has another."""
    if node[0] == "n":
        return ONE
    node = map_children(node, shape)
    return (node[0], *sorted(node[1:], key=repr)) if node[0] in {"+", "*"} else node


def _value(node: Node) -> Fraction | None:
    """The value of an expression: exact where it is rational, else in floating point."""
    if (value := exact(node)) is not None:
        return value
    approximate = real_value(node)
    return None if approximate is None else Fraction(approximate)


def _may_go_on(left: Node, right: Node) -> bool:
    """True if a number at the very end of a text is the beginning of the right one: ``12*3=3`` cut before its 6."""
    value = _value(left)
    negative, digits = right[0] == "-", right[1] if right[0] == "-" else right
    if value is None or digits[0] != "n" or (value < 0) != negative:
        return False
    places = digits[2] or 0
    value = abs(value)
    if digits[2] is not None:
        return bool(value * 10**places // 1 == digits[1] * 10**places and value != digits[1])
    integer, shown = str(value.numerator // value.denominator), str(digits[1].numerator)
    return bool(integer.startswith(shown) and value != digits[1])
