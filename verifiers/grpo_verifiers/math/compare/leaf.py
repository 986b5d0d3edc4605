r"""Equality of two expressions where exact arithmetic decides it at once, and decimals that approximate a value.

An irrational or repeating value is never written out, so a decimal may replace it: ``0.3333`` for ``\frac13``,
``1.4142`` for ``\sqrt2``, on either side. A terminating value (an integer, ``\frac18``, another decimal) has an exact
decimal, and only that counts; two long decimals are the exception, for the shorter is then a rounding of the longer.
"""

from collections.abc import Callable, Iterable
from fractions import Fraction
from itertools import product
from typing import NamedTuple

from grpo_verifiers.math.options import Options
from grpo_verifiers.math.tree import STRUCTURES, Node, map_children, number, survey, walk
from grpo_verifiers.math.values.canon import (
    NoFormError,
    NotAlgebraicError,
    TooBigError,
    UndefinedError,
    canon,
    exact,
    same,
)
from grpo_verifiers.math.values.numeric import agree, real_value
from grpo_verifiers.math.values.work import is_final, is_reduced, remaining_work

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


def approximates(gold: Node, answer: Node, digits: int) -> bool:
    """True if one side is a decimal of at least ``digits`` significant digits that approximates the other."""
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
    """True if a decimal is a value (with an error bound) rounded to its last digit or cut after it."""
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


Outcome = tuple[bool, str]
Equal = Callable[[Node, Node], Outcome]


def outcome_of(same: bool, reason: str) -> Outcome:
    """An outcome, with the reason only if it is not True."""
    return same, "" if same else reason


def every(outcomes: Iterable[Outcome]) -> Outcome:
    """The first outcome that is False, else True."""
    return next((outcome for outcome in outcomes if not outcome[0]), (True, ""))


_TEN = number(10)
MAX_SHOWN = 30
UNKNOWN = "not shown to be equal"


def show(node: Node) -> str:
    """An expression in a few characters, for reasons."""
    if node[0] == "n":
        value, places = node[1], node[2]
        text = str(value) if places is None else f"{float(value):.12g}"
    else:
        try:
            text = "" if (value := exact(node)) is None else str(value)
        except ValueError:  # more digits than Python writes out
            text = ""
    return _short(text)


def _short(text: str) -> str:
    return text if text and len(text) <= MAX_SHOWN else "the answer"


def exact_value(node: Node) -> Fraction | None:
    """The value of an integer or a fraction of integers, with or without a sign; None for everything else."""
    if node[0] == "-":
        node = node[1]
        value = None if node[0] == "-" else exact_value(node)
        return None if value is None else -value
    if node[0] == "n":
        return None if node[2] is not None else node[1]
    if node[0] == "/":
        top, bottom = node[1], node[2]
        if top[0] == bottom[0] == "n" and top[2] is None and bottom[2] is None and bottom[1]:
            return Fraction(top[1], bottom[1])
    return None


def unequal_numbers(gold: Node, answer: Node) -> Outcome | None:
    """The verdict on integers and fractions of integers with different values; None in every other case."""
    if (value := exact_value(answer)) is None or (expected := exact_value(gold)) is None or value == expected:
        return None
    return False, _difference(_short(str(value)), _short(str(expected)))


def _difference(answer: str, gold: str) -> str:
    return f"{answer} is not {gold}" if answer != gold else "not equal"


def same_value(gold: Node, answer: Node, options: Options) -> Outcome:
    """True if two expressions are equal and the answer has the form that the options require."""
    if gold == answer:
        return True, ""
    gold, answer = same_logarithms(gold, answer), same_logarithms(answer, gold)
    if gold == answer:
        return True, ""
    in_gold, in_answer = survey(gold), survey(answer)
    if "inf" in in_gold.variables or "inf" in in_answer.variables:
        return False, "infinity is not the same"
    if not STRUCTURES.isdisjoint(in_answer.kinds) and STRUCTURES.isdisjoint(in_gold.kinds):
        return False, "a different kind of answer"
    for node, who in ((answer, "the answer"), (gold, "the gold")):
        try:
            canon(node)
        except TooBigError as error:
            return False, f"{who} has {error}"
        except UndefinedError as error:
            return False, f"{who} has no value: {error}"
        except NotAlgebraicError:
            pass
    if not (equal := _equal(gold, answer, options)):
        return False, UNKNOWN if equal is None else _difference(show(answer), show(gold))
    problem = form_problem(gold, answer, options)
    return not problem, problem


def same_logarithms(node: Node, other: Node) -> Node:
    """Give logarithms without a base the base 10 if the other side writes it."""
    if "log" not in survey(node).kinds or not any(top[0] == "log" and top[1] == _TEN for top in walk(other)):
        return node
    return with_base(node, 10)


def with_base(node: Node, base: int) -> Node:
    """The tree with a base for the logarithms that have none."""
    if node[:2] == ("log", None):
        return ("log", number(base), with_base(node[2], base))
    return map_children(node, lambda part: with_base(part, base))


def form_problem(gold: Node, answer: Node, options: Options) -> str:
    """The reason why a right value does not have the form that the options require; empty if it has."""
    if options.evaluated and not remaining_work(gold):
        if is_final(gold) and not is_final(answer) and not decimal_of(gold):
            return remaining_work(answer) or "the gold is a number, the answer an expression"
        if left := remaining_work(answer):
            return left
    if options.reduced and not is_reduced(answer) and is_reduced(gold):
        return "a fraction that is not in lowest terms"
    return ""


def _equal(gold: Node, answer: Node, options: Options) -> bool | None:
    if "big" in (gold[0], answer[0]):
        return False
    readings = [gold], [answer]
    if options.percent == "either":
        # a percent sign is a hundredth or, where only one side has it, a unit that may be left out
        if answer[0] == "%" and not _has_percent(gold):
            readings[1].append(answer[1])
        if gold[0] == "%" and not _has_percent(answer):
            readings[0].append(gold[1])
    outcomes = [_equal_as_read(*pair, options) for pair in product(*readings)]
    return True if True in outcomes else None if None in outcomes else False


def _has_percent(node: Node) -> bool:
    return "%" in survey(node).kinds


def _equal_as_read(gold: Node, answer: Node, options: Options) -> bool | None:
    try:
        decided = same(canon(gold), canon(answer))
    except NoFormError:
        decided = None
    if decided or (options.decimals and approximates(gold, answer, options.decimals)):
        return True
    return agree(gold, answer) if decided is None else False
