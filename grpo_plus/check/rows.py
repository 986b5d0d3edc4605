"""Rows of a dataset: empty, contradictory and answered prompts, test rows, and lengths in tokens."""

import json
import re
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from grpo_plus.check.finding import CheckFinding, FindingKind, info, ok, problem, warning

SHOWN = 5
LONG = 200
"""Length of a gold that is no short answer."""
_GIVEN = r"(?:answer|solution|result|####|\\boxed\{{)(?: is)?[\s:=*]*{}[\s.*}}$]*$"
"""End of a text that gives the answer."""

ROWS = ok("rows", "Checked rows of the training data.")
EMPTY = problem(
    "prompt-empty",
    "The prompt is empty: the rewards of its completions have no relation to it.",
    "Drop those rows, or name the column of the question (prompt: {column: NAME}).",
)
ANSWERED = problem(
    "prompt-answered",
    "The prompt ends with the row's gold answer: the model reads it before it answers, and learns to copy.",
    "Leave the assistant's last turn, or the answer's text, out of the prompt.",
)
REPEATED = info("prompt-repeated", "Rows with the same prompt and gold: it is trained on more often than the rest.")
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
LIMIT = problem(
    "limit-over-context",
    "A completion at its limit exceeds the context of the model: the rest is noise or an error.",
    "Lower max_completion_length, or take a model with a longer context.",
)
ANSWER = problem(
    "answer-too-long",
    "The gold answer alone is longer than a completion may be: no completion of these rows can be right.",
    "Raise max_completion_length, or drop those rows.",
)


def row_findings(
    prompts: Sequence[Any],
    golds: Sequence[Sequence[Any]],
    held_out: Sequence[Any] = (),
    *,
    total: int | None,
    repeats: bool,
) -> Iterator[CheckFinding]:
    """Yield a finding for each kind of unwanted row.

    ``golds`` has the gold values of each row, ``held_out`` the prompts of the evaluation data, and ``total`` is the
    number of rows, None for a stream. ``repeats``: repeated prompts are fine, since an environment uses the other
    columns.
    """
    count, keys = len(prompts), [key_of(prompt) for prompt in prompts]
    yield ROWS.at("training data", f"{count} of {'a stream' if total is None else total} rows")

    def of_rows(kind: FindingKind, rows: Sequence[str]) -> Iterator[CheckFinding]:
        if rows:
            yield kind.of_rows("prompts", _listed(rows, count), len(rows) / count)

    yield from of_rows(EMPTY, [str(row) for row, prompt in enumerate(prompts) if is_empty(prompt)])
    answered = [str(row) for row, (prompt, gold) in enumerate(zip(prompts, golds, strict=True)) if tells(prompt, gold)]
    yield from of_rows(ANSWERED, answered)
    first: dict[Hashable, int] = {}
    conflicts: list[str] = []
    repeated: list[str] = []
    for row, key in enumerate(keys):
        before = first.setdefault(key, row)
        if before != row and not is_empty(prompts[row]):
            (repeated if key_of(golds[before]) == key_of(golds[row]) else conflicts).append(f"{row} repeats {before}")
    if not repeats:
        yield from of_rows(CONFLICT, conflicts)
        yield from of_rows(REPEATED, repeated)
    if both := [str(row) for row, prompt in enumerate(held_out) if key_of(prompt) in first]:
        yield HELD_OUT.at("held-out data", _listed(both, len(held_out)))


def _listed(rows: Sequence[str], count: int) -> str:
    more = ", …" if len(rows) > SHOWN else ""
    return f"{len(rows)} of {count} rows: {', '.join(rows[:SHOWN])}{more}"


def tells(prompt: Any, golds: Sequence[Any]) -> bool:
    """Return True if a prompt ends with one of the row's golds, as an answer.

    >>> tells("1 + 1 = ? Answer: 2", ["2"]), tells("Add 1 and 2", ["2"])
    (True, False)
    """
    texts = [str(gold).strip() for gold in golds if isinstance(gold, str | int | float) and len(str(gold)) < LONG]
    turn = prompt[-1] if isinstance(prompt, Sequence) and not isinstance(prompt, str) and prompt else prompt
    is_answer = turn.get("role") == "assistant" if isinstance(turn, Mapping) else False
    text = turn.get("content") if isinstance(turn, Mapping) else turn
    if not isinstance(text, str):
        return False
    if is_answer:
        return any(gold and re.search(rf"(?<!\w){re.escape(gold)}(?!\w)", text) for gold in texts)
    return any(gold and re.search(_GIVEN.format(re.escape(gold)), text, re.IGNORECASE) for gold in texts)


def length_findings(
    prompts: Mapping[int, int],
    answers: Mapping[str, Sequence[int | None]],
    rows: Sequence[int],
    *,
    context: int | None,
    limit: int | None,
) -> Iterator[CheckFinding]:
    """Compare prompts to the model's context, and gold answers to a completion's limit, all in tokens.

    ``prompts`` are by row; besides the sampled ``rows`` they include the longest. ``answers`` are by column, of the
    sampled rows.
    """
    if prompts:
        ordered = sorted(prompts[row] for row in rows if row in prompts)
        text = f"median {ordered[len(ordered) // 2]}, longest {max(prompts.values())} tokens of {len(ordered)} prompts"
        yield LENGTHS.at("prompts", f"{text}; a completion has at most {limit or 'any number of'}")
    if context is not None and context <= (limit or 0):
        yield LIMIT.at("max_completion_length", f"{limit}, context {context}")
    elif context is not None and (over := _over(prompts, rows, context - (limit or 0))):
        end = f" + {limit or 0} of a completion, context {context}"
        yield TOO_LONG.of_rows("prompts", over[0] + end, over[1])
    for column, sizes in answers.items() if limit else ():
        by_row = {row: size for row, size in zip(rows, sizes, strict=True) if size is not None}
        if over := _over(by_row, rows, limit or 0):
            yield ANSWER.of_rows(f"column {column}", f"{over[0]}, limit {limit}", over[1])


def _over(sizes: Mapping[int, int], rows: Sequence[int], most: int) -> tuple[str, float] | None:
    """Return the longer rows in words and their share of the sample; None if there are none."""
    over = {row for row, size in sizes.items() if size > most}
    if not over:
        return None
    longest, count = max(over, key=lambda row: sizes[row]), len(over & set(rows))
    words = f"{count} of {len(rows)} rows, the longest (row {longest}) {sizes[longest]} tokens"
    return words, count / max(1, len(rows))


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
