r"""Solutions with an integer parameter: ``x = 5k + 2``, ``x = 5n - 3, n \in \mathbb{Z}`` and ``x \equiv 2 \pmod 5``."""

from typing import NamedTuple

from grpo_verifiers.math.outcome import Outcome, settled
from grpo_verifiers.math.tree import Node, names, number, substitute, walk
from grpo_verifiers.math.values.canon import canon
from grpo_verifiers.math.values.forms import (
    Form,
    NoFormError,
    negative,
    plus,
    quotient,
    rational,
)

_COUNTERS = frozenset("kmn")
_LETTERS = frozenset("kmntjlpqshKMN")


class Family(NamedTuple):
    """Values at equal distances: ``start`` is one of them, ``step`` further the next.

    ``name`` is the unknown that has them, if one was given; ``parameter`` the letter that runs through them, and
    ``integral`` if it is said to be an integer.
    """

    name: Node | None
    start: Form
    step: Form
    parameter: str
    integral: bool


def compare_families(gold: Node, answer: Node) -> Outcome | None:
    """Compare two answers of which one is a family of values; None where they are something else."""
    left, right = _family(gold), _family(answer)
    if (left is None and right is None) or gold == answer:
        return None
    classes = [_is_class(node) for node in (gold, answer)]
    if any(classes) and None in (left, right):
        return False, "a residue class on one side only"
    return _same(left, right) if left and right else None


def _same(gold: Family, answer: Family) -> Outcome | None:
    integral = gold.integral or answer.integral
    if not integral and gold.parameter == answer.parameter:
        return None  # a formula in a letter that may be any number
    name, other = gold.name, answer.name
    if name is not None and other is not None and name != other:
        return False, "another variable"
    if name is not None and other is not None and gold.parameter != answer.parameter and _counts(name, gold.parameter):
        return False, "another variable"
    try:
        ratio, shift = (
            rational(quotient(answer.step, gold.step)),
            rational(quotient(plus(answer.start, negative(gold.start)), gold.step)),
        )
    except NoFormError:
        return None
    if not integral:
        return settled(ratio == 1 and shift == 0, "another formula")
    if ratio is None or abs(ratio) != 1 or shift is None or shift.denominator != 1:
        return False, "another family of values"
    return True, ""


def _counts(name: Node, parameter: str) -> bool:
    """True if a name has the parameter as its subscript: ``a_n`` is no formula in ``m``."""
    return bool(parameter) and str(name[1]).partition("_")[2].strip("{}") == parameter


def is_angle_family(node: Node) -> bool:
    r"""True if a sum is one of angles with an integer in it: ``\frac{\pi}{2} + n\pi``."""
    return bool(node[0] == "+" and names(node) <= _COUNTERS and all(("v", "pi") in walk(part) for part in node[1:]))


def _is_class(node: Node) -> bool:
    return node[:2] == ("f", "mod") or (node[0] == "rel" and node[1][-1][:2] == ("f", "mod"))


def _family(node: Node) -> Family | None:
    """The family that an answer is; None for anything else."""
    parameter = ""
    if node[0] in {"list", "and"} and len(node) == 3 and node[2][0] == "rel" and node[2][2] == "in":
        (symbol, domain), node = node[2][1], node[1]
        if domain != ("v", "mathbb Z") or symbol[0] != "v":
            return None
        parameter = symbol[1]
    name = None
    if node[0] == "rel" and node[2] == "=" and node[1][0][0] == "v":
        name, node = node[1]
    elif node[0] == "rel" or not (parameter or _is_class(node) or is_angle_family(node)):
        return None
    try:
        if _is_class(node):
            return Family(name, canon(node[2][0]), canon(node[2][1]), "", integral=True)
        found = names(node)
        if (
            len(found) != 1
            or not found <= ({parameter} if parameter else _LETTERS)
            or name in {("v", each) for each in found}
        ):
            return None
        zero, one, two = (canon(substitute(node, ("v", next(iter(found))), number(value))) for value in range(3))
        step = plus(one, negative(zero))
        straight = plus(two, negative(plus(zero, plus(step, step))))
        if straight[0] or not step[0] or rational(step) in {1, -1}:
            return None
        return Family(name, zero, step, found.pop(), integral=bool(parameter) or (name is None and bool(zero[0])))
    except NoFormError:
        return None
