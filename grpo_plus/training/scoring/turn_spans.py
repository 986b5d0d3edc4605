"""The turns of a completion: spans of its own tokens among those of tools, and what was said and called in each."""

import math
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from itertools import groupby
from typing import Any

from grpo_plus.sampling.token_spans import Decode, token_ends, token_span
from grpo_verifiers.reading.messages import content_text
from grpo_verifiers.turns import Call, Turn

Spans = list[tuple[int, int]]
NO_STATE = -1
"""The number of no state."""


def own_runs(mask: Sequence[int]) -> Spans:
    """The runs of the model's own tokens: first token, and one past the last.

    >>> own_runs([1, 1, 0, 0, 1])
    [(0, 2), (4, 5)]
    """
    found, at = [], 0
    for own, run in groupby(mask, bool):
        length = sum(1 for _ in run)
        if own:
            found.append((at, at + length))
        at += length
    return found


def turns_of(
    ids: Sequence[int],
    mask: Sequence[int],
    messages: Sequence[Mapping[str, Any]],
    decode: Decode,
    *,
    calls: Sequence[Sequence[Call]] = (),
    states: Sequence[str | None] = (),
    rewards: Sequence[float | None] = (),
) -> tuple[tuple[Turn, ...], Spans]:
    """The turns of one completion, and the tokens of each.

    A run of the model's own tokens is a turn, and the one after so many others is that of the assistant's message after
    so many others. Between two turns a template always has tokens: those that open the next one. A turn whose message
    is missing, because it was cut off before it said anything, says nothing.

    ``mask`` is 1 for the model's own tokens, 0 for those of tools. ``states`` are those before each turn.
    """
    spans = own_runs(mask)
    ends = token_ends(ids, decode)
    said = [content_text(message.get("content")) for message in messages if message.get("role") == "assistant"]
    turns = tuple(
        Turn(
            ends[first - 1] if first else 0,
            ends[last - 1],
            said[place] if place < len(said) else "",
            tuple(calls[place]) if place < len(calls) else (),
            states[place] if place < len(states) else None,
            rewards[place] if place < len(rewards) else None,
        )
        for place, (first, last) in enumerate(spans)
    )
    return turns, spans


def state_number(state: str | None) -> int:
    """An equal number for equal states, on every rank and in every run; `NO_STATE` for None and the empty text.

    >>> state_number("a") == state_number("a"), state_number("a") == state_number("b"), state_number("")
    (True, False, -1)

    63 bits of a hash: two states of a group of 1000 turns are mistaken for one once in 10^13 groups.
    """
    if not state:
        return NO_STATE
    digest = blake2b(state.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def turn_scores(turns: Sequence[Turn], turn_tokens: Spans) -> list[tuple[int, int, float]]:
    """Every turn as a step with the environment's own reward, NaN where it gave none."""
    rewards = [math.nan if turn.reward is None else turn.reward for turn in turns]
    return [(*span, reward) for span, reward in zip(turn_tokens, rewards, strict=True)]


def with_states(
    steps: Sequence[tuple[int, int, float]], turns: Sequence[Turn], turn_tokens: Sequence[tuple[int, int]]
) -> list[tuple[int, int, float, int]]:
    """Each step with the number of the state before it; steps that are no turns have none."""
    known = {tuple(span): state_number(turn.state) for turn, span in zip(turns, turn_tokens, strict=True)}
    return [(first, last, score, known.get((first, last), NO_STATE)) for first, last, score in steps]


def step_tokens(
    steps: Sequence[tuple[int, int]],
    ends: Sequence[int],
    turns: Sequence[Turn] = (),
    turn_tokens: Sequence[tuple[int, int]] = (),
) -> Spans:
    """The tokens of steps, which are spans of characters; a step that is a whole turn has all of its tokens.

    Tokens without a character of their own, such as the first bytes of one that was cut off, would else be lost at the
    edges of a turn. Of turns that stand at the same place, because nothing of them can be read, each counts once.
    """
    left: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for turn, span in zip(turns, turn_tokens, strict=True):
        left.setdefault(turn.span, []).append(span)
    return [left[step].pop(0) if left.get(step) else token_span(*step, ends) for step in steps]
