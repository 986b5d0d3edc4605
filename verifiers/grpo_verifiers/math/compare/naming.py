r"""Values with names: ``y = 3, x = -4`` and ``(x, y) = (-4, 3)`` are the same, and neither is ``(3, -4)``.

Some names are free: constants of integration, and the integer that runs through a family of values.
"""

from grpo_verifiers.math.compare.leaf import Equal, Outcome, every
from grpo_verifiers.math.grammar.relations import assignment
from grpo_verifiers.math.tree import Node, map_children, names, number, substitute, walk
from grpo_verifiers.math.values.canon import NoFormError, canon, negative, plus, quotient, rational

# Alphabets of unknowns; letters outside of them are in the order of the answer.
_ROWS = ("abcde", "hk", "ijk", "lmn", "mn", "pqrs", "uvw", "xyzw")
Values = tuple[tuple[Node, Node], ...]


def named_values(node: Node) -> Values | None:
    r"""Names with their values: ``x=1, y=2``, ``(x,y)=(1,2)``, a system; None for fewer than two names."""
    if node[0] == "rel" and node[2] == "=" and node[1][0][0] == node[1][1][0] == "paren":
        left, right = node[1][0][1:], node[1][1][1:]
        pairs = tuple(zip(left, right, strict=False)) if len(left) == len(right) else ()
        if any(name[0] not in {"v", "f"} for name, _ in pairs):
            return None
    else:
        items = node[1:] if node[0] in {"list", "and"} else ()
        if node[0] == "cases":
            items = tuple(row[1] for row in node[1:] if len(row) == 2)
        assignments = [assignment(item) if len(item) == 3 and item[0] == "rel" else None for item in items]
        pairs = tuple(pair for pair in assignments if pair is not None)
        if len(pairs) != len(assignments) or (node[0] == "cases" and len(pairs) != len(node) - 1):
            return None
    return pairs if len(pairs) > 1 and len({name for name, _ in pairs}) == len(pairs) else None


def is_labelled(values: Values) -> bool:
    """True if the names are one letter with several subscripts, as the solutions of one equation have."""
    stems = {str(name[1]).partition("_")[0] if name[0] == "v" else "" for name, _ in values}
    return len(stems) == 1 and "" not in stems


def in_order(values: Values) -> tuple[Node, ...]:
    """The values in the order of a tuple without names: by letter, by subscript, else as written."""
    if any(name[0] != "v" for name, _ in values):
        return tuple(value for _, value in values)
    letters = [str(name[1]) for name, _ in values]
    ranks = list(range(len(letters)))
    if is_labelled(values):
        subscripts = [letter.partition("_")[2].strip("{}") for letter in letters]
        if all(subscript.isdigit() and len(subscript) < 9 for subscript in subscripts):
            ranks = list(map(int, subscripts))
    elif all(len(letter) == 1 for letter in letters):
        row = next((row for row in _ROWS if all(letter.lower() in row for letter in letters)), None)
        ranks = [row.index(letter.lower()) for letter in letters] if row else ranks
    ordered = sorted(zip(ranks, values, strict=True), key=lambda ranked: ranked[0])
    return tuple(value for _, (_, value) in ordered)


def compare_named(gold: Node, answer: Node, equal: Equal) -> Outcome | None:
    """Compare two answers of which one gives names to several values; None if names decide nothing."""
    left, right = named_values(gold), named_values(answer)
    if left is None and right is None:
        return None
    if left and right:
        if is_labelled(left) and is_labelled(right) and "rel" not in {gold[0], answer[0]}:
            return None  # solutions of one equation, in no order
        by_name = dict(right)
        if {name for name, _ in left} != set(by_name):
            return False, "different variables"
        return every(equal(value, by_name[name]) for name, value in left)
    values, other = (left, answer) if left else (right, gold)
    assert values is not None  # one of the two has names
    if other[0] == "list" and not is_labelled(values) and not any(part[0] == "rel" for part in other[1:]):
        other = ("paren", *other[1:])
    if other[0] == "matrix" and all(len(row) == 2 for row in other[1:]):
        other = ("paren", *(row[1] for row in other[1:]))
    if other[0] != "paren":
        return None
    if len(other) - 1 != len(values):
        return False, f"{len(values)} names for {len(other) - 1} values"
    pairs = zip(in_order(values), other[1:], strict=True)
    return every(equal(a, b) if left else equal(b, a) for a, b in pairs)


