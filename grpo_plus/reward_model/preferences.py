"""Rows with a better and a worse side: TRL's preference format, text or messages, with or without a prompt.

With a column ``prompt``, the sides are what follows it, as in TRL. Messages that begin with the prompt's are the whole
conversation already, as in some published datasets. Every row is read and judged before a model loads.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any

from grpo_verifiers.errors import ConfigError
from grpo_verifiers.errors.messages import short

Conversation = str | list[dict[str, Any]]
"""A text, or messages with roles."""

MOST_TOLD = 5
"""Rows that one message names."""
SIDES = ("chosen", "rejected")
_LARGEST = 1e6
"""Margin: float32 holds no difference of scores beside a much larger one."""


@dataclass(frozen=True)
class Pair:
    """Both sides with their prompt, as a model reads them; ``group`` is equal for the pairs of one prompt."""

    row: int
    chosen: Conversation
    rejected: Conversation
    group: str
    margin: float | None = None


def read_pairs(rows: Iterable[Mapping[str, Any]]) -> list[Pair]:
    """The pairs of a dataset, in its order; rows are counted from 0.

    >>> read_pairs([{"prompt": "2+2=", "chosen": "4", "rejected": "5"}])[0].chosen
    '2+2=4'
    """
    pairs, problems, doubled = [], list[str](), 0
    for at, row in enumerate(rows):
        try:
            pairs.append(_pair(at, row))
        except RowError as error:
            problems.append(f"row {at}: {error}")
        else:
            doubled += _repeats_the_prompt(row)
    refuse(problems)
    if not pairs:
        raise ConfigError(["the preference data has no rows."])
    if doubled == len(pairs):
        told = "chosen and rejected begin with the text of prompt in every row, so the model would read it twice"
        raise ConfigError([f"{told}: remove the column prompt, or take the prompt out of both sides."])
    return pairs


def refuse(problems: Sequence[str]) -> None:
    """Raise `ConfigError` if there are problems, with the first few of them."""
    if not problems:
        return
    if len(problems) == 1:
        raise ConfigError(problems)
    more = len(problems) - MOST_TOLD
    lines = [*problems[:MOST_TOLD], *([f"and {more} more rows."] if more > 0 else [])]
    raise ConfigError(["\n  ".join([f"{len(problems)} rows of the data cannot be used:", *lines])])


class RowError(ValueError):
    """A row that is not in the format."""


def _pair(at: int, row: Mapping[str, Any]) -> Pair:
    missing = [name for name in SIDES if name not in row]
    if missing:
        raise RowError(
            f"there is no {' and no '.join(missing)}. Preference data has the columns chosen and rejected, and prompt "
            f"if they do not hold it; this row has {', '.join(map(str, row)) or 'no column'}."
        )
    sides = {name: conversation(name, row[name]) for name in SIDES}
    chosen, rejected = sides["chosen"], sides["rejected"]
    if isinstance(chosen, str) != isinstance(rejected, str):
        raise RowError(f"chosen is {_kind(chosen)} and rejected {_kind(rejected)}: both must be of one kind.")
    if chosen == rejected:
        raise RowError(f"chosen and rejected are equal ({short(chosen, 80)}): there is nothing to prefer. Remove it.")
    prompt = row.get("prompt")
    if prompt is None:
        return Pair(at, chosen, rejected, _group(_common(chosen, rejected, at)), _margin(row))
    prompt = conversation("prompt", prompt)
    whole = {name: _with_prompt(name, prompt, side) for name, side in sides.items()}
    return Pair(at, whole["chosen"], whole["rejected"], _group(prompt), _margin(row))


def conversation(name: str, value: Any) -> Conversation:
    """A column's text or messages, checked; raises `RowError`."""
    if isinstance(value, str):
        if not value.strip():
            raise RowError(f"{name} is empty.")
        return value
    if not isinstance(value, Sequence) or isinstance(value, bytes):
        raise RowError(f"{name} is {short(value, 80)}, expected a text or a list of messages.")
    if not value:
        raise RowError(f"{name} is empty.")
    for message in value:
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            raise RowError(f"{name} has {short(message, 80)}, expected messages with role and content.")
        if not isinstance(message.get("content"), str) and not message.get("tool_calls"):
            raise RowError(f"{name} has a message whose content is {short(message.get('content'), 80)}, no text.")
    last = value[-1]
    if name in SIDES and not last.get("tool_calls") and not last["content"].strip():
        raise RowError(f"{name} is empty: its last message has no text.")
    # A table gives every message every key that any message has: what is none was never there.
    return [{key: item for key, item in message.items() if item is not None} for message in value]


def _with_prompt(name: str, prompt: Conversation, side: Conversation) -> Conversation:
    """The prompt with what follows it."""
    if isinstance(prompt, str) and isinstance(side, str):
        return prompt + side
    if isinstance(side, str):
        raise RowError(f"prompt is {_kind(prompt)} and {name} {_kind(side)}: both must be of one kind.")
    if isinstance(prompt, str):
        # As in ultrafeedback: the prompt once more as text, beside whole conversations.
        asked = next((message.get("content") for message in side if message["role"] == "user"), None)
        if asked != prompt:
            raise RowError(
                f"prompt is no prefix of {name}: it is the text {short(prompt, 60)}, and the first message of the "
                f"user in {name} is {short(asked, 60)}."
            )
        return side
    if side[: len(prompt)] == prompt:
        if len(side) == len(prompt):
            raise RowError(f"{name} is empty: it is the prompt and nothing behind it.")
        return side
    if side[0]["role"] in ("system", "user"):
        raise RowError(
            f"prompt is no prefix of {name}, which begins with a message of the {side[0]['role']} "
            f"({short(side[0].get('content'), 60)}): a whole conversation must begin with the messages of prompt."
        )
    return [*prompt, *side]


def _repeats_the_prompt(row: Mapping[str, Any]) -> bool:
    prompt = row.get("prompt")
    return isinstance(prompt, str) and all(
        isinstance(row[name], str) and row[name].startswith(prompt) for name in SIDES
    )


def _common(chosen: Conversation, rejected: Conversation, at: int) -> Conversation:
    """The messages that both sides begin with; texts without a prompt have no known one, and are each their own."""
    if isinstance(chosen, str) or isinstance(rejected, str):
        return f"row {at}"
    count = 0
    while count < min(len(chosen), len(rejected)) and chosen[count] == rejected[count]:
        count += 1
    if count == min(len(chosen), len(rejected)):
        raise RowError("one side is the beginning of the other: there is nothing to compare.")
    return chosen[:count] or f"row {at}"


def _margin(row: Mapping[str, Any]) -> float | None:
    value = row.get("margin")
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, Real) or not abs(float(value)) <= _LARGEST:
        raise RowError(f"margin is {short(value, 80)}, expected a finite number of at most {_LARGEST:g}.")
    return float(value)


def _group(prompt: Conversation) -> str:
    return prompt if isinstance(prompt, str) else json.dumps(prompt, sort_keys=True, default=str)


def _kind(value: Conversation) -> str:
    return "text" if isinstance(value, str) else "a list of messages"
