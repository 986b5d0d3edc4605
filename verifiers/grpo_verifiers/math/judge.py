"""From a completion and a gold answer to a verdict."""

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

from grpo_verifiers.base.golds import ColumnReport, GoldProblem
from grpo_verifiers.math.compare.answers import any_form, compare, expand_signs
from grpo_verifiers.math.compare.leaf import Outcome
from grpo_verifiers.math.copied import is_copied
from grpo_verifiers.math.extract import StatedAnswers, extract
from grpo_verifiers.math.gold import Gold, as_text, gold_of, option_of
from grpo_verifiers.math.grammar.read import MAX_LONG, other_reading, read, strip_delimiters, without_text_commands
from grpo_verifiers.math.grammar.tokens import ParseError
from grpo_verifiers.math.options import Options
from grpo_verifiers.math.remarks import as_chain, without_remarks
from grpo_verifiers.math.tree import Node
from grpo_verifiers.math.values.work import is_final
from grpo_verifiers.reading.phrases import last_number, phrases
from grpo_verifiers.verdict import Status, Verdict

MAX_DETAIL = 200
_OR = re.compile(r"\bor\b|\\lor|\\vee|/|\|")
_PLAIN = frozenset({"n", "/", "big"})  # no remark can be inside these


def judge(completion: str, answer: Any, options: Options, prompt: str = "") -> Verdict:
    """The verdict on a completion."""
    try:
        gold = gold_of(as_text(answer))
    except TypeError as error:
        return Verdict(None, Status.NOT_APPLICABLE, str(error))
    if gold.node is None:
        problem = f"cannot be read: {gold.problem}" if gold.text else "is empty"
        return Verdict(None, Status.NOT_APPLICABLE, f"the gold answer {problem}"[:MAX_DETAIL])
    stated = extract(completion, options)
    if stated.problem:
        return _verdict(Status.UNPARSABLE, stated.problem)
    verdict = combine(gold, stated, options)
    if verdict.score != 1.0 or not prompt or is_final(gold.node) or len(stated.answers) > 1:
        return verdict
    if not is_copied(stated.answers[0], gold.node, prompt):
        return verdict
    return _verdict(Status.WRONG, "a formula of the prompt, word for word")


def combine(gold: Gold, stated: StatedAnswers, options: Options) -> Verdict:
    """The verdict over all statements of a completion: every one has to be right, so the first that is not decides."""
    if (
        len(stated.answers + stated.every) > 1
        and gold.node is not None
        and expand_signs(gold.node)[0] in {"list", "set"}
    ):
        stated = StatedAnswers(_parts(stated, gold, options), asides=stated.asides)
    for text in stated.answers:
        status = Status.WRONG
        try:
            outcome, reason = decide(text, gold.text, options)
        except ParseError as error:
            outcome, reason, status = False, f"the answer cannot be read: {error}", Status.UNPARSABLE
        if not outcome and len(stated.answers) > 1:
            return _verdict(Status.WRONG, f"{len(stated.answers)} different answers are stated")
        if not outcome:
            return _verdict(status, reason)
    for text in stated.asides:
        if _contradicts(text, gold, options):
            return _verdict(Status.WRONG, f"another answer is stated too: {text[:40]}")
    return _verdict(Status.CORRECT, "")


@lru_cache(maxsize=2048)
def decide(text: str, gold_text: str, options: Options) -> Outcome:
    """Compare one stated answer with the gold one; ParseError if it cannot be read. Answers of a prompt repeat."""
    gold = gold_of(gold_text)
    if gold.node is None:
        return False, gold.problem
    if len(text) > MAX_LONG:
        raise ParseError(f"an answer of more than {MAX_LONG} characters")
    if _single_spaced(text) == _single_spaced(gold.text):
        return True, ""
    if gold.node[0] == "text" and _normal_words(text) == _normal_words(gold.text):
        return True, ""
    if gold.node[0] == "v" or gold.option:
        letter = option_of(text) or text.strip(" ().")
        if letter == (gold.option or gold.node[1]):
            return True, ""
    if (
        gold.node[0] == "list"
        and _OR.search(text)
        and not _OR.search(gold.text)
        and all(node[0] == "v" and len(node[1]) == 1 for node in gold.node[1:])
    ):
        return False, "one of several options where all are expected"
    if (chain := as_chain(text, gold.node)) is not None and _is_right(chain, gold, options):
        return True, ""
    try:
        node = read(text)
        if node[0] == "text" and gold.node[0] != "text" and " " in node[1]:
            node = _in_sentence(text, options) or node
    except (ParseError, RecursionError) as error:
        if _is_right_without_remarks(text, gold.node, options):
            return True, ""
        if (inner := _in_sentence(text, options)) is None:
            raise ParseError("nested too deeply" if isinstance(error, RecursionError) else str(error)) from error
        node = inner
    outcome, reason = compare(gold.node, node, options)
    if not outcome and "list" in (node[0], gold.node[0]) and node[0] != gold.node[0]:
        first = other_reading(gold.text) if gold.node[0] == "list" else gold.node
        second = other_reading(text) if node[0] == "list" else node
        if first and second and is_final(first) and compare(first, second, options)[0]:
            return True, ""
    if not outcome and node[0] not in _PLAIN and _is_right_without_remarks(text, gold.node, options):
        return True, ""
    return outcome, reason


