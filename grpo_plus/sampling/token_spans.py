"""Conversion of character spans of a completion to spans of its sampled tokens, by incremental decoding."""

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
"""Most tokens of only broken characters in one window; longer garbage has less exact ends."""
_SHORT = 8
"""Most ids of a window with cached text: completions of a batch share most of their windows."""


def decoder(tokenizer: Any) -> Decode:
    """Return a function from ids to text, special tokens included; use one for each batch, as it caches."""
    inner = getattr(tokenizer, "tokenizer", tokenizer)

    def decode(ids: Sequence[int]) -> str:
        text: str = inner.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False)
        return text

    short = functools.lru_cache(maxsize=1 << 14)(decode)
    return lambda ids: short(tuple(ids)) if len(ids) <= _SHORT else decode(ids)


def token_ends(ids: Sequence[int], decode: Decode) -> list[int]:
    """Return, for each token, the number of characters of the full text that are complete after it.

    It is the length of the common start of the text up to the token and the text of all ids: a token that ends inside a
    multi-byte character does not complete it. Only a short window is decoded at a time, so the work is linear. Each
    window is compared with the full text and grows if the text of a token depends on more of its neighbours (runs of
    bytes that form no character).

    The ids are the sampled ones, never re-tokenised text; ``decode`` must include special tokens.
    """
    full = decode(ids)
    ends: list[int] = []
    done = 0  # characters of the tokens before `read`
    window = read = 0  # the window starts a little before the first unread token, whose text depends on its neighbours
    before = ""
    for position in range(len(ids)):
        text = decode(ids[window : position + 1])
        while window and not (text.startswith(before) and full.endswith(before, 0, done)):
            window = max(0, window - 2 * (read - window))
            before, text = decode(ids[window:read]), decode(ids[window : position + 1])
        at, new = (done, text[len(before) :]) if text.startswith(before) else (0, text)
        agree = at + _common(new, full, at)
        ends.append(max(agree, ends[-1] if ends else 0))
        # A broken character may be completed by the next tokens: the window must not start inside it.
        broken = text.endswith(_BROKEN) and position - window < _LONGEST_RUN
        if agree == at + len(new) and not broken:
            done = agree
            window, read = read, position + 1
            before = decode(ids[window:read])
    if ends:
        ends[-1] = len(full)
    return ends


def _common(text: str, full: str, at: int) -> int:
    """Return the length of the common start of a text and the full text at an offset."""
    if full.startswith(text, at):
        return len(text)
    return next(count for count, char in enumerate(text) if full[at + count : at + count + 1] != char)


def scorer_steps(result: Any, count: int, *, first: int = 0) -> tuple[list[list[tuple[int, int, float]]], list[str]]:
    """Return the result of a step scorer as plain triples, and its problems.

    There is one list for each of ``count`` completions, with steps (first token, one past the last, score). ``first``
    is the index of the first completion among those of all ranks.
    """
    try:
        rows = list(result)
    except TypeError:
        return [], [f"the step scorer returned {short(result)}. {_EXPECTED}"]
    if len(rows) != count:
        text = f"the step scorer returned steps for {len(rows)} completions, but {count} were given"
        return [], [f"{text}. {_EXPECTED}"]
    triples = []
    for number, steps in enumerate(rows, first):
        try:
            triples.append(_triples(steps))
        except Exception as error:  # noqa: BLE001 - the objects are the user's
            return [], [f"the step scorer's steps of completion {number} are {short(steps)}: {error} {_EXPECTED}"]
    return triples, []


def _triples(steps: Any) -> list[tuple[int, int, float]]:
    placed = [(Step(start, end, None), _score(score)) for start, end, score in steps]
    in_order(step for step, _ in placed)
    return [(step.start, step.end, score) for step, score in placed]


def _score(value: Any) -> float:
    """Return the score; NaN for None, infinity beyond float32. The reader decides on both."""
    if value is None:
        return math.nan
    try:
        return score_of("the score of a step", value)
    except ValueError:
        return math.nan if value != value else math.inf  # noqa: PLR0124 - only NaN differs from itself


def token_span(start: int, end: int, ends: Sequence[int]) -> tuple[int, int]:
    """Return the tokens of the characters ``[start, end)``, first and one past the last.

    A token with characters of two neighbouring spans belongs to the second, and tokens that only begin a character
    belong to the span of that character: disjoint spans of characters have disjoint tokens.
    """
    return _border(start, ends), _border(end, ends) if end > start else _border(start, ends)


def _border(offset: int, ends: Sequence[int]) -> int:
    """Return the first token that does not end before a character."""
    if offset <= 0 or not ends:
        return 0
    if offset >= ends[-1]:
        return len(ends)
    at = bisect_left(ends, offset)
    return at + 1 if ends[at] == offset else at
