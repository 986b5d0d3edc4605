"""Multiple choice and sequences of letters: the option an answer names, with or without its text; their order."""

import re

from grpo_verifiers.math.read import without_text_commands
from grpo_verifiers.math.tree import Node

_OPTION = re.compile(r"\s*(?:\(\s*([A-J])\s*\)|([A-J])(?:\s*[).:,。]|(?=不是)))\s*(.*)", re.DOTALL)
_APPLIED = "'^*!_+=/"  # (B)^2 is a formula, (B) 2 an option with its text
_EXCLUDED = re.compile(
    r"(?:can't be|cannot be|can not be|isn't|is not|not|non|nicht|不是)\s*\(?[A-J]\)?"
    r"(?:\s*(?:,|or|nor|and)\s*\(?[A-J]\)?(?![A-Za-z]))*"
)
_OTHER = re.compile(r"(?<![A-Za-z'])[A-J](?![A-Za-z'])|\b(?:or|not|and|either|neither|maybe|but)\b")


def option_of(text: str) -> str | None:
    """The letter in ``D. 14 meters`` or ``(D), not (A)``; None where no text follows, or a second option may count."""
    if len(text) > 400:
        return None
    match = _OPTION.fullmatch(without_text_commands(text))
    if match is None or not match[3].strip() or match[3][0] in _APPLIED or _OTHER.search(_EXCLUDED.sub("", match[3])):
        return None
    return match[1] or match[2]


def ordered_letters(gold: Node, answer: Node) -> tuple[bool, str] | None:
    """Compare two sequences of capital letters; None for other answers, and for choices, which have no order.

    Letters in the order of the alphabet are choices (``A, C``); a word and any other order are sequences.
    """
    left, right = _letters(gold), _letters(answer)
    if not left or not right or len(left) < 2 or (gold[0] == answer[0] == "text"):
        return None
    if gold[0] == "list" and list(left) == sorted(left):
        right = "".join(sorted(right))
    return left == right, "" if left == right else "another order"


def _letters(node: Node) -> str:
    """Capital letters as one word: ``DBAC``, ``D, B, A, C``; empty for anything else."""
    if node[0] == "text":
        word = re.sub(r"[\s,]+", "", node[1])
        return word if word.isalpha() and word.isupper() and word.isascii() else ""
    if node[0] == "list" and all(part[0] == "v" and len(part[1]) == 1 and part[1].isupper() for part in node[1:]):
        return "".join(part[1] for part in node[1:])
    return ""
