r"""Answers that are sets of real numbers: intervals, inequalities with "and" and "or", ``\mathbb{R}\setminus\{2\}``.

Two of them are the same if they have the same numbers, whatever their spelling; their ends are compared as values are,
so that an end must be worked out. Only what is solved is a set: ``x > 2`` and ``|x| < 1`` are, ``2x > 4`` and
``|x - 1| < 1`` are not. Commas between inequalities mean "and", unless nothing is left then: ``x < 1, x > 3``.
"""

from collections.abc import Callable

from grpo_verifiers.math.builders import mapped
from grpo_verifiers.math.leaf import Outcome
from grpo_verifiers.math.named_sets import NATURAL, NUMBERS
from grpo_verifiers.math.numeric import real_value
from grpo_verifiers.math.regions import (
    EVERYTHING,
    HIGHEST,
    LOWEST,
    MAX_PARTS,
    End,
    NoRegionError,
    Part,
    Region,
    complement,
    end_of,
    finite,
    intersection,
    interval,
    order,
    point,
    union,
    whole,
)
from grpo_verifiers.math.relations import FLIPPED, fronted, is_unknown, ops_of, same_name
from grpo_verifiers.math.tree import STRUCTURES, Node, names, walk

_LESS = frozenset({"<", "<="})
_MORE = frozenset({">", ">="})
_MEANT = frozenset({"and", "or", "span", "cup", "cap", "minus", "builder"})
_POSSIBLE = frozenset({"paren", "set"})


def compare_sets(gold: Node, answer: Node, equal: Callable[[Node, Node], Outcome]) -> Outcome | None:
    """Compare two answers of which one is a set of numbers beyond doubt; None where they are not both sets."""
    meant = is_set(gold), is_set(answer)
    if not any(meant) or not all(
        sure or node[0] in _POSSIBLE for sure, node in zip(meant, (gold, answer), strict=True)
    ):
        return None
    if _closed_at_infinity(answer) and not _closed_at_infinity(gold):
        return False, "other brackets"
    try:
        left, right = region_of(gold), region_of(answer)
        if gold[0] == answer[0] == "rel" and any(
            end.at is None for part in left.parts for end in (part.low, part.high)
        ):
            return None  # several unknowns: either may be the one that is solved for
        if left.domain != right.domain and "N" in {left.domain, right.domain}:
            return _with_or_without_zero(left, right, equal)
        return same_region(left, right, equal)
    except NoRegionError:
        return None


def _closed_at_infinity(node: Node) -> bool:
    r"""Whether an interval has infinity as a member: ``[2, \infty]``."""
    return any(
        top[0] == "span" and ((top[1] == "[" and top[2] == LOWEST.node) or (top[4] == "]" and top[3] == HIGHEST.node))
        for top in walk(node)
    )


def _with_or_without_zero(gold: Region, answer: Region, equal: Callable[[Node, Node], Outcome]) -> Outcome:
    """Compare natural numbers with integers: 0 may be one of them or not."""
    outcome: Outcome = False, ""
    for first in NATURAL:
        sides = [
            whole(Region(intersection(region.parts, first), "Z", region.name)) if region.domain == "N" else region
            for region in (gold, answer)
        ]
        outcome = same_region(sides[0], sides[1], equal)
        if outcome[0]:
            break
    return outcome


def is_set(node: Node) -> bool:
    """Whether an answer is a set of numbers and nothing else; ``(1, 2)`` may be a point."""
    kind = node[0]
    if kind == "list":
        return all(part[0] == "rel" and is_set(part) for part in node[1:]) or _are_intervals(node[1:])
    if kind == "rel":
        return not set(ops_of(node)) <= {"=", "~=", "equiv"}
    return kind in _MEANT or (kind == "v" and node[1] in NUMBERS) or _difference(node) is not None


