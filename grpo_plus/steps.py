"""From character spans of a completion to spans of its sampled tokens, by incremental decoding."""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence

Decode = Callable[[Sequence[int]], str]

_BROKEN = "�"


def token_ends(ids: Sequence[int], decode: Decode) -> list[int]:
    """For each token, how many characters the text has once it is there.

    Decodes a short window at a time, so the work is linear. A token that ends inside a multi-byte character does not
    show it; the one that completes it does. What is still broken at the end counts with the last token.

    Args:
        ids: the sampled ids, never re-tokenised text.
        decode: ids to text, special tokens included.
    """
    ends: list[int] = []
    total = 0
    window, read = 0, 0  # the window starts a little before the first unread token: its text depends on neighbours
    before = ""
    for position in range(len(ids)):
        text = decode(ids[window : position + 1])
        complete = not text.endswith(_BROKEN) or position + 1 == len(ids)
        shown = text if complete else text.rstrip(_BROKEN)
        ends.append(total + max(0, len(shown) - len(before)))
        if complete and len(text) >= len(before):
            total = ends[-1]
            window, read = read, position + 1
            before = decode(ids[window:read])
    return ends


def token_span(start: int, end: int, ends: Sequence[int]) -> tuple[int, int]:
    """The tokens of the characters ``[start, end)``: from the one that shows the first to the one that ends the last.

    A token that holds characters of two neighbouring spans belongs to the one its last character lies in, so that no
    token belongs to two.
    """
    first = bisect_right(ends, start)
    last = bisect_right(ends, end) if end > start else first
    if end > start and last > 0 and bisect_left(ends, end) == len(ends):
        last = len(ends)
    return first, max(first, last)
