"""The rows of a dataset: prompts that are empty, or there more than once, or in the held-out part as well."""

from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass

from grpo_plus.doctor.finding import Finding, ok, problem, warning

SHOWN = 5

ROWS = ok("rows", "Rows of the training data that were looked at.")
EMPTY = problem(
    "prompt-empty",
    "The prompt asks nothing: what the completions are rewarded for has nothing to do with it.",
    "Drop those rows, or name the column of the question (prompt: {column: NAME}).",
)
DUPLICATE = warning(
    "prompt-duplicate",
    "The same prompt, with the same gold, is there several times: it is drawn more often than others.",
    "Drop the copies, unless they are meant as a weight.",
)
CONFLICT = problem(
    "prompt-conflict",
    "The same prompt has different golds: what is right in one row is wrong in the other.",
    "Correct or drop those rows.",
)
HELD_OUT = warning(
    "test-in-train",
    "Prompts that the run is measured on are trained on as well: the accuracy on them says nothing about new ones.",
    "Drop them from one of the two.",
)


@dataclass(frozen=True)
class Rows:
    """Rows of the training data.

    Attributes:
        prompts: each row's prompt, as a key.
        empty: rows whose prompt has no text.
        golds: what each row's completions are compared with, as a key.
        held_out: prompts of the data that the run is measured on.
        total: rows of the training data; None: a stream.
        repeats: the same prompt may come again (an environment makes something of the other columns).
    """

    prompts: Sequence[Hashable]
    empty: Sequence[int] = ()
    golds: Sequence[Hashable] = ()
    held_out: Sequence[Hashable] = ()
    total: int | None = None
    repeats: bool = False


def row_findings(facts: Rows) -> Iterator[Finding]:
    """Each kind of row that should not be there."""
    looked = len(facts.prompts)
    yield ROWS.at("training data", f"{looked} of {'a stream' if facts.total is None else facts.total} rows")
    if facts.empty:
        yield EMPTY.at("prompts", _listed(facts.empty, looked))
    empty = set(facts.empty)
    if not facts.repeats:
        golds = facts.golds or [None] * looked
        first: dict[Hashable, int] = {}
        copies: list[tuple[int, int]] = []
        conflicts: list[tuple[int, int]] = []
        for row, (prompt, gold) in enumerate(zip(facts.prompts, golds, strict=True)):
            if row in empty:
                continue
            before = first.setdefault(prompt, row)
            if before != row:
                (copies if golds[before] == gold else conflicts).append((before, row))
        if copies:
            yield DUPLICATE.at("prompts", _pairs(copies, looked))
        if conflicts:
            yield CONFLICT.at("prompts", _pairs(conflicts, looked))
    trained = Counter(facts.prompts)
    both = [row for row, prompt in enumerate(facts.held_out) if prompt in trained]
    if both:
        yield HELD_OUT.at("held-out data", _listed(both, len(facts.held_out)))


def _listed(rows: Sequence[int], count: int) -> str:
    more = ", …" if len(rows) > SHOWN else ""
    return f"{len(rows)} of {count} rows: {', '.join(map(str, rows[:SHOWN]))}{more}"


def _pairs(pairs: Sequence[tuple[int, int]], count: int) -> str:
    more = ", …" if len(pairs) > SHOWN else ""
    shown = ", ".join(f"{later} repeats {earlier}" for earlier, later in pairs[:SHOWN])
    return f"{len(pairs)} of {count} rows: {shown}{more}"
