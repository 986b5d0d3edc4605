r"""Two answers compared part by part: quantities, lists, tuples, intervals, sets, matrices, text.

Every comparison gives True or False and a short reason.

A vector is ``(1, 2)``, a column or row of a matrix, or a sum of unit vectors such as ``3\mathbf{i} - 4\mathbf{j}``.
"""

from dataclasses import replace
from functools import lru_cache

from grpo_verifiers.math.compare.leaf import Equal, Outcome, every, outcome_of, same_value, show, unequal_numbers
from grpo_verifiers.math.compare.naming import (
    CONSTANTS,
    compare_named,
    group_assignments,
    integers_of,
    is_angle_family,
    with_constants_of,
)
from grpo_verifiers.math.compare.quantities import _in_letters, _scale, _scale_between, angles, compound, quantity
from grpo_verifiers.math.compare.relations import compare_relations, same_name
from grpo_verifiers.math.compare.wording import texts
from grpo_verifiers.math.grammar.relations import is_named
from grpo_verifiers.math.options import Options
from grpo_verifiers.math.tree import OTHERWISE, STRUCTURES, Node, map_children, names, number, survey, walk
from grpo_verifiers.math.values.sets import HIGHEST, LOWEST, NoRegionError, Region, is_set, list_members, region_of

MAX_ITEMS = 64
_WORDS = frozenset({"unit", "text", "currency"})
_GROUPS = frozenset({"list", "set", "paren"})


def compare(gold: Node, answer: Node, options: Options) -> Outcome:
    """True if an answer is the gold one."""
    if gold == answer:
        return True, ""
    if (values := unequal_numbers(gold, answer)) is not None:
        return values
    in_gold, in_answer = survey(gold), survey(answer)
    if in_gold.variables & CONSTANTS:
        answer = with_constants_of(gold, answer)
    if "pi" in in_gold.variables or "mathbb Z" in in_gold.variables:
        gold, answer = integers_of(gold, answer)
    if "pm" in in_gold.kinds or "pm" in in_answer.kinds:
        if gold[0] == "pm" and answer[0] == "paren":
            return False, "a tuple where a value or its negative is expected"
        gold, answer = expand_signs(gold), expand_signs(answer)
        if "pm" in survey(gold).kinds | survey(answer).kinds:
            return False, "too many plus-or-minus signs"
    if gold[0] == "unit" and answer[0] == "list":
        answer = compound(answer)
    elif gold[0] == "list" and answer[0] == "unit":
        gold = compound(gold)
    if gold[0] == "list" or answer[0] == "list":
        gold, answer = group_assignments(gold), group_assignments(answer)

    def equal(left: Node, right: Node) -> Outcome:
        return compare(left, right, options)

    if _is_structured(gold) or _is_structured(answer):
        gold, answer = list_members(gold), list_members(answer)
        structured = compare_named(gold, answer, equal) or compare_sets(gold, answer, equal)
        if structured is not None:
            return structured
    if gold[0] == "rel" or answer[0] == "rel":
        return compare_relations(gold, answer, equal, lambda left, right: compare(left, right, any_form(options)))
    if (turned := angles(gold, answer)) is not None:
        return same_value(*turned, options)
    gold, gold_unit = quantity(gold)
    answer, unit = quantity(answer)
    if gold_unit and not unit:
        answer, unit = _in_letters(answer, gold_unit) or (answer, unit)
    elif unit and not gold_unit:
        gold, gold_unit = _in_letters(gold, unit) or (gold, gold_unit)
    scale = _scale_between(gold_unit, unit, options)
    if isinstance(scale, str):
        return False, scale
    if (gold_unit or unit) and (gold[0] == "%") != (answer[0] == "%"):
        return False, "a percentage is not a quantity with a unit"
    if scale != 1:
        answer = _scale(answer, scale)
    if gold[0] in STRUCTURES or answer[0] in STRUCTURES:
        return _structures(gold, answer, equal)
    if not _WORDS.isdisjoint(in_answer.kinds) and _has_words(answer) and not _has_words(gold):
        return False, "words inside an expression"
    return same_value(gold, answer, options)


def _is_structured(node: Node) -> bool:
    return node[0] in STRUCTURES or node[0] == "rel" or node[:2] == ("f", "mod") or is_angle_family(node)


def _has_words(node: Node) -> bool:
    return not _WORDS.isdisjoint(survey(node).kinds)


@lru_cache(maxsize=64)
def any_form(options: Options) -> Options:
    """The options with ``evaluated`` and ``reduced`` off."""
    return replace(options, evaluated=False, reduced=False)


