r"""Sets of real numbers as disjoint intervals with exact ends, and the trees that are one.

Only a solved condition is a set: ``x > 2`` and ``|x| < 1`` are, ``2x > 4`` and ``|x - 1| < 1`` are not.
Commas between inequalities mean "and", unless no number is left then: ``x < 1, x > 3``. ``\{2x \mid x > 3\}`` are
the doubles of the numbers above 3.
"""

from contextlib import suppress
from functools import cmp_to_key
from itertools import product
from math import ceil, floor, inf, isinf
from typing import NamedTuple

from grpo_verifiers.math.grammar.relations import FLIPPED, is_unknown, ops_of, unknown_first
from grpo_verifiers.math.tree import INFINITY, STRUCTURES, Node, fraction, names, number, substitute
from grpo_verifiers.math.values.canon import NoFormError, canon, exact, has_opaque
from grpo_verifiers.math.values.numeric import real_value

MAX_PARTS = 24
_CLEARLY = 1e-9  # relative distance at which two values differ despite rounding


class NoRegionError(ValueError):
    """The answer is not a set of real numbers, or that is undecidable here."""


class End(NamedTuple):
    """An end of an interval: as written, and its value; None if a variable is in it."""

    node: Node
    at: float | None


class NumberRange(NamedTuple):
    """An interval, or a point."""

    low: End
    low_in: bool
    high: End
    high_in: bool


LOWEST = End(("-", INFINITY), -inf)
HIGHEST = End(INFINITY, inf)
EVERYTHING = (NumberRange(LOWEST, False, HIGHEST, False),)


class Region(NamedTuple):
    """A set of numbers; its parts are disjoint, in order, as few as possible."""

    parts: tuple[NumberRange, ...]
    domain: str = "R"  # or Z, Q, or N where 0 may belong to it
    name: Node | None = None  # the unknown whose values these are


def end_of(node: Node) -> End:
    """An expression as an end of an interval."""
    if node in {INFINITY, ("+", INFINITY)}:
        return HIGHEST
    if node == ("-", INFINITY):
        return LOWEST
    return End(node, None if names(node) else real_value(node))


def interval(low: End, low_in: bool, high: End, high_in: bool) -> tuple[NumberRange, ...]:
    """An interval as parts: no part for an empty one."""
    part = NumberRange(low, low_in and low is not LOWEST, high, high_in and high is not HIGHEST)
    return () if low.at is not None and high.at is not None and _is_empty(part) else (part,)


def point(end: End) -> tuple[NumberRange, ...]:
    """The set of one number."""
    return (NumberRange(end, True, end, True),)


def order(left: End, right: End) -> int:
    """-1, 0 or 1 as one end is below, at or above another; NoRegionError if that is undecidable."""
    if left.node == right.node:
        return 0
    if left.at is None or right.at is None:
        raise NoRegionError("ends with a variable")
    if isinf(left.at) or isinf(right.at):
        return (left.at > right.at) - (left.at < right.at)
    if abs(left.at - right.at) > _CLEARLY * max(1.0, abs(left.at), abs(right.at)):
        return 1 if left.at > right.at else -1
    a, b = exact(left.node), exact(right.node)
    if a is not None and b is not None:
        return int(a > b) - int(a < b)
    with suppress(NoFormError):
        if canon(left.node) == canon(right.node):
            return 0
    raise NoRegionError("ends too close to compare")


Cut = tuple[End, bool]  # an end of an interval: right above its number if True, else right below it


def _order(left: Cut, right: Cut) -> int:
    return order(left[0], right[0]) or left[1] - right[1]


_KEY = cmp_to_key(_order)


def _cuts(part: NumberRange) -> tuple[Cut, Cut]:
    return (part.low, not part.low_in), (part.high, part.high_in)


def _is_empty(part: NumberRange) -> bool:
    return _order(*_cuts(part)) >= 0


