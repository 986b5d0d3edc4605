r"""Answers that are sets of real numbers, as ``sets/build.py`` tells them: ``x > 2``, ``\mathbb{R}\setminus\{2\}``.

Two of them are the same if they have the same numbers, whatever their spelling; their ends are compared as values are,
so that an end must be worked out.
"""

from grpo_verifiers.math.compare.relations import same_name
from grpo_verifiers.math.outcome import Equal, Outcome
from grpo_verifiers.math.sets.build import is_set, region_of
from grpo_verifiers.math.sets.regions import (
    HIGHEST,
    LOWEST,
    NoRegionError,
    Region,
)
from grpo_verifiers.math.tree import Node, walk

_POSSIBLE = frozenset({"paren", "set"})


def compare_sets(gold: Node, answer: Node, equal: Equal) -> Outcome | None:
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
        return same_region(left, right, equal)
    except NoRegionError:
        return None


def _closed_at_infinity(node: Node) -> bool:
    r"""True if an interval has infinity as a member: ``[2, \infty]``."""
    return any(
        top[0] == "span" and ((top[1] == "[" and top[2] == LOWEST.node) or (top[4] == "]" and top[3] == HIGHEST.node))
        for top in walk(node)
    )


def same_region(gold: Region, answer: Region, equal: Equal) -> Outcome:
    """True if two sets have the same numbers; their ends are compared by a callback."""
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
