"""Fenced blocks: the last one of the requested language is a program, or JSON.

Strings and comments are followed without parsing: half a program, or prose, has them as well.
"""

import re
from collections.abc import Collection, Iterator
from typing import NamedTuple

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
    """Spans of strings in three quotes, each with True if it is closed."""
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


_FENCE = re.compile(r"^([ \t]*+)(`{3,}+|~{3,}+)[ \t]*+([^\n]*)$", re.MULTILINE)
_LANGUAGE = re.compile(r"[{. \t]*([^\s{}:,;]*)")
_MINOR = re.compile(r"(?<=\d)(?:\.\d{1,3}){1,3}\Z")
_AHEAD = 200_000
"""Characters of a text that are read, some again, in search of the end of strings with fences in them."""


class Block(NamedTuple):
    """A fenced block, from ``start`` to ``end`` of its content; ``closed`` unless it is cut off."""

    start: int
    end: int
    indent: str  # before its fence
    language: str  # in lower case, empty without one
    closed: bool

    def source(self, text: str) -> str:
        """The content without the indentation of the fence."""
        return dedent(text[self.start : self.end], self.indent)


def blocks(text: str, names: Collection[str]) -> Iterator[Block]:
    """All fenced blocks, in order; ``names`` are those of the requested language, in lower case.

    A fence inside a long string (in three quotes) of a block of the language closes nothing, if one after that string
    does. Where strings cannot be followed so, the first fence closes.
    """
    fences = list(_FENCE.finditer(text))
    budget = _AHEAD
    at = 0
    while at < len(fences):
        opening = fences[at]
        at += 1
        if "`" in opening[3]:
            continue  # code inside a line
        start = opening.end() + 1
        language = _LANGUAGE.match(opening[3].strip().lower())[1]  # type: ignore[index]  # matches everything
        first = closing = -1
        place = start
        for number in range(at, len(fences)):
            fence = fences[number]
            if first >= 0:
                budget -= fence.start() - place
                if budget < 0:
                    break
            if not fence[2].startswith(opening[2]) or fence[3].strip():
                continue
            if first < 0:
                first = number
                if not is_named(language, names):
                    break
            place = open_string(text, place, fence.start())
            if place == fence.start():
                closing = number
                break
        closing = first if closing < 0 else closing
        if closing < 0:
            if start <= len(text):
                yield Block(start, len(text), opening[1], language, closed=False)
            return
        yield Block(start, fences[closing].start(), opening[1], language, closed=True)
        at = closing + 1


def is_named(language: str, names: Collection[str]) -> bool:
    """True if a language is empty or one of ``names``; ``python3.11`` counts as ``python3``."""
    return not language or language in names or _MINOR.sub("", language) in names


def last_block(text: str, names: Collection[str]) -> str | None:
    """The content of the last closed block with one of these names (in lower case), else of one without a name."""
    candidates = language_blocks(text, names)
    return candidates[-1].source(text) if candidates else None


def language_blocks(text: str, names: Collection[str]) -> list[Block]:
    """The closed blocks with one of the names, else those without a language."""
    usable = [block for block in blocks(text, names) if is_named(block.language, names) and block.closed]
    return [block for block in usable if block.language] or usable


def dedent(content: str, indent: str) -> str:
    """The content of a block without the indentation of its fence and with plain line ends."""
    content = content.replace("\r\n", "\n").removesuffix("\n").removeprefix("\ufeff")
    return "\n".join(line.removeprefix(indent) for line in content.split("\n")) if indent else content
