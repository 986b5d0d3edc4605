"""Equations, assignments, inequalities and memberships compared with each other and with plain values."""

from contextlib import suppress
from fractions import Fraction

from grpo_verifiers.math.compare.leaf import Equal, Outcome, outcome_of, show
from grpo_verifiers.math.grammar.relations import FLIPPED, assignment, is_name, ops_of, parameter, solution
from grpo_verifiers.math.tree import Node, names, substitute
from grpo_verifiers.math.values.canon import Form, NoFormError, canon, quotient, rational
from grpo_verifiers.math.values.numeric import real_value
from grpo_verifiers.math.words.vocabulary import FUNCTIONS

APPROXIMATELY = 0.01


def compare_relations(gold: Node, answer: Node, equal: Equal, same_value: Equal) -> Outcome:
    """Compare relations; ``same_value`` compares members of a chain, which need not be worked out."""
    answer = rename_variable(answer, gold)
    gold_solved, answer_solved = solution(gold), solution(answer)
    gold, answer = gold_solved or gold, answer_solved or answer
    if gold[0] != "rel":
        if _renames(gold, answer):
            return False, "one name for another"
        if answer[0] == "rel" and set(ops_of(answer)) <= {"<", ">", "<=", ">="}:
            return False, "a relation where a value is expected"
        return _with_checks(answer, gold, equal, same_value)
    if gold[2] == "in":
        if answer[0] != "rel":
            return equal(gold[1][1], answer)
        if answer[2] == "in":
            return _both(equal(gold[1][1], answer[1][1]), _same_names(gold[1][0], answer[1][0]))
        return compare_relations(gold[1][1], answer, equal, same_value)
    if gold_solved and answer[0] == "rel" and answer[2] in FLIPPED:
        return _compare_solved(gold_solved, answer_solved, equal)
    pair = assignment(gold)
    if answer[0] != "rel":
        if pair:
            return equal(pair[1], answer)
        return False, "a value where a relation is expected"
    if pair and answer[2] != "=" and set(ops_of(answer)) <= {"=", "~="}:
        if not same_name(pair[0], answer[1][0]):
            return False, "a different variable"
        return _with_checks(answer, pair[1], equal, same_value)
    if answer[2] == "in":
        if pair:
            return _both(equal(pair[1], answer[1][1]), _same_names(pair[0], answer[1][0]))
        return False, "a value where a relation is expected"
    return _relations(gold, answer, equal)


def _compare_solved(gold: Node, answer: Node | None, equal: Equal) -> Outcome:
    """Compare with a gold that is solved: an answer that is not may be the question itself."""
    if answer is None:
        return False, "a relation that is not solved"
    if not same_name(gold[1][0], answer[1][0]):
        return False, "a different variable"
    return equal(gold[1][1], answer[1][1]) if gold[2] == answer[2] else (False, "a different relation")


def _renames(gold: Node, answer: Node) -> bool:
    """True if an answer such as ``D = C`` names two options or two words."""
    first = answer[1][0]
    named = gold[0] == "text" or (gold[0] == "v" and gold[1].isupper())
    return bool(named and first[0] == gold[0] and first != gold)


def _both(first: Outcome, second: Outcome) -> Outcome:
    return second if first[0] else first


def same_name(left: Node, right: Node) -> bool:
    """True if two names are one: the same, a function of a variable by any name, and ``y`` for ``f(x)``."""
    if left == right:
        return True
    if left[0] == right[0] == "f" and left[1] == right[1]:
        with suppress(ValueError):  # no canonical form, or another number of arguments
            if all(canon(a) == canon(b) for a, b in zip(left[2], right[2], strict=True)):
                return True
    return any(
        parameter(function) and (name == ("v", function[1]) or (name == ("v", "y") and "'" not in function[1]))
        for function, name in ((left, right), (right, left))
    )


def _same_names(left: Node, right: Node) -> Outcome:
    return outcome_of(same_name(left, right), "a different variable")


def rename_variable(node: Node, gold: Node) -> Node:
    """A definition ``f(t) = ...`` with its variable renamed to the gold's."""
    pair = assignment(node)
    if pair is None or not (old := parameter(pair[0])):
        return node
    stated = assignment(gold)
    variables = {parameter(stated[0])} if stated else names(gold) - set(parameter(gold))
    new = variables.pop() if len(variables) == 1 else ""
    if not new or new == old or new in names(pair[1]) or old in names(gold):
        return node
    return substitute(node, ("v", old), ("v", new))


