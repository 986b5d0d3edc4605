"""Gold answers checked before anything runs: each must be readable and accept itself."""

from collections.abc import Iterable
from typing import Any

from grpo_verifiers.base.golds import ColumnReport, GoldProblem
from grpo_verifiers.math.gold import as_text, gold_of
from grpo_verifiers.math.grammar.tokens import ParseError
from grpo_verifiers.math.judge import decide
from grpo_verifiers.math.options import Options


def problem_of(answer: Any, options: Options, row: int = 0) -> GoldProblem | None:
    """The problem of one gold answer, found in bounded time; None when it accepts itself."""
    try:
        gold = gold_of(as_text(answer))
    except TypeError as error:
        return GoldProblem(row, answer, str(error), "the rows of this gold are left out")
    if gold.empty:
        return GoldProblem(row, answer, "it is empty", "its completions get no score and are left out")
    if gold.node is None:
        return GoldProblem(row, answer, f"it cannot be read ({gold.problem})", "its completions get no score")
    try:
        outcome, reason = decide(gold.text, gold.text, options)
    except ParseError as error:
        outcome, reason = False, str(error)
    return None if outcome else GoldProblem(row, answer, f"it does not accept itself ({reason})", "no answer is right")


def check_answers(answers: Iterable[Any], options: Options) -> ColumnReport:
    """Check a column of gold answers."""
    total, problems = 0, []
    for row, answer in enumerate(answers):
        total += 1
        if (problem := problem_of(answer, options, row)) is not None:
            problems.append(problem)
    return ColumnReport(total, tuple(problems))
