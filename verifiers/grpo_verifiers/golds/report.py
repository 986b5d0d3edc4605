"""Reports on the golds of a dataset: which rows cannot teach, and why."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

MAX_SHOWN = 60


@dataclass(frozen=True)
class GoldProblem:
    """One gold that the verifier cannot use as it stands.

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
class ColumnReport:
    """What the check of a column of golds found.

    Attributes:
        total: how many golds were looked at.
        problems: the ones that are no use.
        claim: what holds for the others, as the end of a sentence.
    """

    total: int
    problems: tuple[GoldProblem, ...] = ()
    claim: str = "gold answers accept themselves"

    @property
    def ok(self) -> bool:
        """Whether every gold can be used."""
        return not self.problems

    def lines(self, limit: int | None = 20) -> Iterator[str]:
        """The report for people, at most ``limit`` problems of it."""
        bad = len({problem.row for problem in self.problems})
        yield f"{self.total - bad} of {self.total} {self.claim}."
        shown = self.problems if limit is None else self.problems[:limit]
        for problem in shown:
            yield str(problem)
        if len(shown) < len(self.problems):
            yield f"... and {len(self.problems) - len(shown)} more."

    def at(self, places: Sequence[int]) -> "ColumnReport":
        """The report on rows that were chosen from a dataset, with their places there."""
        moved = tuple(replace(problem, row=places[problem.row]) for problem in self.problems)
        return replace(self, problems=moved)
