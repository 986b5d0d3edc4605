"""Reports on the golds of a dataset: which rows cannot teach, and why."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from grpo_verifiers.errors.messages import short

MAX_SHOWN = 60


class GoldReport(Protocol):
    """The result of a check of gold answers."""

    @property
    def ok(self) -> bool:
        """Every gold can be used."""

    def lines(self, limit: int | None = 20) -> Iterable[str]:
        """The report for people, at most ``limit`` problems of it."""


@dataclass(frozen=True)
class BrokenReport:
    """The report of a check of golds that does not work; the reason is a sentence."""

    reason: str

    @classmethod
    def of(cls, what: str, error: Exception) -> "BrokenReport":
        """The report on a function of a verifier that raised."""
        return cls(f"{what} raised {short(error)}.")

    @property
    def ok(self) -> bool:
        """No gold was seen to be of use."""
        return False

    def lines(self, limit: int | None = 20) -> Iterator[str]:  # noqa: ARG002 - as of all reports
        """The reason."""
        yield f"the golds were not checked: {self.reason}"


@dataclass(frozen=True)
class GoldReports:
    """The reports of a composition's parts."""

    parts: tuple[tuple[str, GoldReport], ...]

    @property
    def ok(self) -> bool:
        """Every gold of every part can be used."""
        return all(report.ok for _, report in self.parts)

    def lines(self, limit: int | None = 20) -> Iterator[str]:
        """The reports one after the other, each line with its verifier."""
        for label, report in self.parts:
            for line in report.lines(limit=limit):
                yield f"{label}: {line}"

    def at(self, places: Sequence[int]) -> "GoldReports":
        """The reports on rows that were chosen from a dataset, with their places there."""
        return GoldReports(tuple((label, placed(report, places)) for label, report in self.parts))


def placed(report: GoldReport, places: Sequence[int]) -> GoldReport:
    """A report on chosen rows with their places in the dataset, where it can tell them."""
    at: Callable[[Sequence[int]], GoldReport] | None = getattr(report, "at", None)
    return report if at is None else at(places)


@dataclass(frozen=True)
class GoldProblem:
    """One gold that the verifier cannot use as it stands.

    ``row`` counts from 0, ``answer`` is the cell as stored, and ``treatment`` says what becomes of the row's rewards.
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
    """The result of a check of ``total`` golds of a column.

    ``claim`` holds for those without a problem, as the end of a sentence.
    """

    total: int
    problems: tuple[GoldProblem, ...] = ()
    claim: str = "gold answers accept themselves"

    @property
    def ok(self) -> bool:
        """Every gold can be used."""
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
