"""The last fenced block of a wanted language: a program, or JSON."""

import re
from collections.abc import Collection

_FENCE = re.compile(r"^([ \t]*+)(`{3,}+|~{3,}+)[ \t]*+([^\n]*)$", re.MULTILINE)
_LANGUAGE = re.compile(r"[{. \t]*([^\s{}:,;]*)")


def last_block(text: str, names: Collection[str]) -> str | None:
    """The content of the last closed fenced block, or None.

    A block that names the language wins over later ones that name none; blocks of other languages are passed over. One
    that is never closed is a program cut off, and no block.

    Args:
        text: the completion.
        names: what the language is called after a fence, in lower case.
    """
    place = last_block_at(text, names)
    return None if place is None else dedented(text[place[0] : place[1]], place[2])


def last_block_at(text: str, names: Collection[str], *, unclosed: bool = False) -> tuple[int, int, str] | None:
    """Where the content of that block starts and ends, and how far its fence is indented.

    Args:
        text: the completion.
        names: what the language is called after a fence, in lower case.
        unclosed: a block that is cut off counts, too.
    """
    named: tuple[int, int, str] | None = None
    bare: tuple[int, int, str] | None = None
    fence, indent, language, start = "", "", "", 0
    for match in _FENCE.finditer(text):
        marks, rest = match[2], match[3].strip()
        if not fence:
            if "`" not in rest:  # else it is code inside a line
                fence, indent, start = marks, match[1], match.end() + 1
                language = _LANGUAGE.match(rest.lower())[1]  # type: ignore[index]  # matches everything
        elif marks.startswith(fence) and not rest:
            if language in names or not language:
                place = start, match.start(), indent
                named, bare = (place, bare) if language else (named, place)
            fence = ""
    if unclosed and fence and start <= len(text) and (language in names or not language):
        place = start, len(text), indent
        named, bare = (place, bare) if language else (named, place)
    return named if named is not None else bare


def dedented(content: str, indent: str) -> str:
    """The content of a block without the indentation of its fence and with plain line ends."""
    content = content.replace("\r\n", "\n").removesuffix("\n").removeprefix("\ufeff")
    return "\n".join(line.removeprefix(indent) for line in content.split("\n")) if indent else content
