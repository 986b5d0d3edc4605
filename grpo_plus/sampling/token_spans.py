"""From character spans of a completion to spans of its sampled tokens, by incremental decoding."""

import functools
import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import Any

from grpo_verifiers.errors.messages import short
from grpo_verifiers.verdict import Step, in_order, score_of

Decode = Callable[[Sequence[int]], str]

_EXPECTED = (
    "Return one list of (first token, one past the last, score) per completion, none of which overlap; empty where "
    "there is no step."
)
_BROKEN = "�"
_LONGEST_RUN = 64
"""Tokens of nothing but broken characters that are decoded together; within longer garbage they are told apart less."""
_SHORT = 8
"""Ids of a window whose text is remembered: completions of a batch share most of their windows."""


def decoder(tokenizer: Any) -> Decode:
    """From ids to text, special tokens included; for one batch, since it remembers."""
    inner = getattr(tokenizer, "tokenizer", tokenizer)

    def decode(ids: Sequence[int]) -> str:
        text: str = inner.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False)
        return text

    short = functools.lru_cache(maxsize=1 << 14)(decode)
    return lambda ids: short(tuple(ids)) if len(ids) <= _SHORT else decode(ids)


def token_ends(ids: Sequence[int], decode: Decode) -> list[int]:
    """For each token, how many characters of the whole text are there once the token is.

    That is how far the text of the ids up to the token agrees with the text of all ids: a token that ends inside a
    multi-byte character does not show it yet. Only a short window is decoded at a time, so that the work is linear, and
    every window is held against the whole text: where the text of a token depends on more of its neighbours (runs of
    bytes that turn out to be no character), the window grows.

    The ids are the sampled ones, never re-tokenised text; ``decode`` must keep special tokens.
    """
    whole = decode(ids)
    ends: list[int] = []
    done = 0  # characters of the text that the tokens before `read` make
    window = read = 0  # the window starts a little before the first unread token, whose text depends on its neighbours
    before = ""
    for position in range(len(ids)):
        text = decode(ids[window : position + 1])
        while window and not (text.startswith(before) and whole.endswith(before, 0, done)):
            window = max(0, window - 2 * (read - window))
            before, text = decode(ids[window:read]), decode(ids[window : position + 1])
        at, new = (done, text[len(before) :]) if text.startswith(before) else (0, text)
        agree = at + _common(new, whole, at)
        ends.append(max(agree, ends[-1] if ends else 0))
        # The sign for a broken character may turn out to be a whole one: the window must not start inside it.
        broken = text.endswith(_BROKEN) and position - window < _LONGEST_RUN
        if agree == at + len(new) and not broken:
            done = agree
            window, read = read, position + 1
            before = decode(ids[window:read])
    if ends:
        ends[-1] = len(whole)
    return ends


def _common(text: str, whole: str, at: int) -> int:
    """How many characters of a text stand in the whole one at an offset."""
    if whole.startswith(text, at):
        return len(text)
    return next(count for count, char in enumerate(text) if whole[at + count : at + count + 1] != char)


def scorer_steps(given: Any, count: int, *, first: int = 0) -> tuple[list[list[tuple[int, int, float]]], list[str]]:
    """The result of a step scorer as plain triples, and its problems.

    It gives for each of ``count`` completions its steps as (first token, one past the last, score). ``first`` is the
    number of the first completion among those of all ranks.
    """
    try:
        rows = list(given)
    except TypeError:
        return [], [f"the step scorer returned {short(given)}. {_EXPECTED}"]
    if len(rows) != count:
        text = f"the step scorer returned steps for {len(rows)} completions, but {count} were given"
        return [], [f"{text}. {_EXPECTED}"]
    found = []
    for number, steps in enumerate(rows, first):
        try:
            found.append(_triples(steps))
        except Exception as error:  # noqa: BLE001 - whatever an object that is no step raises
            return [], [f"the step scorer's steps of completion {number} are {short(steps)}: {error} {_EXPECTED}"]
    return found, []


def _triples(steps: Any) -> list[tuple[int, int, float]]:
    """Steps whose places are checked as a verdict's are."""
    placed = [(Step(start, end, None), _score(score)) for start, end, score in steps]
    in_order(step for step, _ in placed)
    return [(step.start, step.end, score) for step, score in placed]


def _score(value: Any) -> float:
    """NaN where there is none, and infinite where float32 cannot hold it: whoever reads it decides what that counts."""
    if value is None:
        return math.nan
    try:
        return score_of("the score of a step", value)
    except ValueError:
        return math.nan if value != value else math.inf  # noqa: PLR0124 - only NaN differs from itself


def token_span(start: int, end: int, ends: Sequence[int]) -> tuple[int, int]:
    """The tokens of the characters ``[start, end)``, first and one past the last.

    A token that holds characters of two neighbouring spans belongs to the second, and tokens that only begin a
    character to the span of that character: spans that share no character share no token.
    """
    return _border(start, ends), _border(end, ends) if end > start else _border(start, ends)


def _border(offset: int, ends: Sequence[int]) -> int:
    """The first token that is not wholly before a character."""
    if offset <= 0 or not ends:
        return 0
    if offset >= ends[-1]:
        return len(ends)
    at = bisect_left(ends, offset)
    return at + 1 if ends[at] == offset else at
