"""Prompts and columns of rows: as keys, as numbers of tokens, and as values that verifiers compare with."""

import json
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any

SOLUTIONS = ("solution", "solutions", "reference_solution", "worked_solution", "rationale")
"""Columns that commonly hold a worked solution."""


def key_of(value: Any) -> Hashable:
    """A value as something that equal values share."""
    return json.dumps(value, sort_keys=True, default=str, ensure_ascii=False)


def is_empty(prompt: Any) -> bool:
    """A prompt asks nothing: no text, or a conversation whose user says nothing."""
    if prompt is None or isinstance(prompt, str):
        return not (prompt or "").strip()
    if isinstance(prompt, Sequence):
        said = [turn.get("content") for turn in prompt if isinstance(turn, Mapping) and turn.get("role") != "system"]
        return not any(_has_text(content) for content in said)
    return False


def _has_text(content: Any) -> bool:
    """A message has text, or a picture."""
    if isinstance(content, Sequence) and not isinstance(content, str):
        return any(part.get("type") != "text" or _has_text(part.get("text")) for part in content)
    return isinstance(content, str) and bool(content.strip())


def prompt_length(tokenizer: Any, prompt: Any, keywords: Mapping[str, Any]) -> int:
    """Tokens of a prompt as the model reads it."""
    if isinstance(prompt, str):
        return len(tokenizer(prompt)["input_ids"])
    text = tokenizer.apply_chat_template(prompt, tokenize=False, add_generation_prompt=True, **keywords)
    return len(tokenizer.encode(text, add_special_tokens=False))


def text_lengths(tokenizer: Any, values: Iterable[Any]) -> list[int | None]:
    """Tokens of each text; None for a value that is none."""
    found: list[int | None] = []
    for value in values:
        text = value if isinstance(value, str) else str(value) if isinstance(value, int | float) else None
        found.append(None if text is None else len(tokenizer.encode(text, add_special_tokens=False)))
    return found
