"""The lists of words in ``lexicon.txt``, by section."""

import re
from pathlib import Path

_TEXT = Path(__file__).with_name("lexicon.txt").read_text("utf-8")
_SECTIONS: dict[str, str] = dict(re.findall(r"^\[([a-z ]+)\]\n((?:[^\[#\n].*\n)+)", _TEXT, re.MULTILINE))


def section(name: str) -> str:
    """The lines of a section."""
    return _SECTIONS[name].rstrip("\n")


def word_list(name: str) -> frozenset[str]:
    """The words of a section."""
    return frozenset(_SECTIONS[name].split())
