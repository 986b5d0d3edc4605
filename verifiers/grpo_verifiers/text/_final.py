"""Which part of a completion is its answer: outside the thinking, inside a tag, inside a box."""

import re
import unicodedata

_BRACES = re.compile(r"\\(?:boxed|fbox)\s{0,9}\{|\\[\\{}]|[{}]")
_BLANK = frozenset("\u2800\u3164\u115f\u1160\uffa0")  # letters and symbols that render as nothing


def final_text(completion: str, think: str | None) -> str:
    """What a completion says outside its thinking.

    That is the text after the last closing tag, up to a section opened later and never closed.

    Args:
        completion: the whole text.
        think: name of the thinking tag; None takes the completion as it is.
    """
    if think is None:
        return completion
    answer = completion.rpartition(f"</{think}>")[2]
    return answer.partition(f"<{think}>")[0]


def tagged_at(text: str, tag: str) -> list[tuple[int, str]]:
    """Where every closed ``<tag>…</tag>`` begins, and its content; an opening tag inside one belongs to its content."""
    opening, closing = f"<{tag}>", f"</{tag}>"
    found, place = [], 0
    while (end := text.find(closing, place)) >= 0:
        start = text.find(opening, place, end)
        if start >= 0:
            found.append((start, text[start + len(opening) : end]))
        place = end + len(closing)
    return found


def boxed_at(text: str) -> list[tuple[int, str]]:
    r"""Where every closed outermost ``\boxed{…}`` has its content, and that; in one pass, braces balanced."""
    found: list[tuple[int, str]] = []
    depth, base, start = 0, 0, -1
    for match in _BRACES.finditer(text):
        mark = match.group()
        if mark == "}":
            depth = max(0, depth - 1)
            if start >= 0 and depth == base:
                found.append((start, text[start : match.start()]))
                start = -1
        elif mark.endswith("{") and mark != "\\{":
            if mark != "{" and start < 0:
                start, base = match.end(), depth
            depth += 1
    return found


def tagged(text: str, tag: str) -> list[str]:
    """The contents of every closed ``<tag>…</tag>``."""
    return [content for _, content in tagged_at(text, tag)]


def boxed(text: str) -> list[str]:
    r"""The contents of every closed outermost ``\boxed{…}``."""
    return [content for _, content in boxed_at(text)]


def visible(text: str, limit: int = 1) -> int:
    """How many characters leave ink, counted up to ``limit``: zero-width characters and blanks are no content."""
    count = 0
    for char in text:
        if not char.isspace() and unicodedata.category(char)[0] not in "CZM" and char not in _BLANK:
            count += 1
            if count >= limit:
                break
    return count


def show(text: object, limit: int = 60) -> str:
    """A value for a message: quoted, cut, free of control characters and lone surrogates."""
    raw = text if isinstance(text, str) else repr(text)[: 4 * limit]
    cut = raw if len(raw) <= limit else f"{raw[:limit]}…"
    return repr(cut)
