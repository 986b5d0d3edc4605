r"""Sets by a property: ``\{2x \mid x > 3\}`` are the doubles of what the property leaves."""

from collections.abc import Callable
from math import inf

from grpo_verifiers.math.canon import canon
from grpo_verifiers.math.forms import NotAlgebraicError, TooBigError, UndefinedError, rational
from grpo_verifiers.math.numeric import real_value
from grpo_verifiers.math.regions import End, NoRegionError, Part, Region, end_of, finite, union, whole
from grpo_verifiers.math.tree import Node, names, number, rebuilt


def mapped(node: Node, region_of: Callable[[Node], Region]) -> Region:
    """The set that a member's form and its condition describe.

    Raises:
        NoRegionError: the form is not linear in the unknown of the condition, or the condition is not solved.
    """
    member, condition = node[1], region_of(node[2])
    if member[0] == "rel" and member[2] == "in":
        inner = region_of(("and", member, node[2]))
        return Region(inner.parts, inner.domain)
    if condition.name is not None and member == condition.name:
        return Region(condition.parts, condition.domain)
    return _image(member, condition)


def _image(member: Node, region: Region) -> Region:
    """The values of a linear expression over a set."""
    name = region.name
    region = whole(region)
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
        parts.append(Part(*first, *second) if rising else Part(*second, *first))
    return Region(union(tuple(parts)))


def _is_linear(member: Node, name: str) -> bool:
    try:
        above, below = canon(member)
    except (NotAlgebraicError, UndefinedError, TooBigError):
        return False
    if any(generator.startswith("?") for part in (above, below) for mono in part for generator, _ in mono[2]):
        return False
    degrees = [dict(mono[2]).get(name, 0) for mono in above]
    return max(degrees, default=0) == 1 and not any(dict(mono[2]).get(name, 0) for mono in below)


def _at(member: Node, name: Node, value: Node) -> Node:
    """A form with a value in place of its unknown, worked out where it is rational."""

    def change(part: Node) -> Node:
        return value if part == name else rebuilt(part, change)

    node = change(member)
    try:
        exact = rational(canon(node))
    except (NotAlgebraicError, UndefinedError, TooBigError):
        exact = None
    if exact is None:
        return node
    sign, size = exact < 0, abs(exact)
    whole_number: Node = number(size)
    if size.denominator != 1:
        whole_number = ("/", number(size.numerator), number(size.denominator))
    return ("-", whole_number) if sign else whole_number
