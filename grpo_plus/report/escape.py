"""Make model text safe to display: no character in it moves the cursor, reverses a line or hides."""

import re
import unicodedata
from typing import Any

_HIDDEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ud800-\udfff"
    "\U000e0000-\U000e007f]"
)
_NAMES = {"\u2028": "LS", "\u2029": "PS", "\u202e": "RLO", "\u202d": "LRO", "\u202a": "LRE", "\u202b": "RLE"}
_PICTURES = 0x2400
_MARKS = "\u0300-\u036f\u0483-\u0489\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff\ufe20-\ufe2f"
_CROWD = re.compile(f"([{_MARKS}]{{4}})[{_MARKS}]+")


def escape_controls(text: str) -> str:
    """Replace control characters, direction overrides and lone surrogates by visible symbols.

    Newlines and tabs stay. Towers of combining marks are cut after the fourth.
    """
    return _CROWD.sub(r"\1", _HIDDEN.sub(_picture, text))


def escape_all(value: Any) -> Any:
    """Apply `escape_controls` to all text in lists and mappings, keys included."""
    if isinstance(value, str):
        return escape_controls(value)
    if isinstance(value, dict):
        return {escape_all(key): escape_all(item) for key, item in value.items()}
    return [escape_all(item) for item in value] if isinstance(value, list | tuple) else value


def _picture(match: re.Match[str]) -> str:
    character = match[0]
    code = ord(character)
    if code < 0x20:
        return chr(_PICTURES + code)
    if code == 0x7F:
        return "\u2421"
    if 0xD800 <= code <= 0xDFFF:
        return "\ufffd"
    short = _NAMES.get(character) or unicodedata.name(character, f"U+{code:04X}")
    return f"\u2039{short}\u203a"