def _is_right(chain: str, gold: Gold, options: Options) -> bool:
    """True if an answer in two forms is right in both."""
    if gold.node is None or (node := _read_or_none(chain)) is None:
        return False
    # f (7) names 7 and does not say it twice
    exact = () if node[0] != "rel" else node[1][-2:-1] if node[2].endswith("~=") else node[1][-2:]
    return compare(gold.node, node, options)[0] and all(
        compare(gold.node, term, any_form(options))[0] for term in exact
    )


def _is_right_without_remarks(text: str, gold: Node, options: Options) -> bool:
    """True if an answer without its remarks is right; False if that cannot be read."""
    rest = without_remarks(text, gold)
    node = None if rest is None else _read_or_none(rest)
    return node is not None and compare(gold, node, options)[0]


def _in_sentence(text: str, options: Options) -> Node | None:
    """The one answer of a sentence that was put into a box."""
    stated = {value for value, _ in phrases(without_text_commands(text))}
    if not stated and options.last_number and (number := last_number(text)) is not None:
        stated = {number}
    return _read_or_none(stated.pop()) if len(stated) == 1 else None


def _read_or_none(text: str) -> Node | None:
    try:
        return read(text)
    except (ParseError, RecursionError):
        return None


def _parts(stated: StatedAnswers, gold: Gold, options: Options) -> tuple[str, ...]:
    """Several boxes as one list: one for each item, and perhaps a last one that repeats them all."""
    if stated.every:
        node = _read_or_none(stated.every[-1])
        listed = node is not None and node[0] in {"list", "set"}
        return stated.answers if listed else (", ".join(map(strip_delimiters, stated.every)),)
    answers = stated.answers
    try:
        last = decide(answers[-1], gold.text, options)[0]
    except ParseError:
        last = False
    items = answers[:-1] if last else answers
    joined = ", ".join(strip_delimiters(item) for item in items)
    return (joined, answers[-1]) if last else (joined,)


def _contradicts(text: str, gold: Gold, options: Options) -> bool:
    """True if a weaker statement contradicts the gold: only plain numbers are certainly answers."""
    if gold.node is None or not is_final(gold.node):
        return False
    try:
        node = read(text)
        return is_final(node) and not decide(text, gold.text, options)[0]
    except (ParseError, RecursionError):
        return False


def _single_spaced(text: str) -> str:
    return " ".join(strip_delimiters(text).split())


def _normal_words(text: str) -> str:
    return " ".join(without_text_commands(strip_delimiters(text)).casefold().strip(" .").split())


def _verdict(status: Status, detail: str) -> Verdict:
    return Verdict(1.0 if status is Status.CORRECT else 0.0, status, detail[:MAX_DETAIL])


def problem_of(answer: Any, options: Options, row: int = 0) -> GoldProblem | None:
    """The problem of one gold answer, in bounded time; None if it accepts itself."""
    try:
        gold = gold_of(as_text(answer))
    except TypeError as error:
        return GoldProblem(row, answer, str(error), "the rows of this gold are left out")
    if gold.node is None:
        problem = f"it cannot be read ({gold.problem})" if gold.text else "it is empty"
        return GoldProblem(row, answer, problem, "its completions get no score and are left out")
    try:
        outcome, reason = decide(gold.text, gold.text, options)
    except ParseError as error:
        outcome, reason = False, str(error)
    return None if outcome else GoldProblem(row, answer, f"it does not accept itself ({reason})", "no answer is right")


def check_answers(answers: Iterable[Any], options: Options) -> ColumnReport:
    """Check a column of gold answers."""
    problems = [problem_of(answer, options, row) for row, answer in enumerate(answers)]
    return ColumnReport(len(problems), tuple(filter(None, problems)))
