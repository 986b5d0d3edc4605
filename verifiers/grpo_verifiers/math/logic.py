r"""Statements joined by commas, "and", "or": lists of values, and conditions that hold together or one at a time."""

from grpo_verifiers.math.relations import assignment, fronted, is_unknown
from grpo_verifiers.math.tree import Node

_CONDITIONS = frozenset({"rel", "and", "or"})


def joined(items: list[Node], joins: list[str]) -> Node:
    """One node for statements and what stands between them: ``","``, ``"and"`` or ``"or"``.

    Conditions on one unknown are joined by the word between them. Values are a list whatever joins them, and so are
    equations that give values to names, unless "or" stands between different names.
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
    """The unknown that a condition is about."""
    if node[0] in {"and", "or"}:
        return _subject(node[1])
    for term in fronted(node)[1]:
        inner = term[1] if term[0] == "abs" and isinstance(term[1], tuple) else term
        if is_unknown(inner):
            return inner
    pair = assignment(node)
    return pair[0] if pair else None