def union(parts: tuple[NumberRange, ...]) -> tuple[NumberRange, ...]:
    """Overlapping and adjoining intervals merged, in order."""
    if len(parts) < 2:
        return parts
    if len(parts) > MAX_PARTS:
        raise NoRegionError("too many parts")
    merged: list[tuple[Cut, Cut]] = []
    filled = (_cuts(part) for part in parts if not _is_empty(part))
    for low, high in sorted(filled, key=lambda cuts: _KEY(cuts[0])):
        if not merged or _order(low, merged[-1][1]) > 0:
            merged.append((low, high))
        elif _order(high, merged[-1][1]) > 0:
            merged[-1] = merged[-1][0], high
    return tuple(map(_between, merged))


def _between(cuts: tuple[Cut, Cut]) -> NumberRange:
    (low, above), (high, high_in) = cuts
    return NumberRange(low, not above, high, high_in)


def intersection(left: tuple[NumberRange, ...], right: tuple[NumberRange, ...]) -> tuple[NumberRange, ...]:
    """The numbers in both."""
    if EVERYTHING in (left, right):
        return left if right == EVERYTHING else right
    if len(left) * len(right) > MAX_PARTS**2:
        raise NoRegionError("too many parts")
    pairs = product(map(_cuts, left), map(_cuts, right))
    common = [_between((max(a[0], b[0], key=_KEY), min(a[1], b[1], key=_KEY))) for a, b in pairs]
    return union(tuple(part for part in common if not _is_empty(part)))


def complement(parts: tuple[NumberRange, ...]) -> tuple[NumberRange, ...]:
    """All other real numbers; of merged parts in order."""
    edges: list[Cut] = [(LOWEST, True), *(cut for part in parts for cut in _cuts(part)), (HIGHEST, False)]
    gaps = zip(edges[::2], edges[1::2], strict=True)
    return tuple(part for low, high in gaps for part in interval(low[0], not low[1], *high))


def finite(parts: tuple[NumberRange, ...]) -> bool:
    """True if a set consists of single numbers."""
    return all(part.low == part.high for part in parts)


def without_integers(region: Region) -> Region:
    """A set of integers with closed ends, as single numbers if they are few; any other set unchanged."""
    if region.domain not in {"Z", "N"}:
        return Region(region.parts, "R", region.name) if finite(region.parts) else region
    spans: list[NumberRange] = []
    for part in region.parts:  # up to the next integer, so that neighbours join
        low, high = (_integer(part.low, part.low_in, 1), _integer(part.high, part.high_in, -1))
        spans += interval(_end(max(low, 0) if region.domain == "N" else low), True, _end(high + 1), False)
    parts = union(tuple(spans))
    domain = "N" if region.domain == "N" and parts and parts[0].low.at == 0 else "Z"
    if domain == "Z" and sum((part.high.at or 0.0) - (part.low.at or 0.0) - 1 for part in parts) < MAX_PARTS:
        members = [value for part in parts for value in range(int(part.low.node[1]), int(part.high.node[1]))]
        return Region(tuple(part for value in members for part in point(_end(value))), "R", region.name)
    return Region(parts, domain, region.name)


def _integer(end: End, inside: bool, step: int) -> float:
    if end.at is None or isinf(end.at):
        if end.at is None:
            raise NoRegionError("ends with a variable")
        return end.at
    rational = exact(end.node)
    if rational is None and abs(end.at - round(end.at)) < _CLEARLY * max(1.0, abs(end.at)):
        raise NoRegionError("an end too close to an integer")
    value = end.at if rational is None else rational
    nearest = ceil(value) if step > 0 else floor(value)
    return nearest + step if nearest == value and not inside else nearest


def _end(value: float) -> End:
    return (HIGHEST if value > 0 else LOWEST) if isinf(value) else End(number(int(value)), float(value))


