"""The text of an environment's state key: equal for equal keys, in every process and on every rank."""

import re
from collections.abc import Mapping
from hashlib import blake2b
from typing import Any

MOST = 64 << 10
"""Characters of a key; a longer one ends with a digest of all of it."""
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+>")


def key_text(key: Any) -> str:
    """``str`` of a key, with mappings and sets in order and arrays as lists; empty for None.

    >>> key_text((3, "left")), key_text({"b": 1, "a": 2}) == key_text({"a": 2, "b": 1}), key_text(None)
    ("(3, 'left')", True, '')
    """
    if key is None:
        return ""
    if isinstance(key, str):
        text = str.__str__(key)
    else:
        several = isinstance(key, Mapping | set | frozenset | list | tuple) or _lists(key)
        text = _shown(key) if several else _without_address(key, str(key))
    text = text.encode("utf-8", "backslashreplace").decode("utf-8")
    if len(text) <= MOST:
        return text
    return f"{text[: MOST - 64]} [{len(text)} characters, {blake2b(text.encode(), digest_size=16).hexdigest()}]"


def _shown(value: Any) -> str:
    if isinstance(value, Mapping):
        pairs = sorted((_shown(name), _shown(each)) for name, each in value.items())
        return "{" + ", ".join(f"{name}: {each}" for name, each in pairs) + "}"
    if isinstance(value, set | frozenset):
        return "{" + ", ".join(sorted(map(_shown, value))) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_shown, value)) + "]"
    if isinstance(value, tuple):
        return "(" + ", ".join(map(_shown, value)) + (",)" if len(value) == 1 else ")")
    if _lists(value):
        return _shown(value.tolist())
    return repr(value) if isinstance(value, str) else _without_address(value, repr(value))


def _lists(value: Any) -> bool:
    """An array or a tensor, whose own text leaves out the middle."""
    return not isinstance(value, type) and callable(getattr(value, "tolist", None))


def _without_address(value: Any, text: str) -> str:
    if _ADDRESS.search(text) is None:
        return text
    raise TypeError(
        f"a state key holds a {type(value).__name__}, whose text is its address in memory: give a text, numbers, or "
        "tuples of these."
    )
