"""Lengths in tokens: prompts against the model's context, gold answers and solutions against a completion's limit."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from grpo_plus.doctor.finding import Finding, ok, problem, warning

LENGTHS = ok("lengths", "Lengths of prompts in tokens, as the model reads them.")
TOO_LONG = problem(
    "prompt-too-long",
    "A prompt and a completion at its limit exceed the context of the model: what lies beyond is noise or an error.",
    "Drop or shorten those rows, lower max_completion_length, or take a model with a longer context.",
)
ANSWER = problem(
    "answer-too-long",
    "The gold answer alone is longer than a completion may be: no completion of these rows can be right.",
    "Raise max_completion_length, or drop those rows.",
)
SOLUTION = warning(
    "solution-too-long",
    "The reference solution is longer than a completion may be: right completions are likely to be cut off.",
    "Raise max_completion_length, or drop those rows.",
)


@dataclass(frozen=True)
class Lengths:
    """Lengths of the rows that were looked at, in tokens.

    Attributes:
        prompts: of each row's prompt.
        context: the most positions of the model; None: no limit.
        limit: the most tokens of a completion; None: no limit.
        answers: of gold answers, by column and row.
        solutions: of worked solutions, by column and row.
        rows: the place of each row in its dataset.
    """

    prompts: Sequence[int]
    context: int | None
    limit: int | None
    answers: Mapping[str, Sequence[int | None]] = field(default_factory=dict)
    solutions: Mapping[str, Sequence[int | None]] = field(default_factory=dict)
    rows: Sequence[int] = ()


def length_findings(facts: Lengths) -> Iterator[Finding]:
    """Prompts, then what a completion would have to hold."""
    if facts.prompts:
        ordered = sorted(facts.prompts)
        told = f"median {ordered[len(ordered) // 2]}, longest {ordered[-1]} tokens of {len(ordered)} prompts"
        yield LENGTHS.at("prompts", f"{told}; a completion has at most {facts.limit or 'any number of'}")
    limit = facts.limit or 0
    if facts.context is not None:
        over = [(at, size) for at, size in _placed(facts, facts.prompts) if size + limit > facts.context]
        if over:
            told = f"{_most(over, len(facts.prompts))} + {limit} of a completion, context {facts.context}"
            yield TOO_LONG.at("prompts", told)
    if not facts.limit:
        return
    for kind, columns in ((ANSWER, facts.answers), (SOLUTION, facts.solutions)):
        for column, sizes in columns.items():
            if over := [(at, size) for at, size in _placed(facts, sizes) if size > facts.limit]:
                yield kind.at(f"column {column}", f"{_most(over, len(sizes))}, limit {facts.limit}")


def _placed(facts: Lengths, sizes: Sequence[int | None]) -> list[tuple[int, int]]:
    """Row and length, of the rows that have one."""
    places = facts.rows or range(len(sizes))
    return [(at, size) for at, size in zip(places, sizes, strict=True) if size is not None]


def _most(over: Sequence[tuple[int, int]], count: int) -> str:
    row, size = max(over, key=lambda pair: pair[1])
    return f"{len(over)} of {count} rows, the longest (row {row}) {size} tokens"
