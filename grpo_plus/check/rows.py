"""Rows of a dataset: empty, contradictory and answered prompts, test rows, and lengths in tokens."""

import json
import re
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from grpo_plus.check.finding import CheckFinding, FindingKind, info, ok, problem, warning

SHOWN = 5
LONG = 200
"""Length of a gold that is no short answer."""
_CLOSE = r"[\s.。*}}$)]*(?:</answer>)?\s*$"
_ENDS = r"(?<!\w){}" + _CLOSE
"""End of a turn that gives the answer."""
_NAMED = r"\b(?:answer|solution|result|antwort|réponse|respuesta|a:)(?: is| ist| est| es)?|答案是?"
_GIVEN = rf"(?:{_NAMED}|####|\\boxed\{{{{|=|<answer>)"
_GIVEN += r"[\s:=*]*{}" + _CLOSE
"""End of a text that names and gives the answer."""

ROWS = ok("rows", "Checked rows of the training data.")
EMPTY = problem(
    "prompt-empty",
    "The prompt is empty: the rewards of its completions have no relation to it.",
    "Drop those rows, or name the column of the question (prompt: {column: NAME}).",
)
ROLES = warning(
    "role-unknown",
    "Messages have roles of another format (human, gpt, bot), which most chat templates do not know.",
    "Rename them: human is user, gpt and bot are assistant.",
)
ANSWERED = problem(
    "prompt-answered",
    "The prompt ends with a turn of the assistant that gives the row's gold answer: the model learns to copy it.",
    "Leave the assistant's last turn out of the prompt.",
)
HINTED = warning(
    "prompt-hints",
    "The prompt ends with the row's gold after a word such as answer: the model may copy it.",
    "Leave the answer's text out of the prompt, if it is one.",
)
REPEATED = info("prompt-repeated", "Rows with the same prompt and gold: it is trained on more often than the rest.")
CONFLICT = problem(
    "prompt-conflict",
    "The same prompt has different golds: a right completion of one row is wrong in the other.",
    "Correct or drop those rows.",
)
IN_TRAINING = warning(
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
    evaluated: Sequence[Any] = (),
    *,
    total: int | None,
    repeats: bool,
    guessed: bool = False,
) -> Iterator[CheckFinding]:
    """Yield a finding for each kind of unwanted row.

    ``golds`` has the gold values of each row, ``evaluated`` the prompts of the evaluation data, and ``total`` is the
    number of rows, None for a stream. ``repeats``: repeated and empty prompts are fine, since an environment or the
    model uses other columns. ``guessed``: no reward names the golds' columns, so problems with golds are warnings.
    """
    count, keys = len(prompts), [key_of(prompt) for prompt in prompts]
    yield ROWS.at("training data", f"{count} of {'a stream' if total is None else total} rows")

    def of_rows(kind: FindingKind, rows: Sequence[str]) -> Iterator[CheckFinding]:
        if rows:
            by_guess = guessed and kind in (CONFLICT, ANSWERED)
            yield kind.of_rows("prompts", _listed(rows, count), 0.0 if by_guess else len(rows) / count)

    empty = [str(row) for row, prompt in enumerate(prompts) if is_empty(prompt)]
    if None in prompts and not repeats:  # a run ends at such a row
        yield EMPTY.at("prompts", _listed(empty, count))
    elif not repeats:
        yield from of_rows(EMPTY, empty)
    yield from of_rows(ROLES, [str(row) for row, prompt in enumerate(prompts) if _roles(prompt) & _FOREIGN])
    yield from of_rows(ANSWERED, [str(row) for row in range(count) if tells(prompts[row], golds[row], turn=True)])
    yield from of_rows(HINTED, [str(row) for row in range(count) if tells(prompts[row], golds[row], turn=False)])
    first: dict[Hashable, int] = {}
    same: dict[FindingKind, list[str]] = {CONFLICT: [], REPEATED: []}
    for row, key in enumerate(keys):
        before = first.setdefault(key, row)
        if before != row and not repeats and not is_empty(prompts[row]):
            kind = REPEATED if _plain(golds[before]) == _plain(golds[row]) else CONFLICT
            same[kind].append(f"{row} repeats {before}")
    for kind, rows in same.items():
        yield from of_rows(kind, rows)
    if both := [str(row) for row, prompt in enumerate(evaluated) if key_of(prompt) in first]:
        yield IN_TRAINING.at("evaluation data", _listed(both, len(evaluated)))


def _listed(rows: Sequence[str], count: int) -> str:
    more = ", …" if len(rows) > SHOWN else ""
    return f"{len(rows)} of {count} rows: {', '.join(rows[:SHOWN])}{more}"


def _plain(golds: Sequence[Any]) -> Hashable:
    """Return a key of golds that is the same for most ways to write one."""
    text = re.sub(r"\\[dt]?frac\{(\w+)\}\{(\w+)\}", r"\1/\2", str(key_of(golds)).replace("\\\\", "\\"))
    return re.sub(r"[\s$]|\\boxed|\.0+\b", "", text).casefold()


def tells(prompt: Any, golds: Sequence[Any], *, turn: bool) -> bool:
    """Return True if a prompt ends with one of the row's golds: in a ``turn`` of the assistant, or after such a word.

    >>> tells("1 + 1 = ? Answer: 2", ["2"], turn=False), tells("Add 1 and 2", ["2"], turn=False)
    (True, False)
    """
    last = prompt[-1] if isinstance(prompt, Sequence) and not isinstance(prompt, str) and prompt else prompt
    text = last.get("content") if isinstance(last, Mapping) else last
    if not isinstance(text, str) or turn != (isinstance(last, Mapping) and last.get("role") == "assistant"):
        return False
    texts = [str(gold).strip() for gold in golds if isinstance(gold, str | int | float) and len(str(gold)) < LONG]
    form, end = _ENDS if turn else _GIVEN, text[-2 * LONG :].casefold()
    near = [gold for gold in texts if gold and gold.casefold() in end]
    return any(re.search(form.format(re.escape(gold.casefold())), end) for gold in near)


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
    sampled = f"{count} of {len(rows)} rows, the longest" if count else "one of the longest"
    return f"{sampled} (row {longest}) {sizes[longest]} tokens", count / max(1, len(rows))


def key_of(value: Any) -> Hashable:
    """Return a hashable key, the same for equal values."""
    return json.dumps(value, sort_keys=True, default=str, ensure_ascii=False)


def is_empty(prompt: Any) -> bool:
    """Return True for a prompt without text, or a conversation without a user's text."""
    if prompt is None or isinstance(prompt, str):
        return not (prompt or "").strip()
    if isinstance(prompt, Sequence):
        turns = [turn for turn in prompt if isinstance(turn, Mapping)]
        shown = [turn for turn in turns if turn.get("role") != "system"] or turns
        return not any(_has_text(turn.get("content")) for turn in shown)
    return False


_FOREIGN = {"human", "gpt", "bot", "chatbot"}


def _roles(prompt: Any) -> set[Any]:
    return {turn.get("role") for turn in prompt if isinstance(turn, Mapping)} if isinstance(prompt, list) else set()


def _has_text(content: Any) -> bool:
    if isinstance(content, Sequence) and not isinstance(content, str):
        parts = [part if isinstance(part, Mapping) else {} for part in content]
        return any(part.get("type") != "text" or _has_text(part.get("text")) for part in parts)
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
