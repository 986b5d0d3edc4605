"""A piece of text read as an answer: dollar signs taken off, prose around a single formula seen through."""

import re
from functools import lru_cache

from grpo_verifiers.math.parse import parse
from grpo_verifiers.math.phrases import last_number, only_math, phrases
from grpo_verifiers.math.tokens import MAX_CHARS, ParseError
from grpo_verifiers.math.tree import Node

_DOLLAR = re.compile(r"(?<!\\)\$")
_PROSE = re.compile(r"(?<![\\A-Za-z])[^\W\d_]{3,}")
_DECIMAL_COMMA = re.compile(r"([-+]?\d+),(\d+)")


def undelimited(text: str) -> str:
    """The text without math delimiters; a lone dollar sign is a currency and stays."""
    text = text.strip()
    for opener, closer in (("\\(", "\\)"), ("\\[", "\\]")):
        if text.startswith(opener) and text.endswith(closer):
            text = text[2:-2].strip()
    dollars = len(_DOLLAR.findall(text))
    if dollars and dollars % 2 == 0:
        text = _DOLLAR.sub(" ", text).strip()
    elif dollars == 1 and text.endswith("$"):
        text = text[:-1] + "\\text{ dollars}"
    return text.strip("*").strip() if text.startswith("**") else text


@lru_cache(maxsize=4096)
def read(text: str) -> Node:
    """The tree of an answer as stated.

    Raises:
        ParseError: it cannot be read; the message says why.
    """
    if len(text) > MAX_CHARS * 2:
        raise ParseError(f"an answer of more than {MAX_CHARS} characters")
    return parse(undelimited(text))


def read_prose(text: str, *, with_last_number: bool) -> str | None:
    """The answer inside a sentence that was put where an answer belongs, or None."""
    if len(text) > MAX_CHARS or not _PROSE.search(text):
        return None
    stated = phrases(text)
    if len({value for value, _ in stated}) == 1:
        return stated[0][0]
    if stated:
        return None
    return only_math(text) or (last_number(text) if with_last_number else None)


def with_decimal_point(text: str) -> Node | None:
    """``1000,99`` as a decimal number; None where the text is something else."""
    match = _DECIMAL_COMMA.fullmatch(text.strip())
    return read(f"{match[1]}.{match[2]}") if match else None
