r"""Plain numbers, which most answers are: read without the grammar, compared without canonical forms.

``-42``, ``0.75``, ``3/4`` and ``-\frac{3}{4}`` get the tree that the grammar gives them.
"""

import re
from fractions import Fraction

from grpo_verifiers.math.grammar.tokens import ParseError
from grpo_verifiers.math.tree import Node
from grpo_verifiers.math.words.vocabulary import MAX_DIGITS

_PLAIN = re.compile(
    r"(-?)(?:([0-9]{1,40})(?:\.([0-9]{1,40})|/([0-9]{1,40}))?|\\[dt]?frac\{([0-9]{1,40})\}\{([0-9]{1,40})\})"
)


def plain(text: str) -> Node | None:
    """The tree of an integer, a decimal or a fraction of integers; None for everything else."""
    match = _PLAIN.fullmatch(text)
    if match is None:
        return None
    sign, integer, decimals, below, top, bottom = match.groups()
    if below or bottom:
        node: Node = ("/", plain_number(integer or top), plain_number(below or bottom))
    else:
        node = plain_number(f"{integer}.{decimals or ''}")
    return ("-", node) if sign else node


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


def plain_number(text: str) -> Node:
    """A number as written, with its decimal places."""
    integer, point, decimals = text.partition(".")
    if len(text) > MAX_DIGITS:
        if point:
            raise ParseError(f"a decimal of more than {MAX_DIGITS} digits")
        return ("big", integer.lstrip("0") or "0")
    if decimals:
        return ("n", Fraction(int(integer + decimals), 10 ** len(decimals)), len(decimals))
    return ("n", Fraction(int(integer)), None)
