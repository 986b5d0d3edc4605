r"""Verifiers on the rows: columns, routes, and golds tried on their own verifiers.

A verifier's own check of golds is asked where it has one. Else a gold is written as a completion in the usual forms:
bare, in ``\boxed{}``, in ``<answer>``, in a sentence, and behind a thinking section. It is accepted where one of them
scores above an empty completion.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from grpo_plus.doctor.finding import Finding, ok, problem, warning
from grpo_verifiers.base import Verifier
from grpo_verifiers.base.golds import IDLE_SCORES, RIGHT_FAILS, BrokenReport, ColumnReport, GoldProblem, GoldReports
from grpo_verifiers.errors.messages import show
from grpo_verifiers.verdict import Status

SHOWN = 3

GOLDS = ok("golds", "Every gold that was looked at is accepted, or its tests tell right from wrong.")
REJECTED = problem(
    "gold-rejected",
    "The verifier does not accept the row's own gold: no completion of the row can be right.",
    "Correct the gold, drop the row, or set the verifier's options to the form of the golds.",
)
NONE_ACCEPTED = warning(
    "golds-unproven",
    "The verifier scored no gold above an empty completion, in any of the usual forms: either it wants a form that "
    "was not tried, or its column is the wrong one.",
    "Score a right completion by hand: grpo-plus verify FILE --verifier NAME.",
)
EMPTY = warning(
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
COLUMN = problem(
    "column-missing",
    "A reward needs a column that the data does not have: the run stops before, or in, its first step.",
    "Name the column (columns: {parameter: column} in the verifier's entry), or add it to the data.",
)
ROUTE = problem(
    "route-unknown",
    "The routing column names a verifier that there is not: the run stops.",
    "Add a verifier with that label, or correct the rows.",
)
UNUSED = warning(
    "verifier-unused",
    "No row names this verifier, so it never scores anything.",
    "Name it in the routing column, or remove it.",
)


GOLD = "answer"
ITSELF = "does not accept itself"
"""In the reason of a gold that was read, and is not equal to itself."""
_PLAIN = ("{}", "\\boxed{{{}}}", "<answer>{}</answer>", "The answer is {}.", "The answer is \\boxed{{{}}}.", "#### {}")
_THINKING = "<think>\nLet me see.\n</think>\n"
FORMS = (*_PLAIN, *(_THINKING + form for form in _PLAIN))
REMOTE = ("judge", "prm", "piston")
"""Verifiers, and options, that ask a server or load a model: nothing is sent for a look."""


_FAULTS = {
    "rejected": REJECTED,
    "unusable": UNUSABLE,
    "empty": EMPTY,
    "reference": REFERENCE,
    "idle": IDLE,
    "nothing": NOTHING,
}


@dataclass(frozen=True)
class GoldFault:
    """A row that a verifier cannot be used on as it stands: what is wrong (a kind), and the words about it."""

    kind: str
    row: int
    text: str


@dataclass(frozen=True)
class GoldTrial:
    """The golds of one verifier: how many rows were tried, in what way, and what was found.

    ``accepted`` is None for one that reads its own golds; else the number of golds that were accepted in some form.
    """

    label: str
    tried: int
    faults: Sequence[GoldFault] = ()
    accepted: int | None = None
    error: str = ""


def reaches_out(described: Mapping[str, Any]) -> bool:
    """A verifier, or a part of it, asks something outside."""
    parts = described.get("parts", ())
    inner = [*parts, *described.get("routes", {}).values()]
    options = described.get("options", {})
    return described.get("name") in REMOTE or bool(options.get("piston")) or any(map(reaches_out, inner))


def gold_trial(
    verifier: Verifier, columns: Mapping[str, Sequence[Any]], places: Sequence[int], prompts: Sequence[Any]
) -> GoldTrial | None:
    """Try the golds of rows, given as columns; None for a verifier without any."""
    label, count = verifier.label, len(places)
    try:
        names = [name for name in dict.fromkeys(verifier.gold_columns.values()) if name in columns]
        report = verifier.check_golds({name: columns[name] for name in names})
        if report is not None:
            return GoldTrial(label, count, _reported(report, places))
        column = {**verifier.optional_columns, **verifier.required_columns}.get(GOLD)
        if column is None or column not in columns:
            return None
        return _tried(verifier, columns, places, prompts, column)
    except Exception as error:  # noqa: BLE001 - a verifier may raise anything, and the rest is still worth a look
        return GoldTrial(label, count, error=f"{type(error).__name__}: {error}")


def _reported(report: Any, places: Sequence[int]) -> list[GoldFault]:
    """The faults in a report of a verifier's own check."""
    if isinstance(report, GoldReports):
        return [fault for _, part in report.parts for fault in _reported(part, places)]
    if isinstance(report, ColumnReport):
        return [fault for each in report.problems for fault in _of_problem(each, places)]
    if isinstance(report, BrokenReport):
        raise RuntimeError(report.reason)  # noqa: TRY004 - of the verifier, not of a type
    return [] if report.ok else [GoldFault("rejected", places[0], "; ".join(report.lines(limit=3)))]