def _structures(gold: Node, answer: Node, equal: Equal) -> Outcome:
    if gold[0] == "text" or answer[0] == "text":
        return texts(gold, answer)
    if gold[0] == "base" or answer[0] == "base":
        return _bases(gold, answer)
    if gold[0] == "paren" or answer[0] == "paren":
        size = len(gold if gold[0] == "paren" else answer) - 1
        gold, answer = as_tuple(gold, size), as_tuple(answer, size)
    elif "matrix" in {gold[0], answer[0]} and {gold[0], answer[0]} & {"+", "*", "-", "v"}:
        size = len(gold if gold[0] == "matrix" else answer) - 1  # a sum of unit vectors against a column
        pair = as_tuple(gold, size), as_tuple(answer, size)
        gold, answer = pair if pair[0][0] == pair[1][0] == "paren" else (gold, answer)
    if gold[0] in _GROUPS or answer[0] in _GROUPS:
        return _groups(gold, answer, equal)
    if gold[0] == "ratio" or answer[0] == "ratio":
        return _ratios(gold, answer, equal)
    if gold[0] != answer[0]:
        return False, "a different kind of answer"
    if gold[0] == "span":
        if (gold[1], gold[4]) != (answer[1], answer[4]):
            return False, "different brackets"
        return every(equal(a, b) for a, b in zip(gold[2:4], answer[2:4], strict=True))
    if gold[0] in {"and", "or", "cup", "cap"}:
        same_size = len(gold) == len(answer) <= MAX_ITEMS
        return unordered(gold[1:], answer[1:], equal) if same_size else (False, "a different number of parts")
    if gold[0] in {"builder", "minus"}:
        return every(equal(a, b) for a, b in zip(gold[1:], answer[1:], strict=True))
    if gold[0] == answer[0] == "cases" and all(len(row) == 3 for row in (*gold[1:], *answer[1:])):
        return _cases(gold, answer, equal)
    if gold[0] in {"matrix", "cases"}:
        if [len(row) for row in gold[1:]] != [len(row) for row in answer[1:]]:
            return False, "a matrix of a different shape"
        pairs = zip(gold[1:], answer[1:], strict=True)
        return every(equal(a, b) for left, right in pairs for a, b in zip(left[1:], right[1:], strict=True))
    return False, "a different kind of answer"


def _cases(gold: Node, answer: Node, equal: Equal) -> Outcome:
    """Compare values under conditions, in any order; "otherwise" in the answer is the gold's condition left over."""
    rows = answer[1:]
    if all(row[2] != OTHERWISE for row in gold[1:]):
        left = [row[2] for row in gold[1:] if not any(equal(row[2], other[2])[0] for other in rows)]
        rows = tuple((*row[:2], left[0]) if row[2] == OTHERWISE and len(left) == 1 else row for row in rows)
    if len(gold[1:]) != len(rows):
        return False, "a different number of cases"

    def same(piece: Node, other: Node) -> Outcome:
        condition = equal(piece[2], other[2])
        return equal(piece[1], other[1]) if condition[0] else condition

    return unordered(gold[1:], rows, same) if len(rows) <= MAX_ITEMS else (False, "too many cases")


def _groups(gold: Node, answer: Node, equal: Equal) -> Outcome:
    kinds = gold[0], answer[0]
    if not all(kind in _GROUPS for kind in kinds):
        group, single = (gold, answer) if gold[0] in _GROUPS else (answer, gold)
        if len(group) == 2 and group[0] == "set":
            return equal(group[1], single) if group is gold else equal(single, group[1])
        if group is answer:
            return False, "several answers where one is expected"
        return False, "one answer where several are expected"
    left, right = gold[1:], answer[1:]
    if len(left) > MAX_ITEMS or len(right) > MAX_ITEMS:
        return False, f"more than {MAX_ITEMS} items"
    if "paren" in kinds:
        if "list" in kinds and any(part[0] == "rel" for part in (*left, *right)):
            return False, "conditions where a tuple is expected"
        if "set" in kinds:
            return False, "a set is not a tuple"
        if len(left) != len(right):
            return False, f"{len(right)} items are not {len(left)}"
        return every(equal(a, b) for a, b in zip(left, right, strict=True))
    if {part[0] for part in right} == {"set"} and "set" not in {part[0] for part in left}:
        return False, "sets where values are expected"
    if "set" in kinds:
        left, right = tuple(dict.fromkeys(left)), tuple(dict.fromkeys(right))
    if len(left) != len(right):
        return False, f"{len(right)} items are not {len(left)}"
    if is_named(left) and not is_named(right):
        return every(equal(a, b) for a, b in zip(left, right, strict=True))
    return unordered(left, right, equal)


def unordered(left: tuple[Node, ...], right: tuple[Node, ...], equal: Equal) -> Outcome:
    """True if the items pair off in some order."""
    free = list(right)
    for item in left:
        index = next((index for index, other in enumerate(free) if equal(item, other)[0]), None)
        if index is None:
            return False, f"{show(item).replace('the answer', 'a value')} is missing"
        del free[index]
    return True, ""


