"""The contents of ``<answer>...</answer>`` and its like."""

import re
from functools import lru_cache
from typing import NamedTuple


class Tag(NamedTuple):
    """One tagged section: where it begins, and its content."""

    start: int
    content: str


def tagged(text: str, tag: str) -> list[Tag]:
    """Every ``<tag>...</tag>`` in any case.

    One that is never closed reaches to the next opening tag or the end: generation often stops at the closing tag and
    leaves it out.
    """
    if f"<{tag}>".lower() not in text.lower():
        return []
    return [Tag(match.start(), match.group(1)) for match in _sections(tag).finditer(text)]


def answer_tags(text: str) -> list[Tag]:
    """Every ``<answer>`` with something in it; one around a box is left out, for the box is the answer."""
    found = tagged(text, "answer")
    return [tag for tag in found if tag.content.strip() and not re.search(r"\\(?:boxed|fbox)\b", tag.content)]


@lru_cache(maxsize=64)
def _sections(tag: str) -> re.Pattern[str]:
    name = re.escape(tag)
    return re.compile(rf"<{name}>(.*?)(?:</{name}>|(?=<{name}>)|\Z)", re.DOTALL | re.IGNORECASE)
