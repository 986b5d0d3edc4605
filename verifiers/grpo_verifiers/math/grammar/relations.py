r"""Relations as trees: names, assignments, unknowns, and statements joined by commas, "and", "or"."""

from grpo_verifiers.math.tree import Node, names, number
from grpo_verifiers.math.words.nouns import is_label

FLIPPED = {"<": ">", ">": "<", "<=": ">=", ">=": "<=", "=": "=", "!=": "!="}
IMAGINARY: Node = ("v", "i")  # alone on a side of an equation it is an index


def is_name(node: Node) -> bool:
    """True if a node is a name and not a value: ``x``, ``f(x)``, ``AB``, ``|AB|``, ``(p, q)``."""
    kind = node[0]
    if kind == "v":
        return node[1] not in {"pi", "inf"}
    if kind == "text":
        return is_label(node[1])
    if kind == "f":
        return len(node[1]) == 1 or node[1][1:2] in {"_", "'", "^"}
    if kind == "^":  # the inverse and the transpose of a matrix
        return node[1][0] == "v" and node[1][1].isupper() and node[2] in {("-", number(1)), ("v", "T")}
    if kind in {"*", "/", "abs", "paren", "ratio"}:
        return all(is_name(part) and part != IMAGINARY for part in node[1:])
    return kind == "deg" and is_name(node[1])


def assignment(node: Node) -> tuple[Node, Node] | None:
    """Name and value of ``x = 5``."""
    if node[0] == "rel" and node[2] == "=" and is_name(node[1][0]):
        return node[1][0], node[1][1]
    return None


def is_unknown(node: Node) -> bool:
    """True if a relation can be solved for a node; not for ``|x|`` and ``x/y``."""
    kind = node[0]
    if kind == "*":
        return all(part[0] == "v" and part[1].isupper() for part in node[1:])  # the segment AB
    if kind == "abs":
        return node[1][0] == "*" and is_unknown(node[1])  # its length
    if kind == "paren":
        return all(is_unknown(part) for part in node[1:])
    return kind in {"v", "f", "text"} and is_name(node)


def unknown_first(node: Node) -> Node:
    """The relation with an unknown that is alone in front, without a sign: ``x > 2`` for ``2 < x`` and ``-x < -2``."""
    if node[0] != "rel" or node[2] not in FLIPPED:
        return node
    (left, right), op = node[1], node[2]
    named = _is_signed(left) and left != IMAGINARY
    if not named and _is_signed(right) and (names(right) or right[0] == "f"):
        left, right, op = right, left, FLIPPED[op]
    if left[0] == "-" and _is_signed(left):
        left, right, op = left[1], right[1] if right[0] == "-" else ("-", right), FLIPPED[op]
    return ("rel", (left, right), op) if is_unknown(left) else node


def _is_signed(node: Node) -> bool:
    return is_unknown(node[1] if node[0] == "-" else node)


def solution(node: Node) -> Node | None:
    """A solved relation, its unknown in front; None for ``2x > 4`` and ``y = 3x``."""
    node = unknown_first(node)
    if node[0] != "rel" or node[2] not in FLIPPED:
        return None
    return node if is_unknown(node[1][0]) and not names(node[1][1]) else None


def ops_of(node: Node) -> tuple[str, ...]:
    """The signs of a chain of relations."""
    return tuple(node[2].split())


def is_named(nodes: tuple[Node, ...]) -> bool:
    """True if the items assign to different names: ``AB = 4, CD = 5``; ``x_1`` and ``x_2`` count as one name."""
    names = [pair[0] for node in nodes if (pair := assignment(node)) is not None]
    if len(names) != len(nodes):
        return False
    return len({str(name[1]).partition("_")[0] if name[0] == "v" else str(name) for name in names}) == len(names) > 1


def parameter(node: Node) -> str:
    """The variable of ``f(x)``; empty for anything else."""
    return node[2][0][1] if node[0] == "f" and len(node[2]) == 1 and node[2][0][0] == "v" and names(node) else ""


_CONDITIONS = frozenset({"rel", "and", "or"})


def join_statements(items: list[Node], joins: list[str]) -> Node:
    """One node for statements and the separators between them: ``","``, ``"and"`` or ``"or"``.

    Conditions on one unknown are joined by the word between them. Values are a list whatever joins them, and so are
    equations that give values to names, unless "or" is between different names.
    """
    if len(items) == 1:
        return items[0]
    first = items[0]
    if first[0] == "rel" and first[2] == "!=" and all(item[0] in {"n", "-", "/"} for item in items[1:]):
        # one sign for several numbers leaves out all of them
        items, joins = [first, *(("rel", (first[1][0], item), "!=") for item in items[1:])], ["and"] * len(joins)
    if set(joins) == {","} or any(item[0] not in _CONDITIONS for item in items):
        return ("list", *items)
    subjects = [_subject(item) for item in items]
    one = len(set(subjects)) == 1
    if all(assignment(item) is not None for item in items):
        rows = _rows(items, joins, commas=False)
        names = [[_subject(item) for item in row] for row in rows]
        if one or len(rows) == 1:
            return ("list", *items)
        if len(names[0]) > 1 and all(sorted(map(str, row)) == sorted(map(str, names[0])) for row in names):
            return (
                "list",
                *(row[each.index(name)] for row, each in zip(rows, names, strict=True) for name in names[0]),
            )
        return ("or", *(row[0] if len(row) == 1 else ("list", *row) for row in rows))
    # "x < 1, x = 2 or x > 3": the commas of a list with one word in it mean that word
    rows = _rows(items, joins, commas=one and "and" not in joins)
    kind = "and" if one else "list"
    parts = [row[0] if len(row) == 1 else (kind, *row) for row in rows]
    return parts[0] if len(parts) == 1 else ("or", *parts)


def _rows(items: list[Node], joins: list[str], *, commas: bool) -> list[list[Node]]:
    """The statements between one "or" and the next; with ``commas`` those between commas, too."""
    rows = [[items[0]]]
    for join, item in zip(joins, items[1:], strict=True):
        if join == "or" or (commas and join == ","):
            rows.append([])
        rows[-1].append(item)
    return rows


def _subject(node: Node) -> Node | None:
    """The unknown of a condition."""
    if node[0] in {"and", "or"}:
        return _subject(node[1])
    for term in unknown_first(node)[1]:
        inner: Node = term[1] if term[0] == "abs" else term
        if is_unknown(inner):
            return inner
    pair = assignment(node)
    return pair[0] if pair else None