def _bases(gold: Node, answer: Node) -> Outcome:
    if gold[0] == answer[0] == "base":
        same = gold[2] == answer[2] and gold[1].lstrip("0") == answer[1].lstrip("0")
        return outcome_of(same, "different digits" if gold[2] == answer[2] else f"base {answer[2]} is not {gold[2]}")
    based, plain = (gold, answer) if gold[0] == "base" else (answer, gold)
    if based[2] == 10 and plain[0] == "n" and based[1].isdigit():
        return outcome_of(plain[1] == int(based[1]), "different digits")
    return False, f"base {based[2]} on one side only"


def _ratios(gold: Node, answer: Node, equal: Equal) -> Outcome:
    parts = []
    for node in (gold, answer):
        if node[0] == "/":
            node = ("ratio", *node[1:])  # noqa: PLW2901 - a quotient read as a ratio
        if node[0] != "ratio":
            return False, "a ratio is not a number"
        parts.append(node[1:])
    if len(parts[0]) != len(parts[1]):
        return False, "a different number of parts"
    return every(equal(a, b) for a, b in zip(*parts, strict=True))


_POSSIBLE = frozenset({"paren", "set"})


def compare_sets(gold: Node, answer: Node, equal: Equal) -> Outcome | None:
    """Compare two answers of which one certainly is a set of numbers; None if the other one is no set."""
    certain = is_set(gold), is_set(answer)
    if not any(certain) or not all(
        sure or node[0] in _POSSIBLE for sure, node in zip(certain, (gold, answer), strict=True)
    ):
        return None
    if _closed_at_infinity(answer) and not _closed_at_infinity(gold):
        return False, "different brackets"
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
        return False, "a different variable"
    if gold.domain != answer.domain:
        return False, "another domain of numbers"
    if len(gold.parts) != len(answer.parts):
        return False, "a different set of numbers"
    pairs = list(zip(gold.parts, answer.parts, strict=True))
    if any((left.low_in, left.high_in) != (right.low_in, right.high_in) for left, right in pairs):
        return False, "different brackets"
    return every(
        equal(a.node, b.node) for left, right in pairs for a, b in ((left.low, right.low), (left.high, right.high))
    )


MAX_SIGNS = 3


def expand_signs(node: Node) -> Node:
    r"""``a \pm b`` as the list of its two values."""
    if node[0] in {"list", "set"}:
        items: list[Node] = []
        for part in node[1:]:
            grown = expand_signs(part)
            items.extend(grown[1:] if grown[0] == "list" and part[0] != "list" else [grown])
        return (node[0], *items)
    signs = sum(top[0] == "pm" for top in walk(node))
    if not 0 < signs <= MAX_SIGNS:
        return node
    variants = [node]
    for _ in range(signs):
        variants = [_sign(each, plus=plus) for each in variants for plus in (True, False)]
    return ("list", *dict.fromkeys(variants))


def _sign(node: Node, *, plus: bool) -> Node:
    """The tree with plus or minus in place of its first plus-or-minus sign."""
    done = False

    def visit(part: Node) -> Node:
        nonlocal done
        if done:
            return part
        if part[0] == "pm":
            done = True
            left, right = part[1], part[2] if plus else ("-", part[2])
            return right if left is None else ("+", left, right)
        return map_children(part, visit)

    return visit(node)


_UNITS = ("i", "j", "k")
_ACCENTS = ("", "hat ", "vec ", "bar ")


def as_tuple(node: Node, size: int) -> Node:
    """A vector of ``size`` parts as a tuple; anything else is unchanged."""
    if node[0] == "matrix":
        if len(node) == 2:
            return ("paren", *node[1][1:])
        return ("paren", *(row[1] for row in node[1:])) if all(len(row) == 2 for row in node[1:]) else node
    if node[0] in {"+", "*", "-", "v"} and size in {2, 3}:
        return _of_units(node, size) or node
    return node


def _of_units(node: Node, size: int) -> Node | None:
    """A sum of multiples of unit vectors; None for other sums."""
    marks = names(node)
    accent = next((mark for mark in _ACCENTS if {f"{mark}j", f"{mark}k"} & marks), None)
    if accent is None:
        return None
    basis = [("v", accent + unit) for unit in _UNITS[:size]]
    parts: dict[Node, Node] = {}
    for term in node[1:] if node[0] == "+" else (node,):
        multiple = _coefficient(term, basis)
        if multiple is None or multiple[0] in parts:
            return None
        parts[multiple[0]] = multiple[1]
    return ("paren", *(parts.get(unit, number(0)) for unit in basis))


def _coefficient(term: Node, basis: list[Node]) -> tuple[Node, Node] | None:
    """The unit vector of a term and its coefficient."""
    if term[0] == "-":
        inner = _coefficient(term[1], basis)
        return inner and (inner[0], ("-", inner[1]))
    factors = list(term[1:]) if term[0] == "*" else [term]
    units = [factor for factor in factors if factor in basis]
    if len(units) != 1:
        return None
    factors.remove(units[0])
    if any(unit in walk(factor) for factor in factors for unit in basis):
        return None
    rest = factors[0] if len(factors) == 1 else ("*", *factors) if factors else number(1)
    return units[0], rest
