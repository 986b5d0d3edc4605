"""The turns of a completion: spans of tokens, text, calls, states and rewards."""

import math
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Any

from grpo_plus.record.sample import runs
from grpo_plus.sampling.token_spans import Decode, token_ends, token_span
from grpo_verifiers.reading.messages import content_text
from grpo_verifiers.turns import Call, Turn

Spans = list[tuple[int, int]]
NO_STATE = -1
"""The number of a missing state."""


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
    """Return the turns of one completion, and the tokens of each.

    The n-th run of the model's own tokens is the n-th message of the assistant: a template always has tokens between
    two turns. A turn that was cut off before its first character has no message, and an empty text.

    ``mask`` is 1 for the model's own tokens, 0 for those of tools. ``states`` are those before each turn.
    """
    spans = [(first, last) for first, last in runs(mask)]
    ends = token_ends(ids, decode)
    texts = [content_text(message.get("content")) for message in messages if message.get("role") == "assistant"]
    turns = tuple(
        Turn(
            ends[first - 1] if first else 0,
            ends[last - 1],
            texts[place] if place < len(texts) else "",
            tuple(calls[place]) if place < len(calls) else (),
            states[place] if place < len(states) else None,
            rewards[place] if place < len(rewards) else None,
        )
        for place, (first, last) in enumerate(spans)
    )
    return turns, spans


def state_number(state: str | None) -> int:
    """Return a number of a state, the same on every rank and in every run; `NO_STATE` for None and the empty text.

    >>> state_number("a") == state_number("a"), state_number("a") == state_number("b"), state_number("")
    (True, False, -1)

    It is a hash of 63 bits: a group of 1000 turns has a collision once in 10^13 groups.
    """
    if not state:
        return NO_STATE
    digest = blake2b(state.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def turn_scores(turns: Sequence[Turn], turn_tokens: Spans) -> list[tuple[int, int, float]]:
    """Return every turn as a step with the environment's reward; NaN without one."""
    rewards = [math.nan if turn.reward is None else turn.reward for turn in turns]
    return [(*span, reward) for span, reward in zip(turn_tokens, rewards, strict=True)]


def with_states(
    steps: Sequence[tuple[int, int, float]], turns: Sequence[Turn], turn_tokens: Sequence[tuple[int, int]]
) -> list[tuple[int, int, float, int]]:
    """Return each step with the number of the state before it; only turns have one."""
    numbers = {tuple(span): state_number(turn.state) for turn, span in zip(turns, turn_tokens, strict=True)}
    return [(first, last, score, numbers.get((first, last), NO_STATE)) for first, last, score in steps]


def step_tokens(
    steps: Sequence[tuple[int, int]],
    ends: Sequence[int],
    turns: Sequence[Turn] = (),
    turn_tokens: Sequence[tuple[int, int]] = (),
) -> Spans:
    """Return the tokens of steps, from their spans of characters; a step that equals a turn gets all of its tokens.

    Otherwise tokens without a character, such as the first bytes of a cut character, would be lost at the edges of a
    turn. Turns without readable text may have equal spans; each is used once.
    """
    left: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for turn, span in zip(turns, turn_tokens, strict=True):
        left.setdefault(turn.span, []).append(span)
    return [left[step].pop(0) if left.get(step) else token_span(*step, ends) for step in steps]
