"""Names that an answer may choose: constants of integration, and the integer that runs through a family of values."""

from grpo_verifiers.math.grammar.relations import assignment
from grpo_verifiers.math.tree import Node, names, number, rebuilt, substitute, walk
from grpo_verifiers.math.values.canon import canon
from grpo_verifiers.math.values.forms import NoFormError, negative, plus, quotient, rational

CONSTANTS = frozenset({"C", "C_1"})
_CONSTANT_NAMES = frozenset({*"ABCDKck", *(f"{letter}_{i}" for letter in "CcKkA" for i in range(4))})
_SOLUTIONS = frozenset("yuvwzx")  # names of what a differential equation is solved for
_COUNTERS = frozenset("kmn")


def swapped(gold: Node, answer: Node) -> Node | None:
    """The answer with its two constants the other way round: which of them is ``C_1`` is free."""
    answer = with_constants_of(gold, answer)
    if not _is_solution(gold) or not names(gold) & names(answer) >= {"C_1", "C_2"}:
        return None
    return _with_names(answer, {"C_1": "C_2", "C_2": "C_1"})


def with_constants_of(gold: Node, answer: Node) -> Node:
    """The answer with its constants of integration by the gold's names.

    They are the only names that the gold lacks, and as many as the answer lacks: ``c`` for ``C`` in ``x^2 + C``,
    any usual letter for the factors of a solution such as ``y = C e^x``.
    """
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
    """True if a gold gives a function by its name, with constants beside its variables: capacities are none."""
    stated = assignment(gold)
    if stated is None or stated[0][0] not in {"v", "f"} or stated[0][1] not in _SOLUTIONS:
        return False
    free = {name for name in names(stated[1]) if not _is_constant(name)}
    return bool(free) and all(map(str.islower, free))


def _is_constant(name: str) -> bool:
    return name == "C" or name.startswith("C_")


def _with_names(node: Node, renaming: dict[str, str]) -> Node:
    def change(part: Node) -> Node:
        return ("v", renaming.get(part[1], part[1])) if part[0] == "v" else rebuilt(part, change)

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
    """True if two expressions in an integer have the same values: steps of one size, apart by a number of them."""
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
