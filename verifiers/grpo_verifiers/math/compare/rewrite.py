r"""Trees rewritten before they are compared: plus-or-minus signs, vectors, transposed matrices.

A vector is ``(1, 2)``, a column or row of a matrix, or a sum of unit vectors such as ``3\mathbf{i} - 4\mathbf{j}``.
"""

from grpo_verifiers.math.tree import Node, names, number, rebuilt, walk, weight
from grpo_verifiers.reading.budget import spend

MAX_SIGNS = 3


def expand_signs(node: Node) -> Node:
    r"""``a \pm b`` as the list of its two values."""
    if node[0] in {"list", "set"}:
        items: list[Node] = []
        for part in node[1:]:
            grown = expand_signs(part)
            items.extend(grown[1:] if grown[0] == "list" and part[0] != "list" else [grown])
        return (node[0], *items)
    signs = sum(top[0] == "pm" for top in walk(node))
    if not 0 < signs <= MAX_SIGNS:
        return node
    spend(2**signs * weight(node))
    variants = [node]
    for _ in range(signs):
        variants = [_sign(each, plus=plus) for each in variants for plus in (True, False)]
    return ("list", *dict.fromkeys(variants))


def _sign(node: Node, *, plus: bool) -> Node:
    """The tree with its first plus-or-minus sign decided."""
    done = False

    def visit(part: Node) -> Node:
        nonlocal done
        if done:
            return part
        if part[0] == "pm":
            done = True
            left, right = part[1], part[2] if plus else ("-", part[2])
            return right if left is None else ("+", left, right)
        return rebuilt(part, visit)

    return visit(node)


_UNITS = ("i", "j", "k")
_ACCENTS = ("", "hat ", "vec ", "bar ")


def as_tuple(node: Node, size: int) -> Node:
    """A vector of so many parts as a tuple; anything else stays."""
    if node[0] == "matrix":
        if len(node) == 2:
            return ("paren", *node[1][1:])
        return ("paren", *(row[1] for row in node[1:])) if all(len(row) == 2 for row in node[1:]) else node
    if node[0] == "f" and len(node[1]) == 1 and node[1].isupper() and node[2][0][0] == "paren":
        return ("paren", *node[2][0][1:])  # the point P(1, 2)
    if node[0] in {"+", "*", "-", "v"} and size in {2, 3}:
        return _of_units(node, size) or node
    return node


def _of_units(node: Node, size: int) -> Node | None:
    """A sum of multiples of unit vectors; None for other sums."""
    marks = names(node)
    accent = next((mark for mark in _ACCENTS if {f"{mark}j", f"{mark}k"} & marks), None)
    if accent is None:
        return None
    basis = [("v", accent + unit) for unit in _UNITS[:size]]
    parts: dict[Node, Node] = {}
    for term in node[1:] if node[0] == "+" else (node,):
        found = _coefficient(term, basis)
        if found is None or found[0] in parts:
            return None
        parts[found[0]] = found[1]
    return ("paren", *(parts.get(unit, number(0)) for unit in basis))


def _coefficient(term: Node, basis: list[Node]) -> tuple[Node, Node] | None:
    """The unit vector of a term and what multiplies it."""
    if term[0] == "-":
        inner = _coefficient(term[1], basis)
        return inner and (inner[0], ("-", inner[1]))
    factors = list(term[1:]) if term[0] == "*" else [term]
    units = [factor for factor in factors if factor in basis]
    if len(units) != 1:
        return None
    factors.remove(units[0])
    if any(unit in walk(factor) for factor in factors for unit in basis):
        return None
    rest = factors[0] if len(factors) == 1 else ("*", *factors) if factors else number(1)
    return units[0], rest


def transposed(node: Node) -> Node:
    """A matrix, or a row of numbers, turned where a T says so; anything else stays."""
    if node[0] != "^" or node[2] not in {("v", "T"), ("v", "top")}:
        return node
    inner = node[1]
    if inner[0] == "span" and inner[1::3] == ("[", "]"):
        inner = ("paren", *inner[2:4])
    if inner[0] == "paren":
        return ("matrix", *(("row", part) for part in inner[1:]))
    if inner[0] != "matrix":
        return node
    return ("matrix", *(("row", *column) for column in zip(*(row[1:] for row in inner[1:]), strict=True)))
