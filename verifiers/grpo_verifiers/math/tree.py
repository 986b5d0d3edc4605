r"""The syntax tree of an answer: nested tuples, so that equal trees compare equal and can be cached.

======================== ==========================================================================
``("n", value, places)`` number: a Fraction; places: digits after the point, None for an integer
``("big", digits)``      a number too long to compute with, canonical digits
``("v", name)``          variable or constant by name (``pi``, ``e``, ``i``, ``inf`` are constants)
``("+", a, b, ...)``     sum; ``("*", ...)`` product; ``("/", a, b)``; ``("^", a, b)``; ``("-", a)``
``("pm", a, b)``         a plus or minus b; a is None for a sign
``("root", a, n)``       n-th root; ``("abs", a)``; ``("!", a)``; ``("binom", n, k)``
``("mixed", n, f)``     mixed number: ``3\frac{1}{2}``
``("%", a)``             percentage; ``("deg", a)`` degrees; ``("base", digits, base)``
``("f", name, args)``    function call; ``("log", base, a)``
``("unit", a, unit)``    quantity; ``("text", words)``; ``("ratio", a, b, ...)``
``("list", ...)``        items separated by commas, "and", "or", in no order
``("paren", ...)``       ``(a, b)``: a tuple or an open interval
``("span", "[", a, b, ")")``  interval with at least one square bracket
``("set", ...)``         ``\{a, b\}``; ``("cup", ...)``; ``("cap", ...)``; ``("minus", a, b)``
``("matrix", rows)``     rows are ``("row", a, ...)``; ``("cases", rows)``
``("builder", a, c)``     members a under a condition c: ``\{2x \mid x > 3\}``
``("and", ...)``         conditions on one unknown that hold together; ``("or", ...)``
``("rel", terms, ops)``  chain of relations: the three terms and ``"< ="`` of ``a < b = c``
======================== ==========================================================================
"""

from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Any, NamedTuple

Node = tuple[Any, ...]
# Kinds that are no single value.
STRUCTURES = frozenset({
    "list", "set", "paren", "span", "cup", "cap", "minus", "matrix", "cases", "ratio", "text", "base", "and",
    "or", "builder",
})  # fmt: skip
CONSTANTS = frozenset({"pi", "e", "i", "inf"})
_LEAVES = frozenset({"n", "big", "v"})
INFINITY: Node = ("v", "inf")
OTHERWISE: Node = ("text", "otherwise")


def number(value: int | Fraction) -> Node:
    """An exact number as a node."""
    return ("n", Fraction(value), None)


def fraction(value: Fraction) -> Node:
    """The node of a rational number: an integer or a quotient of integers, perhaps with a sign."""
    size = abs(value)
    node = number(size) if size.denominator == 1 else ("/", number(size.numerator), number(size.denominator))
    return ("-", node) if value < 0 else node


def children(node: Node) -> list[Node]:
    """The nodes right below a node."""
    nodes: list[Node] = []
    if node[0] in _LEAVES:
        return nodes
    for part in node[1:]:
        if isinstance(part, tuple) and part:
            if isinstance(part[0], tuple):
                nodes += part
            else:
                nodes.append(part)
    return nodes


def map_children(node: Node, change: Callable[[Node], Node]) -> Node:
    """The node with each child replaced by ``change(child)``."""
    return tuple(_map_part(part, change) for part in node)


def _map_part(part: Any, change: Callable[[Node], Node]) -> Any:
    if not isinstance(part, tuple) or not part:
        return part
    return change(part) if isinstance(part[0], str) else tuple(change(each) for each in part)


def substitute(node: Node, old: Node, new: Node) -> Node:
    """The node with one expression in place of another."""

    def change(part: Node) -> Node:
        return new if part == old else map_children(part, change)

    return change(node)


def walk(node: Node) -> Iterator[Node]:
    """A node and all below it."""
    waiting = [node]
    while waiting:
        top = waiting.pop()
        yield top
        if top[0] not in _LEAVES:
            waiting += children(top)


class Survey(NamedTuple):
    """The kinds of all nodes of a tree, and the names of all variables (constants included)."""

    kinds: set[str]
    variables: set[str]


def survey(node: Node) -> Survey:
    """Look at every node of a tree once."""
    nodes = list(walk(node))
    return Survey({top[0] for top in nodes}, {top[1] for top in nodes if top[0] == "v"})


def is_deeper(node: Node, limit: int) -> bool:
    """True if a tree has more than ``limit`` levels."""
    waiting = [(node, 1)]
    while waiting:
        top, level = waiting.pop()
        if level > limit:
            return True
        if top[0] not in _LEAVES:
            waiting += [(part, level + 1) for part in children(top)]
    return False


def names(node: Node) -> set[str]:
    """The variables in a tree, constants excluded."""
    return {top[1] for top in walk(node) if top[0] == "v" and top[1] not in CONSTANTS}