def _stated_value(node: Node) -> Node | None:
    r"""The value that ``x = 5``, ``\sqrt{4} = 2`` or ``x = 1/3 \approx 0.33`` states; None if it states none."""
    terms: tuple[Node, ...] = node[1]
    ops = ops_of(node)
    if ops == ("in",) and is_name(terms[0]) and _is_set(terms[1]):
        return terms[1]
    if not set(ops) <= {"=", "~="}:
        return None
    labels = min(_labels(terms), 1)
    signs = ops[labels:]
    return terms[labels + (signs.index("~=") if "~=" in signs else len(signs))]


def _labels(terms: tuple[Node, ...]) -> int:
    r"""The number of terms at the start of a chain that only name the value: ``AB = BC = 5``, ``m + n = 5``."""
    for index, term in enumerate(terms[:-1]):
        if (
            not is_name(term)
            and not (len(names(term)) > 1 and not names(terms[-1]))  # the quantity of a question: m + n = 25
            and not (term[0] == "f" and term[1] in FUNCTIONS and names(term) and not names(terms[-1]))
        ):
            return index
    return len(terms) - 1


def _is_set(node: Node) -> bool:
    return node[0] in {"span", "paren", "set", "cup", "cap", "minus"} or (
        node[0] == "v" and node[1].startswith("mathbb")
    )


def _with_checks(chain: Node, gold: Node, equal: Equal, same_value: Equal) -> Outcome:
    """Compare the stated value, and every link of the chain that led to it: ``41 = 42`` states nothing."""
    if (value := _stated_value(chain)) is None:
        return False, "a relation where a value is expected"
    outcome = equal(gold, value)
    terms, ops = chain[1], ops_of(chain)
    if not outcome[0] or ops == ("in",):
        return outcome
    for index in range(_labels(terms), len(ops)):
        left, right = terms[index], terms[index + 1]
        if not _holds(left, right, ops[index], same_value):
            sides = show(left), show(right)
            which = "" if "the answer" in sides else f"{sides[0]} is not {sides[1]}: "
            return False, f"{which}a false equation"
    return outcome


def _holds(left: Node, right: Node, op: str, same_value: Equal) -> bool:
    if op == "=":
        return same_value(left, right)[0]
    a, b = (real_value(node[1] if node[0] in {"unit", "deg", "currency"} else node) for node in (left, right))
    if a is None or b is None:
        return left == right
    return abs(a - b) <= APPROXIMATELY * max(abs(a), abs(b))


def _relations(gold: Node, answer: Node, equal: Equal) -> Outcome:
    left, right = assignment(gold), assignment(answer)
    if left and right and same_name(left[0], right[0]):
        return equal(left[1], right[1])
    one_each = len(gold[1]) == len(answer[1]) == 2
    return _single(gold, answer, equal) if one_each else (False, "a different chain of relations")


def _single(gold: Node, answer: Node, equal: Equal) -> Outcome:
    """One relation each: equal if their differences are, up to a factor that keeps or flips the sign."""
    ops = [gold[2], answer[2]]
    if not set(ops) <= set(FLIPPED):
        if ops[0] != ops[1]:
            return False, "a different relation"
        return _both(equal(gold[1][0], answer[1][0]), equal(gold[1][1], answer[1][1]))
    if ops == ["=", "="] and gold[1][0][0] == "f" and (answer[1][0][0] == "f" or "^" in gold[1][0][1]):
        return False, "a different function"
    left, right = (("+", node[1][0], ("-", node[1][1])) for node in (gold, answer))
    try:
        factor = _factor(canon(left), canon(right))
    except NoFormError:
        factor = None
    if factor is None:
        return False, "a different relation"
    op = ops[1] if factor > 0 else FLIPPED[ops[1]]
    return outcome_of(op == ops[0], "a different relation")


def _factor(gold: Form, answer: Form) -> Fraction | None:
    """The rational number by which one form is a multiple of the other."""
    if not gold[0] or not answer[0]:
        return Fraction(1) if not gold[0] and not answer[0] else None
    return rational(quotient(gold, answer))
