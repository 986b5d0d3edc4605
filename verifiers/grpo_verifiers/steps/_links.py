"""Whether one link of a chain of equations holds: exact arithmetic first, then numbers, many digits in a worker."""

import math
from collections.abc import Iterator
from enum import Enum
from fractions import Fraction
from functools import lru_cache
from typing import NamedTuple

from grpo_verifiers.math.canon import canon
from grpo_verifiers.math.compare import quantity
from grpo_verifiers.math.forms import NotAlgebraicError, TooBigError, UndefinedError, rational
from grpo_verifiers.math.leaf import quick
from grpo_verifiers.math.numeric import real_value
from grpo_verifiers.math.options import Options
from grpo_verifiers.math.parse import parse
from grpo_verifiers.math.precise import precise
from grpo_verifiers.math.relations import APPROXIMATELY
from grpo_verifiers.math.tokens import ParseError
from grpo_verifiers.math.tree import STRUCTURES, Node, children, number, rebuilt, walk
from grpo_verifiers.math.words import FUNCTIONS
from grpo_verifiers.steps._equations import Chain

_OPTIONS = Options(evaluated=False, reduced=False)
_NOT_VALUES = STRUCTURES | {"rel", "pm", "unit", "currency", "big"}
_MIN_PLACES = 2
_MAX_TERMS = 400
"""Of an identity in letters: more are not multiplied out."""
ZERO, ONE = number(0), number(1)


class Holds(Enum):
    """What is known of a link."""

    YES = "yes"
    NO = "no"
    NOTHING = "nothing"  # it says nothing that could be wrong, or nothing that can be told
    OPEN = "open"  # a worker can tell


class Link(NamedTuple):
    """Two sides of a sign, and what is known of them."""

    holds: Holds
    key: frozenset[Node]
    text: str


def links(chain: Chain, *, rounding: bool, full: bool) -> Iterator[Link]:
    """The links of a chain that can be looked at.

    Args:
        chain: as it is written.
        rounding: a decimal of two places or more may stand for what it is the rounding of.
        full: decide what takes many digits.
    """
    nodes = [_read(side) for side in chain.sides]
    for at, sign in enumerate(chain.signs):
        left, right = nodes[at], nodes[at + 1]
        if left is None or right is None or sign == "?":
            continue
        last = at + 1 == len(chain.signs)
        holds = _holds(left, right, sign, rounding=rounding, full=full)
        if holds is Holds.NO and last and right[0] == "!":  # "5 + 2 = 7!" is an exclamation
            holds = _holds(left, right[1], sign, rounding=rounding, full=full)
        if holds is Holds.NO and at == 0 and chain.dash and (signed := _read(f"-{chain.sides[0]}")) is not None:
            again = _holds(signed, right, sign, rounding=rounding, full=full)
            holds = again if again is Holds.YES else holds
        if holds is Holds.NO and last and chain.cut and _may_go_on(left, right):
            holds = Holds.NOTHING
        shown = f"{chain.sides[at]} {'=' if sign == '=' else '≈'} {chain.sides[at + 1]}"
        yield Link(holds, frozenset({plain(left), plain(right)}), shown)


def _read(side: str) -> Node | None:
    if not side:
        return None
    try:
        node = quantity(parse(side))[0]
    except (ParseError, RecursionError):
        return None
    kinds = {top[0] for top in walk(node)}
    return None if kinds & _NOT_VALUES else node


