"""The contents of ``<answer>...</answer>`` and its like."""

import re
from functools import lru_cache
from typing import NamedTuple

from grpo_verifiers.reading.boxes import has, has_box
from grpo_verifiers.reading.budget import spend


class Tag(NamedTuple):
    """One tagged section: where it begins, its content, and where it ends."""

    start: int
    content: str
    end: int


def tagged(text: str, tag: str) -> list[Tag]:
    """Every ``<tag>...</tag>`` in any case.

    One that is never closed reaches to the next opening tag or the end: generation often stops at the closing tag and
    leaves it out.
    """
    if "<" not in text or not has(text.lower(), f"<{tag}>".lower()):
        return []
    found: list[Tag] = []
    opened: re.Match[str] | None = None
    for match in _marks(tag).finditer(text):
        spend(2)
        if opened is not None:
            found.append(
                Tag(opened.start(), text[opened.end() : match.start()], match.end() if match[1] else match.start())
            )
        opened = None if match[1] else match
    if opened is not None:
        found.append(Tag(opened.start(), text[opened.end() :], len(text)))
    return found


def answer_tags(text: str) -> list[Tag]:
    """Every ``<answer>`` with something in it; one around a box is left out, for the box is the answer."""
    return [tag for tag in tagged(text, "answer") if tag.content.strip() and not has_box(tag.content)]


@lru_cache(maxsize=64)
def _marks(tag: str) -> re.Pattern[str]:
    return re.compile(rf"<(/?){re.escape(tag)}>", re.IGNORECASE)