def _are_intervals(items: tuple[Node, ...]) -> bool:
    """Whether a list is one of intervals, which are named one by one where a function rises on each of them."""
    return all(item[0] == "span" or (item[0] == "paren" and len(item) == 3) for item in items) and any(
        item[0] == "span" and item[1::3] != ("[", "]") for item in items
    ) | any(("v", "inf") in {item[-1], item[-2]} or ("-", ("v", "inf")) in item for item in items)


def _difference(node: Node) -> Node | None:
    r"""``\mathbb{R}-\{2\}`` as a difference of sets."""
    if node[0] == "+" and len(node) == 3 and node[2][0] == "-" and (node[2][1][0] == "set" or is_set(node[2][1])):
        return ("minus", node[1], node[2][1])
    return None


def same_region(gold: Region, answer: Region, equal: Callable[[Node, Node], Outcome]) -> Outcome:
    """Whether two sets have the same numbers; their ends are compared by a callback."""
    if gold.name is not None and answer.name is not None and not same_name(gold.name, answer.name):
        return False, "another variable"
    if gold.domain != answer.domain:
        return False, "numbers of another kind"
    if len(gold.parts) != len(answer.parts):
        return False, "another set of numbers"
    outcome: Outcome = True, ""
    for left, right in zip(gold.parts, answer.parts, strict=True):
        if (left.low_in, left.high_in) != (right.low_in, right.high_in):
            return False, "other brackets"
        for a, b in ((left.low, right.low), (left.high, right.high)):
            result = equal(a.node, b.node)
            if result[0] is False:
                return result
            outcome = outcome if result[0] else result
    return outcome


def region_of(node: Node) -> Region:
    """The set of numbers that an answer is.

    Raises:
        NoRegionError: it is none, or cannot be told.
    """
    return whole(_region(node))


def listed(node: Node) -> Node:
    """A set by its property with its members listed, where they are few; anything else stays."""
    if node[0] != "builder":
        return node
    try:
        region = region_of(node)
    except NoRegionError:
        return node
    return ("set", *(part.low.node for part in region.parts)) if finite(region.parts) and region.parts else node


def _region(node: Node) -> Region:
    kind = node[0]
    if kind == "rel":
        return _relation(node)
    if kind == "list" and node[1][0] != "rel":
        return _any([_region(part) for part in node[1:]])
    if kind in {"and", "or", "list"}:
        return _conditions(kind, [_region(part) for part in node[1:]])
    if kind == "cup":
        return _any([_region(part) for part in node[1:]])
    if kind == "cap":
        return _all([_region(part) for part in node[1:]])
    if kind == "span" or (kind == "paren" and len(node) == 3):
        opener, low, high, closer = node[1:] if kind == "span" else ("(", *node[1:], ")")
        ends = end_of(low), end_of(high)
        if any(part[0] in STRUCTURES for part in (low, high)) or not _ordered(*ends):
            raise NoRegionError("no interval")
        return Region(interval(ends[0], opener == "[", ends[1], closer == "]"))
    if kind == "set":
        if any(part[0] in STRUCTURES | {"rel"} for part in node[1:]):
            raise NoRegionError("a set of something else")
        return Region(union(tuple(part for item in node[1:] for part in point(end_of(item)))))
    if kind == "v" and node[1] in NUMBERS:
        return NUMBERS[node[1]]
    if kind == "builder":
        return mapped(node, _region)
    if kind == "minus" or (node := _difference(node) or node)[0] == "minus":
        return _without(_region(node[1]), _region(node[2]))
    raise NoRegionError(kind)


def _ordered(low: End, high: End) -> bool:
    return low.at is None or high.at is None or order(low, high) <= 0


def _conditions(kind: str, regions: list[Region]) -> Region:
    """Conditions joined; one that changes nothing is a second answer in disguise, unless all numbers meet it."""
    join = _any if kind == "or" or (kind == "list" and not _all(regions).parts) else _all
    told = [region for region in regions if region.parts != EVERYTHING] if join is _all else regions
    if len(told) > MAX_PARTS:
        raise NoRegionError("too many conditions")
    for index in range(len(told) if len(told) > 1 else 0):
        if join([*told[:index], *told[index + 1 :]]).parts == join(told).parts:
            raise NoRegionError("a condition that changes nothing")
    return join(regions)


