r"""Residue classes: ``x \equiv 2 \pmod 5`` and ``x = 5k + 2``."""

from fractions import Fraction

from grpo_verifiers.math.canon import canon
from grpo_verifiers.math.forms import ONE, NotAlgebraicError, TooBigError, UndefinedError
from grpo_verifiers.math.tree import Node, names, number

_PARAMETERS = frozenset("kmntjlpqsrhKMN")
_INTEGERS = frozenset({"mathbb Z"})


def as_residue(node: Node) -> Node:
    """``x = 5k + 2`` as ``x = 2 mod 5``, with or without the remark that k is an integer; anything else stays."""
    if node[0] in {"list", "and"} and len(node) == 3 and node[2][0] == "rel" and node[2][2] == "in":
        inner, remark = node[1], node[2][1]
        if remark[1][0] == "v" and remark[1][1] in _INTEGERS and remark[0] in _variables(inner):
            return as_residue(inner)
        return node
    if node[0] != "rel" or node[2] != "=" or node[1][0][0] != "v":
        return node
    value = node[1][1]
    found = names(value)
    if len(found) != 1 or not found <= _PARAMETERS or node[1][0][1] in found:
        return node
    try:
        above, below = canon(value)
    except (NotAlgebraicError, UndefinedError, TooBigError):
        return node
    linear = (1, 0, ((next(iter(found)), 1),))
    if below != {ONE: Fraction(1)} or not set(above) <= {ONE, linear} or linear not in above:
        return node
    slope, start = abs(above[linear]), above.get(ONE, Fraction(0))
    if slope.denominator != 1 or start.denominator != 1 or slope < 2:
        return node
    return ("rel", (node[1][0], ("f", "mod", (number(start % slope), number(slope)))), "=")


def _variables(node: Node) -> set[Node]:
    return {("v", name) for name in names(node)}


def is_residue(node: Node) -> bool:
    """Whether an answer is a residue class or says that something is in one."""
    return node[:2] == ("f", "mod") or (node[0] == "rel" and node[1][-1][:2] == ("f", "mod"))