def group_assignments(node: Node) -> Node:
    """``p=5, q=2; p=7, q=2`` as the list of its tuples; other lists stay."""
    pairs = [assignment(part) for part in node[1:]] if node[0] == "list" else []
    assignments = [pair for pair in pairs if pair is not None]
    names = [name for name, _ in assignments]
    period = len(set(names))
    if len(names) < len(pairs) or not 1 < period < len(names) or names != names[:period] * (len(names) // period):
        return node
    rows = [assignments[start : start + period] for start in range(0, len(names), period)]
    return ("list", *(("paren", *in_order(tuple(row))) for row in rows))


CONSTANTS = frozenset({"C", "C_1"})
_CONSTANT_NAMES = frozenset({*"ABCDKck", *(f"{letter}_{i}" for letter in "CcKkA" for i in range(4))})
_SOLUTIONS = frozenset("yuvwzx")  # names of the unknown function of a differential equation
_COUNTERS = frozenset("kmn")


def with_constants_of(gold: Node, answer: Node) -> Node:
    """The answer with the gold's names for its constants: ``c`` for ``C`` in ``x^2 + C``, any in ``y = C e^x``."""
    lacking = sorted(filter(_is_constant, names(gold) - names(answer)))
    own = sorted(names(answer) - names(gold))
    if not lacking or len(lacking) != len(own):
        return answer
    added = any(top[0] == "+" and ("v", "C") in top for top in walk(gold))
    if [name.upper() for name in own] == lacking:
        mixed = any(map(_is_constant, names(answer)))
        free = not mixed and (added or gold[0] == "rel" or lacking != ["C"])
    else:
        free = not added and _is_solution(gold) and _CONSTANT_NAMES.issuperset(own)
    return _with_names(answer, dict(zip(own, lacking, strict=True))) if free else answer


def _is_solution(gold: Node) -> bool:
    """True if the gold names a function and has free constants. A unit such as C is not one."""
    stated = assignment(gold)
    if stated is None or stated[0][0] not in {"v", "f"} or stated[0][1] not in _SOLUTIONS:
        return False
    free = {name for name in names(stated[1]) if not _is_constant(name)}
    return bool(free) and all(map(str.islower, free))


def _is_constant(name: str) -> bool:
    return name == "C" or name.startswith("C_")


def _with_names(node: Node, renaming: dict[str, str]) -> Node:
    def change(part: Node) -> Node:
        return ("v", renaming.get(part[1], part[1])) if part[0] == "v" else map_children(part, change)

    return change(node)


def is_angle_family(node: Node) -> bool:
    r"""True if a sum is one of angles with an integer in it: ``\frac{\pi}{2} + n\pi``."""
    return bool(node[0] == "+" and names(node) <= _COUNTERS and all(("v", "pi") in walk(part) for part in node[1:]))


def integers_of(gold: Node, answer: Node) -> tuple[Node, Node]:
    r"""Two families of values without ``k \in \mathbb{Z}``, the answer's integer by the gold's letter."""
    (left, letter), (right, other) = _family(gold), _family(answer)
    if not letter or not other or letter in names(right) - {other}:
        return gold, answer
    right = _with_names(right, {other: letter})
    expected, value = (node[1][1] if node[0] == "rel" and node[2] == "=" else node for node in (left, right))
    if expected == value or not _same_values(expected, value, ("v", letter)):
        return left, right
    return left, ("rel", (right[1][0], expected), "=") if right[0] == "rel" else expected


def _same_values(left: Node, right: Node, letter: Node) -> bool:
    """True if two expressions in an integer have the same values: equal steps, and a shift by a number of steps."""
    try:
        rows = [[canon(substitute(node, letter, number(at))) for at in range(3)] for node in (left, right)]
        steps = [plus(row[1], negative(row[0])) for row in rows]
        bent = [plus(plus(row[2], negative(row[1])), negative(step))[0] for row, step in zip(rows, steps, strict=True)]
        ratio = rational(quotient(steps[1], steps[0]))
        shift = rational(quotient(plus(rows[1][0], negative(rows[0][0])), steps[0]))
    except NoFormError:
        return False
    return not any(bent) and ratio in {1, -1} and shift is not None and shift.denominator == 1


def _family(node: Node) -> tuple[Node, str]:
    """The values of a family and its integer; an empty letter for anything else."""
    if node[0] in {"list", "and"} and len(node) == 3 and node[2][0] == "rel" and node[2][2] == "in":
        symbol, domain = node[2][1]
        return (node[1], symbol[1]) if symbol[0] == "v" and domain == ("v", "mathbb Z") else (node, "")
    value = node[1][1] if node[0] == "rel" and node[2] == "=" else node
    return (node, min(names(value), default="")) if is_angle_family(value) and len(names(value)) == 1 else (node, "")
