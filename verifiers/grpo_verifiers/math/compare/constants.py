"""Constants of integration: which names of an answer stand for those of the gold."""

from grpo_verifiers.math.compare.relations import same_name
from grpo_verifiers.math.grammar.relations import assignment
from grpo_verifiers.math.tree import Node, names, rebuilt, substitute, walk

CONSTANTS = frozenset({"C", "C_1"})
_CONSTANT_NAMES = frozenset({*"ABCDKck", *(f"{letter}_{i}" for letter in "CcKkA" for i in range(4))})
_SOLUTIONS = frozenset("yuvwzx")  # names of what a differential equation is solved for
_C, _SMALL_C = ("v", "C"), ("v", "c")


def swapped(gold: Node, answer: Node) -> Node | None:
    """The answer with its two constants the other way round: which of them is ``C_1`` is free."""
    answer = with_constants_of(gold, answer)
    if not _is_solution(gold) or not names(gold) & names(answer) >= {"C_1", "C_2"}:
        return None
    return _with_names(answer, {"C_1": "C_2", "C_2": "C_1"})


def with_constants_of(gold: Node, answer: Node) -> Node:
    """The answer with its constants of integration ``c``, ``c_1`` as ``C``, ``C_1`` where the gold has these."""
    if (renaming := _constants(gold, answer)) is not None:
        return _with_names(answer, renaming)
    numbered = {name for name in names(gold) if name.startswith("C_")}
    if numbered and {name.upper() for name in _small(answer)} == numbered:
        if _small(gold) or names(answer) & numbered:
            return answer
        return _with_names(answer, {name: name.upper() for name in _small(answer)})
    factor = gold[0] == "rel" and names(gold) > {"C"}  # y = C e^x
    if (
        not (factor or any(top[0] == "+" and _C in top for top in walk(gold)))
        or "c" in names(gold)
        or "C" in names(answer)
    ):
        return answer
    if sum(top == _SMALL_C for top in walk(answer)) != 1:
        return answer
    return substitute(answer, _SMALL_C, _C)


def _constants(gold: Node, answer: Node) -> dict[str, str] | None:
    """The constants of integration of an answer with their names in the gold; None where they are none.

    The gold is a solution such as ``y = C e^x`` or ``y = C_1 x + C_2``; the constants of the answer are the only names
    that the gold does not have, and as many as it lacks. What is only added (``y = x^2 + C``) may be any letter else.
    """
    if not _is_solution(gold):
        return None
    name, value = gold[1]
    wanted = sorted(filter(_is_constant, names(gold) - names(answer)))
    given = sorted(names(answer) - names(gold))
    other = assignment(answer)
    whose = other[0] if other is not None else name
    if not wanted or len(wanted) != len(given) or not _CONSTANT_NAMES.issuperset(given):
        return None
    if names(whose) & set(given) or not same_name(name, whose) or (value[0] == "+" and _C in value):
        return None
    return dict(zip(given, wanted, strict=True))


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


def _small(node: Node) -> set[str]:
    return {name for name in names(node) if name.startswith("c_")}
