"""Strings and comments of a program, followed without parsing: half a program, or prose, has them as well."""

import re
from collections.abc import Iterator

MARK = re.compile(r"\"\"\"|'''|[\"'#()\[\]{}\\\n]")
_TEXTS = re.compile(r"\"\"\"|'''|[\"'#]|\\.", re.DOTALL)
_ENDS = {quote: re.compile(rf"\\.|{quote}" if len(quote) == 3 else rf"\\.|{quote}|\n", re.DOTALL) for quote in
         ("'", '"', "'''", '"""')}  # fmt: skip


def after_string(text: str, at: int, end: int, quote: str) -> int:
    """The end of a string that began before ``at``; one in single quotes ends with its line at the latest."""
    while (match := _ENDS[quote].search(text, at, end)) is not None:
        at = match.end()
        if not match.group().startswith("\\"):
            return at - 1 if match.group() == "\n" else at
    return end


def long_strings(text: str, at: int, end: int) -> list[tuple[int, int]]:
    r"""The spans of strings in three quotes that begin and end in ``text[at:end]``, in order.

    >>> long_strings('x = 1\n\"\"\"doc\"\"\"\n', 0, 16)
    [(6, 15)]
    """
    return [(first, last) for first, last, closed in _long(text, at, end) if closed]


def open_string(text: str, at: int, line: int) -> int:
    """The start of the string in three quotes that is open at the start of a line; the line's start if none is.

    The code begins at ``at``, or such a string in it does; the line begins at ``line``.
    """
    return next((first for first, _, closed in _long(text, at, line) if not closed), line)


def _long(text: str, at: int, end: int) -> Iterator[tuple[int, int, bool]]:
    """Strings in three quotes, and whether they are closed."""
    while (match := _TEXTS.search(text, at, end)) is not None:
        mark, at = match.group(), match.end()
        if mark == "#":
            stop = text.find("\n", at, end)
            at = end if stop < 0 else stop
        elif mark[0] != "\\":
            at = after_string(text, at, end, mark)
            if len(mark) == 3:
                closed = at - match.end() >= 3 and text.startswith(mark, at - 3)
                yield match.start(), at, closed
