r"""Verifiers on the rows: each gold is checked by its own verifier.

A verifier's own check of golds is used if it has one. Otherwise a gold is written as a completion in the usual forms:
bare, in ``\boxed{}``, in ``<answer>``, in a sentence, and after a thinking section. It is accepted if one of them
scores above an empty completion.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from grpo_plus.check.finding import CheckFinding, FindingKind, ok, problem, warning
from grpo_verifiers.base import Verifier
from grpo_verifiers.base.golds import IDLE_SCORES, RIGHT_FAILS, BrokenReport, ColumnReport, GoldProblem, GoldReports
from grpo_verifiers.errors.messages import show
from grpo_verifiers.verdict import Status

SHOWN = 3
TRIALS = 10
"""Rows on which a verifier without golds is tried."""

GOLDS = ok("golds", "Every checked gold is accepted, or its tests distinguish right from wrong.")
REJECTED = problem(
    "gold-rejected",
    "The verifier does not accept the row's own gold: no completion of the row can be right.",
    "Correct the gold, drop the row, or set the verifier's options to the form of the golds.",
)
NONE_ACCEPTED = warning(
    "golds-unproven",
    "The verifier scored no gold above an empty completion, in any of the usual forms: either it needs a form that "
    "was not tried, or its column is the wrong one.",
    "Score a right completion by hand: grpo-plus verify FILE --verifier NAME.",
)
EMPTY = problem(
    "gold-empty",
    "The gold is empty: completions of the row get no score from this verifier.",
    "Fill it or drop the row.",
)
UNUSABLE = problem(
    "gold-unusable",
    "The verifier cannot read the row's gold or tests, or they decide nothing: its completions get no score.",
    "Correct them, or drop the row.",
)
REFERENCE = problem(
    "reference-fails",
    "The row's reference solution does not pass its own tests: right programs may score 0.",
    "Correct the tests or the solution, raise the limits of time and memory, or drop the row.",
)
IDLE = problem(
    "idle-passes",
    "A program that does nothing passes the row's tests: the model learns to write that.",
    "Add tests that such a program fails, or drop the row.",
)
NOTHING = problem(
    "empty-completion-scores",
    "An empty completion scores as much as the gold: the model learns to write nothing.",
    "Correct the verifier or the golds of those rows.",
)
UNCHECKED = warning(
    "golds-unchecked",
    "The golds of this verifier could not be tried.",
    "Read the error: training may end with the same.",
)
TRIED = ok("verifier-tried", "The verifier has no golds; it judged a sample completion on some rows.")
FAILS = problem(
    "verifier-fails",
    "The verifier fails on all tried rows of the data: their completions would score 0.",
    "Read the error: training would repeat it.",
)
COLUMN = problem(
    "column-missing",
    "A reward function needs a column that the data does not have: the run stops in its first step.",
    "Add the column to the data, or give the function's parameter a default.",
)


GOLD = "answer"
ITSELF = "does not accept itself"
"""Part of the reason for a readable gold that is not equal to itself."""
_PLAIN = ("{}", "\\boxed{{{}}}", "<answer>{}</answer>", "The answer is {}.", "The answer is \\boxed{{{}}}.", "#### {}")
_THINKING = "<think>\nLet me see.\n</think>\n"
FORMS = (*_PLAIN, *(_THINKING + form for form in _PLAIN))
REMOTE = ("judge", "prm")
"""Verifiers that call a server or load a model; the check sends nothing."""


_FAULTS = (NONE_ACCEPTED, REJECTED, UNUSABLE, EMPTY, REFERENCE, IDLE, NOTHING)
"""Problems of a gold, in the order of the report."""
Fault = tuple[FindingKind, int, str]
"""Problem of a row's gold, the row, and the explanation."""


class AllFailedError(RuntimeError):
    """A verifier fails on each row."""


def reaches_out(described: Mapping[str, Any]) -> bool:
    """Return True if a verifier, or a part of it, uses a server or a model."""
    parts = described.get("parts", ())
    inner = [*parts, *described.get("routes", {}).values()]
    return described.get("name") in REMOTE or any(map(reaches_out, inner))


def gold_findings(
    verifier: Verifier,
    columns: Mapping[str, Sequence[Any]],
    places: Sequence[int],
    prompts: Sequence[Any],
    *,
    unchecked: Callable[[str], None],
    seconds: float | None = None,
) -> list[CheckFinding]:
    """Check the golds of rows (as columns), with one finding for each kind of fault.

    A verifier without golds, which is reported to ``unchecked``, judges a completion on each of `TRIALS` rows.
    ``places`` are the indices of the rows in the data. Trials that would take more than about ``seconds`` are of fewer
    rows.
    """
    thing, tried = f"verifier {verifier.label}", len(places)
    try:
        names = [name for name in dict.fromkeys(verifier.gold_columns.values()) if name in columns]
        report = verifier.check_golds({name: columns[name] for name in names})
        column = {**verifier.optional_columns, **verifier.required_columns}.get(GOLD)
        if report is not None:
            faults = _report_faults(report, places)
        elif column is not None and column in columns:
            faults, tried = _trial_faults(verifier, columns, places, prompts, column, seconds)
        else:
            unchecked(f"golds of {verifier.label}: it has none to check")
            rows = range(min(TRIALS, len(prompts)))
            _scores(verifier, columns, prompts, rows, [FORMS[row].format("1" * row) for row in rows])
            return [TRIED.at(thing, f"{len(rows)} rows tried")]
    except AllFailedError as error:
        return [FAILS.at(thing, error)]
    except Exception as error:  # noqa: BLE001 - a verifier may raise anything; the other checks go ahead
        return [UNCHECKED.at(thing, f"{type(error).__name__}: {error}")]
    findings = []
    for kind in _FAULTS:
        if bad := [(row, text) for of, row, text in faults if of is kind]:
            shown = "; ".join(f"row {row}: {text}" for row, text in bad[:SHOWN]) + "; …" * (len(bad) > SHOWN)
            value = f"{len({row for row, _ in bad})} of {tried} rows: {shown}"
            value = f"none of {tried} rows; {bad[0][1]}" if kind is NONE_ACCEPTED else value
            findings.append(kind.of_rows(thing, value, len({row for row, _ in bad}) / tried))
    return findings or [GOLDS.at(thing, f"{tried} rows tried")]