_ZERO, _ONE = End(number(0), 0.0), End(number(1), 1.0)
_ABOVE, _FROM = (NumberRange(_ZERO, False, HIGHEST, False),), (NumberRange(_ZERO, True, HIGHEST, False),)
_BELOW, _UP_TO = (NumberRange(LOWEST, False, _ZERO, False),), (NumberRange(LOWEST, False, _ZERO, True),)
_NATURAL = (NumberRange(_ONE, True, HIGHEST, False),)
_SIGNS = {
    "": EVERYTHING, "^+": _ABOVE, "_+": _ABOVE, "_>0": _ABOVE, "^-": _BELOW, "_-": _BELOW, "_<0": _BELOW,
    "_>=0": _FROM, "_<=0": _UP_TO, "^*": complement(point(_ZERO)),
}  # fmt: skip
NUMBERS = {
    f"mathbb {domain}{sign}": Region(parts, domain) for domain in ("R", "Q", "Z") for sign, parts in _SIGNS.items()
} | {
    "mathbb N": Region(EVERYTHING, "N"),
    "mathbb N_0": Region(_FROM, "Z"),
    **{f"mathbb N{sign}": Region(_NATURAL, "Z") for sign in ("^+", "^*", "_+", "_>0")},
}


_LESS = frozenset({"<", "<="})
_MORE = frozenset({">", ">="})
_SET_KINDS = frozenset({"and", "or", "span", "cup", "cap", "minus", "builder"})


def is_set(node: Node) -> bool:
    """True if an answer is a set of numbers and nothing else; ``(1, 2)`` may be a point."""
    kind = node[0]
    if kind == "list":
        return all(part[0] == "rel" and is_set(part) for part in node[1:])
    if kind == "rel":
        return not set(ops_of(node)) <= {"=", "~=", "equiv"}
    return kind in _SET_KINDS or (kind == "v" and node[1] in NUMBERS) or _difference(node) is not None


def _difference(node: Node) -> Node | None:
    r"""``\mathbb{R}-\{2\}`` as a difference of sets."""
    if node[0] == "+" and len(node) == 3 and node[2][0] == "-" and (node[2][1][0] == "set" or is_set(node[2][1])):
        return ("minus", node[1], node[2][1])
    return None


def region_of(node: Node) -> Region:
    """The set of numbers of an answer; NoRegionError for any other answer or if that is undecidable."""
    return without_integers(_region(node))


def list_members(node: Node) -> Node:
    """A set by its property as a list of its members, if they are few; anything else unchanged."""
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
    if kind in {"and", "or"} or (kind == "list" and is_set(node)):
        return _conditions(kind, [_region(part) for part in node[1:]])
    if kind == "cup":
        return _any([_region(part) for part in node[1:]])
    if kind == "cap":
        return _all([_region(part) for part in node[1:]])
    if kind == "span" or (kind == "paren" and len(node) == 3):
        opener, low, high, closer = node[1:] if kind == "span" else ("(", *node[1:], ")")
        ends = end_of(low), end_of(high)
        if any(part[0] in STRUCTURES for part in (low, high)) or (
            all(end.at is not None for end in ends) and order(*ends) > 0
        ):
            raise NoRegionError("no interval")
        return Region(interval(ends[0], opener == "[", ends[1], closer == "]"))
    if kind == "set":
        if any(part[0] in STRUCTURES | {"rel"} for part in node[1:]):
            raise NoRegionError("a set of something else")
        return Region(union(tuple(part for item in node[1:] for part in point(end_of(item)))))
    if kind == "v" and node[1] in NUMBERS:
        return NUMBERS[node[1]]
    if kind == "builder":
        return _builder(node)
    if kind == "minus" or (node := _difference(node) or node)[0] == "minus":
        return _without(_region(node[1]), _region(node[2]))
    raise NoRegionError(kind)


def _conditions(kind: str, regions: list[Region]) -> Region:
    """Join conditions. A redundant one is an error (a hidden second answer), unless it is true for all numbers."""
    join = _any if kind == "or" or (kind == "list" and not _all(regions).parts) else _all
    limiting = [region for region in regions if region.parts != EVERYTHING] if join is _all else regions
    if len(limiting) > MAX_PARTS:
        raise NoRegionError("too many conditions")
    for index in range(len(limiting) if len(limiting) > 1 else 0):
        if join([*limiting[:index], *limiting[index + 1 :]]).parts == join(limiting).parts:
            raise NoRegionError("a condition that changes nothing")
    return join(regions)


