"""Plus-or-minus signs written out."""

from grpo_verifiers.math.tree import Node, rebuilt, walk, weight
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
