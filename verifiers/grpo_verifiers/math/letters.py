"""Multiple choice: the option an answer names, with or without the option's text."""

import re

from grpo_verifiers.math.read import without_text_commands

_OPTION = re.compile(r"\s*(?:\(\s*([A-J])\s*\)|([A-J])(?:\s*[).:,。]|(?=不是)))\s*(.*)", re.DOTALL)
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
    if match is None or not match[3].strip() or _OTHER.search(_EXCLUDED.sub("", match[3])):
        return None
    return match[1] or match[2]
