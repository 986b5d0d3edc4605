"""Sets of real numbers as disjoint intervals with exact ends: union, intersection, complement."""

from contextlib import suppress
from functools import cmp_to_key
from itertools import pairwise, product
from math import ceil, floor, inf, isinf
from typing import NamedTuple

from grpo_verifiers.math.tree import INFINITY, Node, names, number
from grpo_verifiers.math.values.canon import canon, exact
from grpo_verifiers.math.values.forms import NoFormError
from grpo_verifiers.math.values.numeric import real_value
from grpo_verifiers.reading.budget import spend

MAX_PARTS = 24
_CLEARLY = 1e-9  # relative distance at which two values differ whatever their rounding


class NoRegionError(ValueError):
    """No set of real numbers that can be told."""


class End(NamedTuple):
    """An end of an interval: as written, and its value; None where a variable is in it."""

    node: Node
    at: float | None


class Part(NamedTuple):
    """An interval, or a point."""

    low: End
    low_in: bool
    high: End
    high_in: bool


LOWEST = End(("-", INFINITY), -inf)
HIGHEST = End(INFINITY, inf)
EVERYTHING = (Part(LOWEST, False, HIGHEST, False),)


class Region(NamedTuple):
    """A set of numbers; its parts are disjoint, in order, as few as possible.

    ``domain``: ``R``, or the numbers of the intervals that are meant: ``Z``, ``Q``, or ``N`` where 0 may belong to it.
    ``name``: the unknown that was said to be in it, if one was.
    """

    parts: tuple[Part, ...]
    domain: str = "R"
    name: Node | None = None


def end_of(node: Node) -> End:
    """An expression as an end of an interval."""
    if node in {INFINITY, ("+", INFINITY)}:
        return HIGHEST
    if node == ("-", INFINITY):
        return LOWEST
    if names(node):
        return End(node, None)
    value = real_value(node)
    if value is None and (rational := exact(node)) is not None:
        with suppress(OverflowError):  # too large to be put in order
            value = float(rational)
    return End(node, value)


def interval(low: End, low_in: bool, high: End, high_in: bool) -> tuple[Part, ...]:
    """An interval as parts: none where it is empty."""
    part = Part(low, low_in and low is not LOWEST, high, high_in and high is not HIGHEST)
    return () if low.at is not None and high.at is not None and _is_empty(part) else (part,)


def point(end: End) -> tuple[Part, ...]:
    """The set of one number."""
    return (Part(end, True, end, True),)


def order(left: End, right: End) -> int:
    """-1, 0 or 1 as one end is below, at or above another; NoRegionError where that cannot be told."""
    spend(1)
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
    raise NoRegionError("ends too close to tell apart")


def _is_empty(part: Part) -> bool:
    side = order(part.low, part.high)
    return side > 0 or (side == 0 and not (part.low_in and part.high_in))


def _low_order(left: Part, right: Part) -> int:
    return order(left.low, right.low) or int(right.low_in) - int(left.low_in)


def union(parts: tuple[Part, ...]) -> tuple[Part, ...]:
    """Overlapping and adjoining intervals merged, in order."""
    if len(parts) < 2:
        return parts
    if len(parts) > MAX_PARTS:
        raise NoRegionError("too many parts")
    merged: list[Part] = []
    for part in sorted((part for part in parts if not _is_empty(part)), key=cmp_to_key(_low_order)):
        if merged:
            last = merged[-1]
            side = order(part.low, last.high)
            if side < 0 or (side == 0 and (part.low_in or last.high_in)):
                above = order(part.high, last.high)
                high = part if above > 0 or (above == 0 and part.high_in) else last
                merged[-1] = Part(last.low, last.low_in, high.high, high.high_in)
                continue
        merged.append(part)
    return tuple(merged)


def intersection(left: tuple[Part, ...], right: tuple[Part, ...]) -> tuple[Part, ...]:
    """The numbers in both."""
    if EVERYTHING in (left, right):
        return left if right == EVERYTHING else right
    if len(left) * len(right) > MAX_PARTS**2:
        raise NoRegionError("too many parts")
    found = []
    for a, b in product(left, right):
        low = a if _low_order(a, b) > 0 else b
        side = order(a.high, b.high) or int(a.high_in) - int(b.high_in)
        high = a if side < 0 else b
        part = Part(low.low, low.low_in, high.high, high.high_in)
        if not _is_empty(part):
            found.append(part)
    return union(tuple(found))


def complement(parts: tuple[Part, ...]) -> tuple[Part, ...]:
    """All other real numbers; of merged parts in order."""
    if not parts:
        return EVERYTHING
    first, last = parts[0], parts[-1]
    found = [*interval(LOWEST, False, first.low, not first.low_in)] if first.low is not LOWEST else []
    for left, right in pairwise(parts):
        found += interval(left.high, not left.high_in, right.low, not right.low_in)
    if last.high is not HIGHEST:
        found += interval(last.high, not last.high_in, HIGHEST, False)
    return tuple(found)


def finite(parts: tuple[Part, ...]) -> bool:
    """True if a set is one of single numbers."""
    return all(part.low == part.high for part in parts)


def whole(region: Region) -> Region:
    """A set of integers with closed ends, listed where it is short; other sets as they are."""
    if region.domain not in {"Z", "N"}:
        return Region(region.parts, "R", region.name) if finite(region.parts) else region
    spans: list[list[float]] = []
    for part in region.parts:
        low, high = (_integer(part.low, part.low_in, 1), _integer(part.high, part.high_in, -1))
        if region.domain == "N":
            low = max(low, 0)
        if low > high:
            continue
        if spans and low <= spans[-1][1] + 1:
            spans[-1][1] = max(spans[-1][1], high)
        else:
            spans.append([low, high])
    domain = "N" if region.domain == "N" and spans and spans[0][0] == 0 else "Z"
    if all(high - low < MAX_PARTS for low, high in spans) and sum(high - low for low, high in spans) < MAX_PARTS:
        listed = [value for low, high in spans for value in range(int(low), int(high) + 1)]
        if domain == "Z" or not listed:
            return Region(tuple(part for value in listed for part in point(_end(value))), "R", region.name)
    parts = tuple(Part(_end(low), not isinf(low), _end(high), not isinf(high)) for low, high in spans)
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
_ABOVE, _FROM = (Part(_ZERO, False, HIGHEST, False),), (Part(_ZERO, True, HIGHEST, False),)
_BELOW, _UP_TO = (Part(LOWEST, False, _ZERO, False),), (Part(LOWEST, False, _ZERO, True),)
_NATURAL = (Part(_ONE, True, HIGHEST, False),)
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
