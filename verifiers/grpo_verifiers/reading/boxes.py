r"""The contents of ``\boxed{...}``, ``\fbox{...}`` and ``<answer>...</answer>``, in one linear pass."""

import re
from functools import lru_cache
from typing import NamedTuple

MAX_BOXES = 1000
_OPEN = re.compile(r"\\(?:boxed|fbox)\b\s*")
_BRACES = re.compile(r"\\.|[{}]", re.DOTALL)
_TEXT = re.compile(r"\\text\s*\{([^{}]*)\}")
_BARE = re.compile(r"[-+]?[\d.,/]+")
_HIDDEN = re.compile(r"\\[hv]?phantom\s*\{\s*\Z")
# Contents that mention the box instead of filling it.
_PLACEHOLDERS = frozenset({"", "answer", "your answer", "final answer", "the answer"})
_NOTHING = re.compile(
    r"\\[hv]?phantom\s*\{[^{}]*\}|\\(?:hspace\*?|underline|text|mbox)\s*\{[^{}\w]*\}|\\(?:q?quad|enspace|square|Box|[lc]?dots)"
    r"(?![a-zA-Z])|\\[,;:! _]|[~_?□…\s.<>\[\]]"
)
"""Blanks and signs for something unknown."""


class AnswerBox(NamedTuple):
    """One box or tagged section: its content and its start and end offsets."""

    content: str
    start: int
    end: int


class Boxes(NamedTuple):
    """All boxes of a text, the first thousand at most; ``open``: the last one is not closed."""

    items: list[AnswerBox]
    open: bool


def closing(text: str, start: int) -> int:
    """The offset of the brace that closes the one right before ``start``, or -1."""
    depth = 1
    for match in _BRACES.finditer(text, start):
        char = match.group()
        if char == "{":
            depth += 1
        elif char == "}":
            depth -= 1
            if not depth:
                return match.start()
    return -1


def boxes(text: str) -> Boxes:
    """Every outermost visible box, placeholders left out."""
    items: list[AnswerBox] = []
    at = 0
    for match in _OPEN.finditer(text):
        if match.start() < at:
            continue
        if len(items) >= MAX_BOXES:
            break
        at = match.end()
        if text[at : at + 1] != "{":
            bare = _BARE.match(text, at)
            if bare:
                items.append(AnswerBox(bare.group().rstrip(".,"), match.start(), bare.end()))
                at = bare.end()
            continue
        end = closing(text, at + 1)
        if end < 0:
            end = _escaped_end(text, at + 1)
        if end < 0:
            return Boxes(items, open=True)
        content = text[at + 1 : end].strip()
        at = end + 1 + (text[end] == "\\")
        if _plain(content) in _PLACEHOLDERS or _invisible(text, match.start()):
            continue
        items.append(AnswerBox(content, match.start(), at))
    return Boxes(items, open=False)


def _escaped_end(text: str, start: int) -> int:
    r"""The end of a box whose closing brace has a stray backslash, ``\boxed{42\}``, or -1."""
    end = text.find("\\}", start, start + 60)
    return end if end > start and "{" not in text[start:end] and not text[end + 2 :].strip(" $.\n") else -1


def _plain(content: str) -> str:
    if len(content) > 40:
        return content
    return _NOTHING.sub("", content) and _TEXT.sub(r"\1", content).strip(" <>[]").lower()


def _invisible(text: str, start: int) -> bool:
    """True if a box is in a phantom, or in a line that begins with a LaTeX comment sign."""
    if _HIDDEN.search(text[max(0, start - 20) : start]):
        return True
    line = text.rfind("\n", max(0, start - 400), start) + 1
    return text[line:start].lstrip()[:1] == "%"


def stated_boxes(text: str, *, last_only: bool = False) -> tuple[list[AnswerBox], str]:
    """The boxes of a text, a box directly inside a box counted once; or the reason why none of them counts.

    With ``last_only`` only the last box has to be valid; earlier invalid boxes are left out.
    """
    items, is_open = boxes(text)
    if is_open:
        return [], "the last box is not closed"
    if len(items) >= MAX_BOXES:
        return [], f"{MAX_BOXES} boxes or more"
    contents = [unnest(box.content) for box in items]
    if None in contents and (not last_only or contents[-1] is None):
        return [], "a box inside a box"
    pairs = zip(items, contents, strict=True)
    return [box._replace(content=content) for box, content in pairs if content is not None], ""


def unnest(content: str) -> str | None:
    """A box's content without a box directly inside it; None if it has a box and more."""
    for _ in range(8):
        match = _OPEN.search(content)
        if match is None:
            return content
        start, stripped = match.end(), content.rstrip()
        if match.start() or content[start : start + 1] != "{" or closing(content, start + 1) != len(stripped) - 1:
            return None
        content = stripped[start + 1 : -1].strip()
    return None


def tag_sections(text: str, tag: str) -> list[AnswerBox]:
    """Every ``<tag>...</tag>`` in any case.

    One that is never closed reaches to the next opening tag or the end: generation often stops at the closing tag and
    leaves it out.
    """
    if "<" not in text or f"<{tag}>".lower() not in text.lower():
        return []
    sections: list[AnswerBox] = []
    opened: re.Match[str] | None = None
    for match in _marks(tag).finditer(text):
        if opened is not None:
            end = match.end() if match[1] else match.start()
            sections.append(AnswerBox(text[opened.end() : match.start()], opened.start(), end))
        opened = None if match[1] else match
    if opened is not None:
        sections.append(AnswerBox(text[opened.end() :], opened.start(), len(text)))
    return sections


def answer_tags(text: str) -> list[AnswerBox]:
    """Every ``<answer>`` with content; one around a box is left out, for the box is the answer."""
    return [tag for tag in tag_sections(text, "answer") if tag.content.strip() and not _OPEN.search(tag.content)]


@lru_cache(maxsize=64)
def _marks(tag: str) -> re.Pattern[str]:
    return re.compile(rf"<(/?){re.escape(tag)}>", re.IGNORECASE)
