"""Verifiers on the rows: columns, routes, golds that do not accept themselves, and tests that show nothing."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from grpo_plus.doctor.finding import Finding, ok, problem, warning

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


_FAULTS = {
    "rejected": REJECTED,
    "unusable": UNUSABLE,
    "empty": EMPTY,
    "reference": REFERENCE,
    "idle": IDLE,
    "nothing": NOTHING,
}


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


@dataclass(frozen=True)
class Routes:
    """The routing column, the labels of the verifiers, and the values of the rows."""

    column: str
    labels: Sequence[str]
    values: Sequence[object]
    thing: str = "verifier_column"


def route_findings(facts: Routes) -> Iterator[Finding]:
    """Values without a verifier, and verifiers that no row names."""
    named = dict.fromkeys(facts.values)
    for value in named:
        if value not in facts.labels:
            known = ", ".join(facts.labels)
            yield ROUTE.at(facts.thing, f"column {facts.column!r} says {value!r}; there is {known}")
    for label in facts.labels:
        if label not in named:
            yield UNUSED.at(f"verifier {label}", f"column {facts.column!r} of {len(facts.values)} rows never says it")


def column_findings(missing: Sequence[tuple[str, str]]) -> Iterator[Finding]:
    """Each reward, and what it lacks."""
    yield from (COLUMN.at(reward, text) for reward, text in missing)
