"""Rows of a dataset: empty, contradictory and held-out prompts, and lengths in tokens."""

import json
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from grpo_plus.doctor.finding import CheckFinding, ok, problem, warning

SHOWN = 5

ROWS = ok("rows", "Checked rows of the training data.")
EMPTY = problem(
    "prompt-empty",
    "The prompt is empty: the rewards of its completions have no relation to it.",
    "Drop those rows, or name the column of the question (prompt: {column: NAME}).",
)
CONFLICT = problem(
    "prompt-conflict",
    "The same prompt has different golds: a right completion of one row is wrong in the other.",
    "Correct or drop those rows.",
)
HELD_OUT = warning(
    "test-in-train",
    "Prompts of the evaluation data are also in the training data: the accuracy on them is not that on new ones.",
    "Drop them from one of the two.",
)
LENGTHS = ok("lengths", "Lengths of prompts in tokens, as the model reads them.")
TOO_LONG = problem(
    "prompt-too-long",
    "A prompt and a completion at its limit exceed the context of the model: the rest is noise or an error.",
    "Drop or shorten those rows, lower max_completion_length, or take a model with a longer context.",
)
ANSWER = problem(
    "answer-too-long",
    "The gold answer alone is longer than a completion may be: no completion of these rows can be right.",
    "Raise max_completion_length, or drop those rows.",
)


def row_findings(
    prompts: Sequence[Any], golds: Sequence[Hashable], held_out: Sequence[Any] = (), *, total: int | None, repeats: bool
) -> Iterator[CheckFinding]:
    """Yield a finding for each kind of unwanted row.

    ``golds`` are the columns for the comparison of each row, ``held_out`` the prompts of the evaluation data, and
    ``total`` the number of rows, None for a stream. ``repeats``: repeated prompts are fine, since an environment uses
    the other columns.
    """
    count, keys = len(prompts), [key_of(prompt) for prompt in prompts]
    yield ROWS.at("training data", f"{count} of {'a stream' if total is None else total} rows")
    if empty := [str(row) for row, prompt in enumerate(prompts) if is_empty(prompt)]:
        yield EMPTY.at("prompts", _listed(empty, count))
    first: dict[Hashable, int] = {}
    conflicts = []
    for row, key in enumerate(keys):
        before = first.setdefault(key, row)
        if golds[before] != golds[row] and not is_empty(prompts[row]):
            conflicts.append(f"{row} repeats {before}")
    if conflicts and not repeats:
        yield CONFLICT.at("prompts", _listed(conflicts, count))
    if both := [str(row) for row, prompt in enumerate(held_out) if key_of(prompt) in first]:
        yield HELD_OUT.at("held-out data", _listed(both, len(held_out)))


def _listed(rows: Sequence[str], count: int) -> str:
    more = ", …" if len(rows) > SHOWN else ""
    return f"{len(rows)} of {count} rows: {', '.join(rows[:SHOWN])}{more}"


def length_findings(
    prompts: Sequence[int],
    answers: Mapping[str, Sequence[int | None]],
    rows: Sequence[int],
    *,
    context: int | None,
    limit: int | None,
) -> Iterator[CheckFinding]:
    """Compare prompts to the model's context, and gold answers to a completion's limit, all in tokens.

    ``answers`` are by column, and ``rows`` the indices of the rows in their dataset.
    """
    if prompts:
        ordered = sorted(prompts)
        text = f"median {ordered[len(ordered) // 2]}, longest {ordered[-1]} tokens of {len(ordered)} prompts"
        yield LENGTHS.at("prompts", f"{text}; a completion has at most {limit or 'any number of'}")
    if context is not None and (over := _over(rows, prompts, context - (limit or 0))):
        yield TOO_LONG.at("prompts", f"{over} + {limit or 0} of a completion, context {context}")
    for column, sizes in answers.items() if limit else ():
        if over := _over(rows, sizes, limit or 0):
            yield ANSWER.at(f"column {column}", f"{over}, limit {limit}")


def _over(rows: Sequence[int], sizes: Sequence[int | None], most: int) -> str:
    """Return the longer rows in words; empty if there are none."""
    over = [(size, row) for row, size in zip(rows, sizes, strict=True) if size is not None and size > most]
    if not over:
        return ""
    size, row = max(over, key=lambda pair: pair[0])
    return f"{len(over)} of {len(sizes)} rows, the longest (row {row}) {size} tokens"


def key_of(value: Any) -> Hashable:
    """Return a hashable key, the same for equal values."""
    return json.dumps(value, sort_keys=True, default=str, ensure_ascii=False)


def is_empty(prompt: Any) -> bool:
    """Return True for a prompt without text, or a conversation without a user's text."""
    if prompt is None or isinstance(prompt, str):
        return not (prompt or "").strip()
    if isinstance(prompt, Sequence):
        turns = [turn for turn in prompt if isinstance(turn, Mapping) and turn.get("role") != "system"]
        return not any(_has_text(turn.get("content")) for turn in turns)
    return False


def _has_text(content: Any) -> bool:
    if isinstance(content, Sequence) and not isinstance(content, str):
        return any(part.get("type") != "text" or _has_text(part.get("text")) for part in content)
    return isinstance(content, str) and bool(content.strip())


def prompt_length(tokenizer: Any, prompt: Any, keywords: Mapping[str, Any]) -> int:
    """Count the tokens of a prompt as the model reads it."""
    if isinstance(prompt, str):
        return len(tokenizer(prompt)["input_ids"])
    text = tokenizer.apply_chat_template(prompt, tokenize=False, add_generation_prompt=True, **keywords)
    return len(tokenizer.encode(text, add_special_tokens=False))


def text_lengths(tokenizer: Any, values: Iterable[Any]) -> list[int | None]:
    """Count the tokens of each text; None for another value."""
    texts = (str(value) if isinstance(value, str | int | float) else None for value in values)
    return [None if text is None else len(tokenizer.encode(text, add_special_tokens=False)) for text in texts]