def _report_faults(report: Any, places: Sequence[int]) -> list[Fault]:
    if isinstance(report, GoldReports):
        return [fault for _, part in report.parts for fault in _report_faults(part, places)]
    if isinstance(report, ColumnReport):
        return [fault for each in report.problems for fault in _of_problem(each, places)]
    if isinstance(report, BrokenReport):
        raise RuntimeError(report.reason)  # noqa: TRY004 - an error of the verifier, not of a type
    return [] if report.ok else [(REJECTED, places[0], "; ".join(report.lines(limit=3)))]


def _of_problem(problem: GoldProblem, places: Sequence[int]) -> list[Fault]:
    kinds = [kind for words, kind in ((RIGHT_FAILS, REFERENCE), (IDLE_SCORES, IDLE)) if words in problem.treatment]
    if not kinds:
        empty = problem.answer is None or not str(problem.answer).strip()
        kinds = [EMPTY if empty else REJECTED if ITSELF in problem.reason else UNUSABLE]
    return [(kind, places[problem.row], f"{show(problem.answer)}: {problem.reason}") for kind in kinds]


def _trial_faults(  # noqa: PLR0917 - rows as columns
    verifier: Verifier,
    columns: Mapping[str, Sequence[Any]],
    places: Sequence[int],
    prompts: Sequence[Any],
    column: str,
    seconds: float | None,
) -> tuple[list[Fault], int]:
    """Return the faults of golds written as completions, and the number of rows tried."""
    golds = columns[column]
    usable = [row for row, gold in enumerate(golds) if not _is_blank(gold)]
    faults = [(EMPTY, place, show(gold)) for place, gold in zip(places, golds, strict=True) if _is_blank(gold)]
    texts = {row: gold[0] if isinstance(gold := golds[row], list | tuple) and gold else gold for row in usable}
    best: dict[int, float] = {}
    start = time.monotonic()
    nothing = dict(zip(usable, _scores(verifier, columns, prompts, usable, [""] * len(usable)), strict=True))
    needed = (time.monotonic() - start) * len(FORMS)
    if seconds is not None and needed > seconds:
        usable = usable[: max(1, int(len(usable) * seconds / needed))]
    for form in FORMS:
        left = [row for row in usable if best.get(row, 0) < 1]
        written = [form.format(texts[row]) for row in left]
        for row, score in zip(left, _scores(verifier, columns, prompts, left, written), strict=True):
            if score is not None:
                best[row] = max(score, best.get(row, score))
    rejected = []
    for row in usable:
        silent, score = nothing[row], best.get(row)
        if score is None:
            rejected.append((row, "gets no score in any form"))
        elif silent is not None and silent >= max(score, 1):
            faults.append((NOTHING, places[row], f"{show(golds[row])}: an empty completion scores {silent:g}"))
        elif score <= (silent or 0):
            rejected.append((row, f"scores {score:g}"))
    tried = len(usable) + sum(map(_is_blank, golds))
    kind = NONE_ACCEPTED if len(rejected) + len(faults) == tried else REJECTED
    return [*faults, *((kind, places[row], f"{show(golds[row])} {why}") for row, why in rejected)], tried


def _is_blank(gold: Any) -> bool:
    return gold is None or gold != gold or (isinstance(gold, str) and not gold.strip())  # noqa: PLR0124 - NaN


def _scores(
    verifier: Verifier,
    columns: Mapping[str, Sequence[Any]],
    prompts: Sequence[Any],
    rows: Sequence[int],
    completions: Sequence[str],
) -> list[float | None]:
    if not rows:
        return []
    selected = {name: [values[row] for row in rows] for name, values in columns.items()}
    verdicts = verifier.verify_batch([prompts[row] for row in rows], completions, None, **selected)
    if late := [one for one in verdicts if one.status is Status.TIMEOUT]:
        raise TimeoutError(late[0].detail or "it took longer than its timeout")
    if broken := [one for one in verdicts if one.status is Status.ERROR and one.score is not None]:
        raise (AllFailedError if len(broken) == len(verdicts) else RuntimeError)(broken[0].detail)
    return [verdict.score for verdict in verdicts]