def _all(regions: list[Region]) -> Region:
    parts: tuple[Part, ...] = EVERYTHING
    domain = "R"
    for region in regions:
        parts = intersection(parts, region.parts)
        domain = "RQZN"[max("RQZN".index(domain), "RQZN".index(region.domain))]
    return Region(parts, domain, _name(regions))


def _any(regions: list[Region]) -> Region:
    domains = {region.domain for region in map(whole, regions)}
    if len(domains) > 1:
        raise NoRegionError("numbers of several kinds")
    return Region(union(tuple(part for region in regions for part in region.parts)), domains.pop(), _name(regions))


def _without(left: Region, right: Region) -> Region:
    if whole(right).domain not in {"R", left.domain}:
        raise NoRegionError("numbers of several kinds")
    return Region(intersection(left.parts, complement(union(right.parts))), left.domain, left.name or right.name)


def _name(regions: list[Region]) -> Node | None:
    """The one unknown of several conditions."""
    found = {region.name for region in regions if region.name is not None}
    if len(found) > 1:
        raise NoRegionError("several unknowns")
    return found.pop() if found else None


def _relation(node: Node) -> Region:
    node = fronted(node)
    terms, ops = node[1], ops_of(node)
    if len(terms) == 2 and _is_quantity(terms[1]) and not _is_quantity(terms[0]) and ops[0] in FLIPPED:
        terms, ops = terms[::-1], (FLIPPED[ops[0]],)
    if len(terms) == 2 and _is_quantity(terms[0]):
        return _condition(terms[0], ops[0], terms[1])
    if len(terms) == 3 and _is_quantity(terms[1]) and (set(ops) <= _LESS or set(ops) <= _MORE):
        return _all([_condition(terms[1], FLIPPED[ops[0]], terms[0]), _condition(terms[1], ops[1], terms[2])])
    raise NoRegionError("not solved")


def _is_quantity(node: Node) -> bool:
    """An unknown or its absolute value."""
    return is_unknown(node) or (node[0] == "abs" and is_unknown(node[1]))


def _condition(quantity: Node, op: str, value: Node) -> Region:
    """What ``x < 2`` or ``|x| < 2`` says."""
    if op == "notin":
        inside = _condition(quantity, "in", value)
        return _without(Region(EVERYTHING, "R", quantity), inside)
    if op == "in":
        inner = _region(value)
        if not is_unknown(quantity) or inner.name is not None:
            raise NoRegionError("not solved")
        return Region(inner.parts, inner.domain, quantity)
    if value[0] in STRUCTURES | {"unit", "deg", "currency"} or op not in FLIPPED:
        raise NoRegionError("no number")
    if not is_unknown(quantity):
        return _absolute(quantity[1], op, value)
    if quantity[0] == "v" and quantity[1] in names(value):
        raise NoRegionError("not solved")
    end = end_of(value)
    return Region(_beyond(op, end), "R", quantity)


def _beyond(op: str, end: End) -> tuple[Part, ...]:
    if op in _LESS:
        return interval(LOWEST, False, end, op == "<=")
    if op in _MORE:
        return interval(end, op == ">=", HIGHEST, False)
    return point(end) if op == "=" else complement(point(end))


def _absolute(unknown: Node, op: str, value: Node) -> Region:
    size = real_value(value)
    if op in {"=", "!="} or size is None or size <= 0:
        raise NoRegionError("not solved")
    low, high = end_of(("-", value)), end_of(value)
    inside = interval(low, op in {"<=", ">"}, high, op in {"<=", ">"})
    return Region(inside if op in _LESS else complement(inside), "R", unknown)