@lru_cache(maxsize=4096)
def _holds(left: Node, right: Node, sign: str, *, rounding: bool, full: bool) -> Holds:
    if plain(left) == plain(right) or _terms(left) + _terms(right) > _MAX_TERMS:
        return Holds.NOTHING
    for node in (left, right):
        try:
            canon(node)
        except TooBigError:
            return Holds.NOTHING  # nobody computes that
        except (UndefinedError, NotAlgebraicError):
            pass
    if is_symbolic(left) or is_symbolic(right):
        # As an identity it is right; if it is none, it may be a definition or a condition.
        return Holds.YES if sign == "=" and quick(left, right, _OPTIONS)[0] else Holds.NOTHING
    if sign == "~=":
        values = real_value(left), real_value(right)
        if values[0] is None or values[1] is None:
            return Holds.NOTHING
        return _as_holds(abs(values[0] - values[1]) <= APPROXIMATELY * max(map(abs, values)))  # type: ignore[arg-type]  # no None left
    outcome = (precise if full else quick)(left, right, _OPTIONS)[0]
    if outcome is False and rounding and (_rounds(left, right) or _rounds(right, left)):
        outcome = True
    if outcome is False and any(top[:2] == ("log", None) for node in (left, right) for top in walk(node)):
        return Holds.NOTHING  # of a base that is not written
    if outcome is None:
        return Holds.NOTHING if full else Holds.OPEN
    return _as_holds(outcome)


def _terms(node: Node) -> float:
    """At most so many terms in the letters of an expression, once it is multiplied out."""
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


def _as_holds(outcome: bool) -> Holds:
    return Holds.YES if outcome else Holds.NO


def is_symbolic(node: Node) -> bool:
    """Whether an expression has letters that stand for something."""
    for top in walk(node):
        if top[0] == "v" and top[1] not in {"pi", "inf"}:
            return True
        if top[0] == "f" and top[1] not in FUNCTIONS:
            return True
    return False


def plain(node: Node) -> Node:
    """An expression without what changes nothing: the order of terms, zeros added, factors of one."""
    node = rebuilt(node, plain)
    kind = node[0]
    if kind == "n":
        return number(node[1])
    if kind == "-" and node[1][0] == "n":
        return number(-node[1][1])
    if kind == "-" and node[1][0] == "-":
        return node[1][1]  # type: ignore[no-any-return]  # a node
    if kind in {"+", "*"}:
        idle = ZERO if kind == "+" else ONE
        parts = sorted((part for part in node[1:] if part != idle), key=repr)
        return idle if not parts else parts[0] if len(parts) == 1 else (kind, *parts)
    if kind in {"/", "^"} and node[2] == ONE:
        return node[1]  # type: ignore[no-any-return]  # a node
    return node


def _decimal(node: Node) -> tuple[Fraction, int] | None:
    sign = 1
    if node[0] == "-":
        sign, node = -1, node[1]
    return (sign * node[1], node[2]) if node[0] == "n" and node[2] is not None else None


def _exact(node: Node) -> Fraction | None:
    try:
        value = rational(canon(node))
    except (TooBigError, UndefinedError, NotAlgebraicError):
        value = None
    if value is not None:
        return value
    found = real_value(node)
    return None if found is None else Fraction(found)


def _rounds(exact: Node, shown: Node) -> bool:
    """Whether a decimal is a value rounded or cut at its last place."""
    decimal, value = _decimal(shown), _exact(exact)
    if decimal is None or value is None or decimal[1] < _MIN_PLACES:
        return False
    unit = Fraction(1, 10 ** decimal[1])
    beyond = value - decimal[0] if value >= 0 else decimal[0] - value
    return -unit / 2 <= beyond < unit


def _may_go_on(left: Node, right: Node) -> bool:
    """Whether a number at the very end of a text is the beginning of the right one: ``12*3=3`` cut before its 6."""
    value = _exact(left)
    negative, digits = right[0] == "-", right[1] if right[0] == "-" else right
    if value is None or digits[0] != "n" or (value < 0) != negative:
        return False
    places = digits[2] or 0
    value = abs(value)
    if digits[2] is not None:
        return bool(value * 10**places // 1 == digits[1] * 10**places and value != digits[1])
    whole, shown = str(value.numerator // value.denominator), str(digits[1].numerator)
    return bool(whole.startswith(shown) and value != digits[1])