def _all(regions: list[Region]) -> Region:
    parts: tuple[NumberRange, ...] = EVERYTHING
    domain = "R"
    for region in regions:
        parts = intersection(parts, region.parts)
        domain = "RQZN"[max("RQZN".index(domain), "RQZN".index(region.domain))]
    return Region(parts, domain, _name(regions))


def _any(regions: list[Region]) -> Region:
    domains = {region.domain for region in map(without_integers, regions)}
    if len(domains) > 1:
        raise NoRegionError("numbers of several kinds")
    return Region(union(tuple(part for region in regions for part in region.parts)), domains.pop(), _name(regions))


def _without(left: Region, right: Region) -> Region:
    if without_integers(right).domain not in {"R", left.domain}:
        raise NoRegionError("numbers of several kinds")
    return Region(intersection(left.parts, complement(union(right.parts))), left.domain, left.name)


def _name(regions: list[Region]) -> Node | None:
    """The one unknown of several conditions."""
    unknowns = {region.name for region in regions if region.name is not None}
    if len(unknowns) > 1:
        raise NoRegionError("several unknowns")
    return unknowns.pop() if unknowns else None


def _relation(node: Node) -> Region:
    node = unknown_first(node)
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
    """The numbers for which ``x < 2`` or ``|x| < 2`` holds."""
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
    if op in _LESS | _MORE:
        parts = interval(LOWEST, False, end, op == "<=") if op in _LESS else interval(end, op == ">=", HIGHEST, False)
    else:
        parts = point(end) if op == "=" else complement(point(end))
    return Region(parts, "R", quantity)


def _absolute(unknown: Node, op: str, value: Node) -> Region:
    size = real_value(value)
    if op in {"=", "!="} or size is None or size <= 0:
        raise NoRegionError("not solved")
    low, high = end_of(("-", value)), end_of(value)
    inside = interval(low, op in {"<=", ">"}, high, op in {"<=", ">"})
    return Region(inside if op in _LESS else complement(inside), "R", unknown)


def _builder(node: Node) -> Region:
    """The set that a member's form and its condition describe."""
    member, condition = node[1], _region(node[2])
    if member[0] == "rel" and member[2] == "in":
        inner = _region(("and", member, node[2]))
        return Region(inner.parts, inner.domain)
    if condition.name is not None and member == condition.name:
        return Region(condition.parts, condition.domain)
    return _image(member, condition)


def _image(member: Node, region: Region) -> Region:
    """The values of a linear expression over a set."""
    name = region.name
    region = without_integers(region)
    if name is None or name[0] != "v" or names(member) != {name[1]} or not _is_linear(member, name[1]):
        raise NoRegionError("a form that is not linear")
    if region.domain != "R" and not finite(region.parts):
        raise NoRegionError("a form over integers")
    at_0, at_1 = (real_value(_at(member, name, number(value))) for value in (0, 1))
    zero, one = at_0 or 0.0, at_1 or 0.0
    if one == zero:
        raise NoRegionError("a form without slope")
    rising = one > zero

    def move(end: End) -> End:
        if end.at is None:
            raise NoRegionError("ends with a variable")
        if abs(end.at) == inf:
            return end_of(("v", "inf") if (end.at > 0) == rising else ("-", ("v", "inf")))
        return end_of(_at(member, name, end.node))

    parts = []
    for low, low_in, high, high_in in region.parts:
        first, second = (move(low), low_in), (move(high), high_in)
        parts.append(NumberRange(*first, *second) if rising else NumberRange(*second, *first))
    return Region(union(tuple(parts)))


def _is_linear(member: Node, name: str) -> bool:
    try:
        above, below = canon(member)
    except NoFormError:
        return False
    if has_opaque(above, below):
        return False
    degrees = [dict(mono[2]).get(name, 0) for mono in above]
    return max(degrees, default=0) == 1 and not any(dict(mono[2]).get(name, 0) for mono in below)


def _at(member: Node, name: Node, value: Node) -> Node:
    """A form with a value in place of its unknown, evaluated if it is rational."""
    node = substitute(member, name, value)
    rational = exact(node)
    return node if rational is None else fraction(rational)