def _of_problem(problem: GoldProblem, places: Sequence[int]) -> list[GoldFault]:
    kinds = [kind for words, kind in ((RIGHT_FAILS, "reference"), (IDLE_SCORES, "idle")) if words in problem.treatment]
    if not kinds:
        empty = problem.answer is None or not str(problem.answer).strip()
        kinds = ["empty" if empty else "rejected" if ITSELF in problem.reason else "unusable"]
    return [GoldFault(kind, places[problem.row], f"{show(problem.answer)}: {problem.reason}") for kind in kinds]


def _tried(
    verifier: Verifier, columns: Mapping[str, Sequence[Any]], places: Sequence[int], prompts: Sequence[Any], column: str
) -> GoldTrial:
    faults = []
    golds = columns[column]
    usable = []
    for row, gold in enumerate(golds):
        if gold is None or (isinstance(gold, str) and not gold.strip()):
            faults.append(GoldFault("empty", places[row], show(gold)))
        else:
            usable.append(row)
    best = dict.fromkeys(usable, float("-inf"))
    scored = set()
    nothing = dict(zip(usable, _scores(verifier, columns, prompts, usable, [""] * len(usable)), strict=True))
    for form in FORMS:
        left = [row for row in usable if not best[row] >= 1]
        written = [_form(form, golds[row]) for row in left]
        for row, score in zip(left, _scores(verifier, columns, prompts, left, written), strict=True):
            if score is not None:
                best[row] = max(best[row], score)
                scored.add(row)
    accepted = 0
    for row in usable:
        empty = nothing[row]
        if row not in scored:
            faults.append(GoldFault("rejected", places[row], f"{show(golds[row])} gets no score in any form"))
        elif empty is not None and empty >= max(best[row], 1):
            faults.append(
                GoldFault("nothing", places[row], f"{show(golds[row])}: an empty completion scores {empty:g}")
            )
        elif best[row] <= (empty or 0):
            faults.append(GoldFault("rejected", places[row], f"{show(golds[row])} scores {best[row]:g}"))
        else:
            accepted += 1
    return GoldTrial(verifier.label, len(places), faults, accepted)


def _form(form: str, gold: Any) -> str:
    one = gold[0] if isinstance(gold, list | tuple) and gold else gold
    return form.format(one)


def _scores(
    verifier: Verifier,
    columns: Mapping[str, Sequence[Any]],
    prompts: Sequence[Any],
    rows: Sequence[int],
    completions: Sequence[str],
) -> list[float | None]:
    if not rows:
        return []
    given = {name: [values[row] for row in rows] for name, values in columns.items()}
    verdicts = verifier.verify_batch([prompts[row] for row in rows], completions, None, **given)
    if late := [one for one in verdicts if one.status is Status.TIMEOUT]:
        raise TimeoutError(late[0].detail or "it took longer than its timeout")
    if broken := [one for one in verdicts if one.status is Status.ERROR and one.score is not None]:
        raise RuntimeError(broken[0].detail)
    return [verdict.score for verdict in verdicts]


def gold_findings(trial: GoldTrial) -> Iterator[Finding]:
    """The faults of each kind in one finding."""
    thing = f"verifier {trial.label}"
    if trial.error:
        yield UNCHECKED.at(thing, trial.error)
        return
    faults = list(trial.faults)
    rejected = [fault for fault in faults if fault.kind == "rejected"]
    if trial.accepted == 0 and rejected:
        yield NONE_ACCEPTED.at(thing, f"none of {trial.tried} rows; {rejected[0].text}")
        faults = [fault for fault in faults if fault.kind != "rejected"]
    for name, kind in _FAULTS.items():
        if found := [fault for fault in faults if fault.kind == name]:
            shown = "; ".join(f"row {fault.row}: {fault.text}" for fault in found[:SHOWN])
            more = "; …" if len(found) > SHOWN else ""
            yield kind.at(thing, f"{len({fault.row for fault in found})} of {trial.tried} rows: {shown}{more}")
    if not trial.faults and trial.tried:
        yield GOLDS.at(thing, f"{trial.tried} rows tried")


def route_findings(column: str, labels: Sequence[str], values: Sequence[object]) -> Iterator[Finding]:
    """Values of the routing column without a verifier, and verifiers that no row names."""
    named = dict.fromkeys(values)
    for value in named:
        if value not in labels:
            yield ROUTE.at("verifier_column", f"column {column!r} says {value!r}; there is {', '.join(labels)}")
    for label in labels:
        if label not in named:
            yield UNUSED.at(f"verifier {label}", f"column {column!r} of {len(values)} rows never says it")


def column_findings(missing: Sequence[tuple[str, str]]) -> Iterator[Finding]:
    """Each reward, and what it lacks."""
    yield from (COLUMN.at(reward, text) for reward, text in missing)
