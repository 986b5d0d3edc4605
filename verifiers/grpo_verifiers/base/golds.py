"""Reports on the gold answers of a dataset: the unusable rows and the reasons.

Tests are checked before a run: the reference must pass, a program that does nothing must fail.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from grpo_verifiers.errors.messages import short
from grpo_verifiers.verdict import Verdict

MAX_SHOWN = 60
BATCH = 64
"""Rows in one batch of trials."""
CLAIM = "rows pass with their reference solution, where they have one, and fail with programs that do nothing"
CLAIM_OF_TESTS = "rows of tests fail programs that do nothing (there are no reference solutions)"
RIGHT_FAILS = "right programs may score 0"
IDLE_SCORES = "programs that do nothing score 1"
"""Effect of a failing reference, and of tests that pass a program that does nothing."""


class GoldReport(Protocol):
    """The result of a check of gold answers."""

    @property
    def ok(self) -> bool:
        """Every gold can be used."""

    def lines(self, limit: int | None = 20) -> Iterable[str]:
        """The report for people, at most ``limit`` problems of it."""


@dataclass(frozen=True)
class BrokenReport:
    """The report of a failed check of golds; ``reason`` is a sentence."""

    reason: str

    @property
    def ok(self) -> bool:
        """Always False: no gold was checked."""
        return False

    def lines(self, limit: int | None = 20) -> Iterator[str]:  # noqa: ARG002 - the signature of all reports
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


@dataclass(frozen=True)
class GoldProblem:
    """One gold that the verifier cannot use.

    ``row`` counts from 0, ``answer`` is the cell as stored, and ``treatment`` is the effect on the row's rewards.
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


@dataclass(frozen=True)
class Trial:
    """A completion with an expected verdict: it must score 1 (``passes``), or must not."""

    completion: str
    name: str
    passes: bool


def check_trials(
    rows: Sequence[Mapping[str, Any]],
    trials_of: Callable[[Mapping[str, Any]], Sequence[Trial]],
    verify: Callable[[Sequence[str], Sequence[Mapping[str, Any]]], Sequence[Verdict]],
) -> ColumnReport:
    """Try every row; ``verify`` judges completions, each with the values of its row."""
    problems = []
    golden = False
    for start in range(0, len(rows), BATCH):
        places = range(start, min(start + BATCH, len(rows)))
        tried = [(at, trial) for at in places for trial in trials_of(rows[at])]
        if strange := [trial for _, trial in tried if not isinstance(trial, Trial)]:
            raise TypeError(f"{short(strange[0])} is not a Trial")
        golden = golden or any(trial.passes for _, trial in tried)
        verdicts = verify([trial.completion for _, trial in tried], [rows[at] for at, _ in tried])
        bad: dict[int, list[tuple[Trial, Verdict]]] = {}
        for (at, trial), verdict in zip(tried, verdicts, strict=True):
            if verdict.score is None or (verdict.score == 1) is not trial.passes:
                bad.setdefault(at, []).append((trial, verdict))
        problems += [_problem(at, rows[at], mismatches) for at, mismatches in bad.items()]
    return ColumnReport(len(rows), tuple(problems), CLAIM if golden else CLAIM_OF_TESTS)


def _problem(at: int, row: Mapping[str, Any], mismatches: Sequence[tuple[Trial, Verdict]]) -> GoldProblem:
    tests = next(iter(row.values()))
    unusable = [verdict for _, verdict in mismatches if verdict.score is None]
    if unusable:
        return GoldProblem(at, tests, f"its tests are unusable ({unusable[0].detail})", "its completions are left out")
    right = [(trial.name, verdict.detail or verdict.status.value) for trial, verdict in mismatches if trial.passes]
    reasons, treatments = [f"{name} does not pass ({why})" for name, why in right], [RIGHT_FAILS] * len(right)
    nothing = [trial.name for trial, _ in mismatches if not trial.passes]
    if nothing:
        reasons.append(f"{'; '.join(nothing)} {'passes' if len(nothing) == 1 else 'pass'}")
        treatments.append(IDLE_SCORES)
    return GoldProblem(at, tests, "; ".join(reasons), ", and ".join(treatments))
