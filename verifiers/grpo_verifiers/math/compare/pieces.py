r"""Functions by cases: values with the conditions they hold under, in any order."""

from itertools import permutations, product
from typing import NamedTuple

from grpo_verifiers.math.compare.sets import same_region
from grpo_verifiers.math.outcome import Equal, Outcome
from grpo_verifiers.math.sets.build import region_of
from grpo_verifiers.math.sets.regions import MAX_PARTS, NoRegionError, Part, Region, complement, union
from grpo_verifiers.math.tree import OTHERWISE, Node, substitute
from grpo_verifiers.math.values.canon import canon
from grpo_verifiers.math.values.forms import NoFormError


class Piece(NamedTuple):
    """A value and its condition, as written and as a set of numbers where it is one."""

    value: Node
    condition: Node
    where: Region | None


def compare_pieces(gold: Node, answer: Node, equal: Equal) -> Outcome:
    """True if two functions by cases have the same values under the same conditions."""
    left, right = _closed(pieces_of(gold)), _closed(pieces_of(answer))
    if len(left) != len(right):
        return False, "another number of cases"
    free = list(right)
    outcome: Outcome = True, ""
    for piece in left:
        results = [(_same(piece, other, equal), other) for other in free]
        best = next((pair for pair in results if pair[0][0]), None) or next(
            (pair for pair in results if pair[0][0] is None), None
        )
        if best is None:
            return False, "another case"
        free.remove(best[1])
        outcome = outcome if best[0][0] else best[0]
    return outcome


def _closed(pieces: list[Piece]) -> list[Piece]:
    """The pieces with both ends closed where two of them meet in one value: either may own that point."""
    found = list(pieces)
    if len(found) > MAX_PARTS:
        return found
    for i, j in permutations(range(len(found)), 2):
        below, above = found[i].where, found[j].where
        if below is None or above is None or below.domain != "R" or above.domain != "R" or not below.name:
            continue
        for a, b in product(range(len(below.parts)), range(len(above.parts))):
            end, start = below.parts[a], above.parts[b]
            if end.high_in != start.low_in and end.high.node == start.low.node and below.name == above.name:
                if _value_at(found[i], end.high.node) != _value_at(found[j], end.high.node):
                    continue
                below = below._replace(parts=_put(below.parts, a, end._replace(high_in=True)))
                above = above._replace(parts=_put(above.parts, b, start._replace(low_in=True)))
        found[i], found[j] = found[i]._replace(where=below), found[j]._replace(where=above)
    return found


def _put(parts: tuple[Part, ...], index: int, part: Part) -> tuple[Part, ...]:
    return (*parts[:index], part, *parts[index + 1 :])


def _value_at(piece: Piece, point: Node) -> object:
    """The value of a piece where its unknown is a point; a thing equal to nothing else where that cannot be told."""
    unknown = piece.where.name if piece.where else None

    try:
        return canon(substitute(piece.value, unknown, point) if unknown else piece.value)
    except NoFormError:
        return object()


def _same(gold: Piece, answer: Piece, equal: Equal) -> Outcome:
    if gold.where is not None and answer.where is not None:
        condition = same_region(gold.where, answer.where, equal)
    else:
        condition = equal(gold.condition, answer.condition)
    return equal(gold.value, answer.value) if condition[0] else condition


def pieces_of(node: Node) -> list[Piece]:
    """The cases of a node of two columns; "otherwise" is what the other conditions leave."""
    found = []
    for row in node[1:]:
        try:
            where = None if row[2] == OTHERWISE else region_of(row[2])
        except NoRegionError:
            where = None
        found.append(Piece(row[1], row[2], where))
    told = [piece.where for piece in found if piece.condition != OTHERWISE]
    names = {region.name for region in told if region is not None}
    if (
        len(told) == len(found) - 1
        and None not in told
        and len(names) == 1
        and all(each.domain == "R" for each in told if each)
    ):
        try:
            rest = complement(union(tuple(part for region in told if region for part in region.parts)))
        except NoRegionError:
            return found
        found = [each._replace(where=Region(rest, "R", names.pop())) if each.where is None else each for each in found]
    return found
