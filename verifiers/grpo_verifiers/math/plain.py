r"""Plain numbers, which most answers are: read without the grammar, told apart without canonical forms.

``-42``, ``0.75``, ``3/4`` and ``-\frac{3}{4}`` get the tree that the grammar gives them.
"""

import re
from fractions import Fraction

from grpo_verifiers.math.tree import Node

_PLAIN = re.compile(
    r"(-?)(?:([0-9]{1,40})(?:\.([0-9]{1,40})|/([0-9]{1,40}))?|\\[dt]?frac\{([0-9]{1,40})\}\{([0-9]{1,40})\})"
)


def plain(text: str) -> Node | None:
    """The tree of an integer, a decimal or a fraction of integers; None for everything else."""
    match = _PLAIN.fullmatch(text)
    if match is None:
        return None
    sign, whole, decimals, below, top, bottom = match.groups()
    if decimals:
        scale = 10 ** len(decimals)
        node: Node = ("n", Fraction(int(whole) * scale + int(decimals), scale), len(decimals))
    elif whole and below is None:
        node = ("n", Fraction(int(whole)), None)
    else:
        node = ("/", ("n", Fraction(int(whole or top)), None), ("n", Fraction(int(below or bottom)), None))
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
            return Fraction(top[1].numerator, bottom[1].numerator) if _whole(top, bottom) else None
    return None


def _whole(*nodes: Node) -> bool:
    return all(node[1].denominator == 1 for node in nodes)
