"""Gold answers checked before anything runs: each must be readable and accept itself."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from grpo_verifiers.math.gold import as_text, gold_of
from grpo_verifiers.math.judge import decide
from grpo_verifiers.math.options import Options
from grpo_verifiers.math.tokens import ParseError

MAX_SHOWN = 60


@dataclass(frozen=True)
class GoldProblem:
    """One gold answer that the verifier cannot use as it stands.

    Attributes:
        row: its place in the column, from 0.
        answer: the cell as stored.
        reason: what is wrong with it.
        treatment: what becomes of the row's rewards.
    """

    row: int
    answer: Any
    reason: str
    treatment: str

    def __str__(self) -> str:
        shown = repr(self.answer)
        shown = shown if len(shown) <= MAX_SHOWN else shown[: MAX_SHOWN - 3] + "..."
        return f"row {self.row}: {shown}: {self.reason}; {self.treatment}."


@dataclass(frozen=True)
class GoldReport:
    """What the check of a column of gold answers found.

    Attributes:
        total: how many golds were looked at.
        problems: the ones that do not accept themselves.
    """

    total: int
    problems: tuple[GoldProblem, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether every gold accepts itself."""
        return not self.problems

    def lines(self, limit: int | None = 20) -> Iterator[str]:
        """The report for people, at most ``limit`` problems of it."""
        yield f"{self.total - len(self.problems)} of {self.total} gold answers accept themselves."
        shown = self.problems if limit is None else self.problems[:limit]
        for problem in shown:
            yield str(problem)
        if len(shown) < len(self.problems):
            yield f"... and {len(self.problems) - len(shown)} more."


def problem_of(answer: Any, options: Options, row: int = 0) -> GoldProblem | None:
    """What is wrong with one gold answer, in bounded time; None when it accepts itself."""
    try:
        gold = gold_of(as_text(answer))
    except TypeError as error:
        return GoldProblem(row, answer, str(error), "the rows of this gold are left out")
    if gold.empty:
        return GoldProblem(row, answer, "it is empty", "its completions get no score and are left out")
    if gold.node is None:
        treatment = "math-verify is tried on it in the worker; where that fails too, its completions get no score"
        return GoldProblem(row, answer, f"it cannot be read ({gold.problem})", treatment)
    try:
        outcome, reason = decide(gold.text, gold.text, options)
    except ParseError as error:
        outcome, reason = False, str(error)
    return None if outcome else GoldProblem(row, answer, f"it does not accept itself ({reason})", "no answer is right")


def check_answers(answers: Iterable[Any], options: Options) -> GoldReport:
    """Check a column of gold answers."""
    total, problems = 0, []
    for row, answer in enumerate(answers):
        total += 1
        if (problem := problem_of(answer, options, row)) is not None:
            problems.append(problem)
    return GoldReport(total, tuple(problems))
