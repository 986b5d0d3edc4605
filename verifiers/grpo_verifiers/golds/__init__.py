"""Check gold answers and tests before training."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol


class GoldReport(Protocol):
    """What a check of gold answers found."""

    @property
    def ok(self) -> bool:
        """Whether every gold can be used."""

    def lines(self, limit: int | None = 20) -> Iterable[str]:
        """The report for people, at most ``limit`` problems of it."""


@dataclass(frozen=True)
class GoldReports:
    """The reports of a composition's parts."""

    parts: tuple[tuple[str, GoldReport], ...]

    @property
    def ok(self) -> bool:
        """Whether every gold of every part can be used."""
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
