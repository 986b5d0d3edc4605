"""From a completion and a gold answer to a verdict, as far as plain arithmetic takes it."""

from collections.abc import Callable
from functools import lru_cache
from typing import Any

from grpo_verifiers.math.compare import compare
from grpo_verifiers.math.extract import Found, extract
from grpo_verifiers.math.form import is_final, open_to_algebra
from grpo_verifiers.math.gold import MAX_GOLD, Gold, as_text, gold_of
from grpo_verifiers.math.leaf import Leaf, Outcome, quick
from grpo_verifiers.math.letters import option_of
from grpo_verifiers.math.options import Options
from grpo_verifiers.math.read import read, read_prose, undelimited, with_decimal_point
from grpo_verifiers.math.relations import may_be_solved
from grpo_verifiers.math.signs import expand_signs
from grpo_verifiers.math.tokens import ParseError
from grpo_verifiers.math.tree import Node
from grpo_verifiers.verdict import Status, Verdict

MAX_DETAIL = 200
Decide = Callable[[str, str, Options], Outcome]  # one stated answer, the gold's text, the policies


def judge(completion: str, answer: Any, options: Options) -> Verdict | None:
    """The verdict if exact arithmetic decides it; None where an algebra system has to."""
    return _judged(completion, answer, options)[0]


def judge_or_shorten(completion: str, answer: Any, options: Options) -> Verdict | dict[str, str] | None:
    """The verdict; or arguments with a completion that states the same answer and nothing else; or neither."""
    verdict, found = _judged(completion, answer, options)
    if verdict is not None or found is None or len(found.answers) != 1:
        return verdict
    boxed = "\\boxed{" + found.answers[0] + "}"
    if len(boxed) >= len(completion) or extract(boxed, options) != Found(found.answers):
        return None
    return {"completion": boxed, "answer": as_text(answer)}


def _judged(completion: str, answer: Any, options: Options) -> tuple[Verdict | None, Found | None]:
    try:
        gold = gold_of(as_text(answer))
    except TypeError as error:
        return Verdict(None, Status.NOT_APPLICABLE, str(error)), None
    if gold.empty:
        return Verdict(None, Status.NOT_APPLICABLE, "the gold answer is empty"), None
    if gold.node is None and len(gold.text) > MAX_GOLD:
        return Verdict(None, Status.NOT_APPLICABLE, f"the gold answer cannot be read: {gold.problem}"), None
    found = extract(completion, options)
    if gold.node is None:
        return None, found  # an algebra system may read it
    if found.problem:
        return _verdict(Status.UNPARSABLE, found.problem), found
    return combine(gold, found, options, decide), found


def combine(gold: Gold, found: Found, options: Options, decide_one: Decide) -> Verdict | None:
    """The verdict over all statements of a completion: every one has to be right."""
    if len(found.answers) > 1 and gold.node is not None and expand_signs(gold.node)[0] in {"list", "set"}:
        parts = _parts(found.answers, gold, options, decide_one)
        if parts is None:
            return None
        found = Found(parts, found.asides)
    outcomes: list[tuple[Outcome | None, str]] = []
    for text in found.answers:
        try:
            outcomes.append((decide_one(text, gold.text, options), ""))
        except ParseError as error:
            outcomes.append((None, str(error)))
    wrong = [outcome[1] for outcome, _ in outcomes if outcome is not None and outcome[0] is False]
    broken = [problem for outcome, problem in outcomes if outcome is None]
    if (wrong or broken) and len(outcomes) > 1:
        return _verdict(Status.WRONG, f"{len(outcomes)} different answers are stated")
    if wrong:
        return _verdict(Status.WRONG, wrong[0])
    if broken:
        return _verdict(Status.UNPARSABLE, f"the answer cannot be read: {broken[0]}")
    undecided = any(outcome is not None and outcome[0] is None for outcome, _ in outcomes)
    for text in found.asides:
        if _contradicts(text, gold, options):
            return _verdict(Status.WRONG, f"another answer is stated beside it: {text[:40]}")
    return None if undecided else _verdict(Status.CORRECT, "")


@lru_cache(maxsize=2048)
def decide(text: str, gold: str, options: Options) -> Outcome:
    """Compare one stated answer with the gold one, without an algebra system.

    Completions of one prompt repeat their answers, so the comparison is kept.

    Raises:
        ParseError: the stated answer cannot be read.
    """
    return decide_with(text, gold, options, quick)


def decide_with(text: str, gold_text: str, options: Options, leaf: Leaf) -> Outcome:
    """Compare one stated answer with the gold one; ``leaf`` decides plain expressions."""
    gold = gold_of(gold_text)
    if gold.node is None:
        return None, gold.problem
    if _squeezed(text) == _squeezed(gold.text):
        return True, ""
    if gold.node[0] == "v" or gold.option:
        letter = option_of(text) or text.strip(" ().")
        if letter == (gold.option or gold.node[1]):
            return True, ""
    text, node = _read(text, gold.node, gold.text, options)
    if node is None:
        return None, "outside this grammar"
    outcome, reason = compare(gold.node, node, options, leaf)
    if outcome is False and options.decimal_comma and node[0] == "list" and is_final(gold.node):
        point = with_decimal_point(undelimited(text))
        if point is not None and compare(gold.node, point, options, leaf)[0]:
            return True, ""
    return outcome, reason


def _read(text: str, gold: Node, gold_text: str, options: Options) -> tuple[str, Node | None]:
    try:
        node = read(text)
        if node[0] != "text" or gold[0] == "text" or " " not in node[1]:
            return text, node
        # a sentence for a value: the answer may be inside it
        return read_prose(text, with_last_number=options.last_number) or (text, node)
    except RecursionError as error:
        raise ParseError("nested too deeply") from error
    except ParseError as error:
        problem = error
    if (inner := read_prose(text, with_last_number=options.last_number)) is not None:
        return inner
    if not open_to_algebra(gold, gold_text, text) or not may_be_solved(gold, text):
        raise problem
    return text, None


def _parts(answers: tuple[str, ...], gold: Gold, options: Options, decide_one: Decide) -> tuple[str, ...] | None:
    """Several boxes as one list: one for each item, and perhaps a last one that repeats them all; None: undecided."""
    try:
        last = decide_one(answers[-1], gold.text, options)[0]
    except ParseError:
        last = False
    if last is None:
        return None
    items = answers[:-1] if last else answers
    joined = ", ".join(undelimited(item) for item in items)
    return (joined, answers[-1]) if last else (joined,)


def _contradicts(text: str, gold: Gold, options: Options) -> bool:
    """Whether a weaker statement certainly says something else: only plain numbers are sure to be meant as answers."""
    if gold.node is None or not is_final(gold.node):
        return False
    try:
        node = read(text)
        return is_final(node) and decide(text, gold.text, options)[0] is False
    except (ParseError, RecursionError):
        return False


def _squeezed(text: str) -> str:
    return " ".join(undelimited(text).split())


def _verdict(status: Status, detail: str) -> Verdict:
    return Verdict(1.0 if status is Status.CORRECT else 0.0, status, detail[:MAX_DETAIL])
