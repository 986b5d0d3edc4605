"""Tests of a dataset tried out before a run relies on them: the reference passes, what does nothing does not."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from grpo_verifiers.base.golds import ColumnReport, GoldProblem
from grpo_verifiers.errors.messages import short
from grpo_verifiers.verdict import Verdict

BATCH = 64
"""Rows that are tried at a time."""
CLAIM = "rows pass with their reference solution, where they have one, and fail with programs that do nothing"
CLAIM_OF_TESTS = "rows of tests fail programs that do nothing (no reference solutions were given)"
RIGHT_FAILS = "right programs may score 0"
IDLE_SCORES = "programs that do nothing score 1"
"""What becomes of rows whose reference fails, and of those that a program passes that does nothing."""


@dataclass(frozen=True)
class Trial:
    """A completion whose verdict is known beforehand: it has to score 1 (``passes``), or may not."""

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
            raise TypeError(f"{short(strange[0])} is no Trial")
        golden = golden or any(trial.passes for _, trial in tried)
        verdicts = verify([trial.completion for _, trial in tried], [rows[at] for at, _ in tried])
        bad: dict[int, list[tuple[Trial, Verdict]]] = {}
        for (at, trial), verdict in zip(tried, verdicts, strict=True):
            if verdict.score is None or (verdict.score == 1) is not trial.passes:
                bad.setdefault(at, []).append((trial, verdict))
        problems += [_problem(at, rows[at], found) for at, found in bad.items()]
    return ColumnReport(len(rows), tuple(problems), CLAIM if golden else CLAIM_OF_TESTS)


def _problem(at: int, row: Mapping[str, Any], found: Sequence[tuple[Trial, Verdict]]) -> GoldProblem:
    """Everything that is wrong with the tests of one row."""
    tests = next(iter(row.values()))
    unusable = [verdict for _, verdict in found if verdict.score is None]
    if unusable:
        return GoldProblem(at, tests, f"its tests are no use ({unusable[0].detail})", "its completions are left out")
    reasons, treatments = [], []
    for trial, verdict in found:
        if trial.passes:
            reasons.append(f"{trial.name} does not pass ({verdict.detail or verdict.status.value})")
            treatments.append(RIGHT_FAILS)
    nothing = [trial.name for trial, _ in found if not trial.passes]
    if nothing:
        reasons.append(f"{', '.join(nothing[:-1])}{' and ' * (len(nothing) > 1)}{nothing[-1]} {'passes' if len(nothing) == 1 else 'pass'}")
        treatments.append(IDLE_SCORES)
    return GoldProblem(at, tests, "; ".join(reasons), ", and ".join(treatments))
