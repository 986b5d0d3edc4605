"""Values of the standard library that a text says in full, by their exact class."""

import importlib
import sys
from collections.abc import Callable
from typing import Any

_LONGEST = 10_000
_CODECS: dict[str, tuple[str, Callable[[Any], str], Callable[[Any, str], Any]]] = {
    "Decimal": ("decimal", str, lambda module, text: module.Decimal(text)),
    "Fraction": (
        "fractions",
        lambda value: f"{value.numerator:x}/{value.denominator:x}",
        lambda module, text: module.Fraction(int(text.partition("/")[0], 16), int(text.partition("/")[2], 16)),
    ),
    "UUID": ("uuid", lambda value: str(value.hex), lambda module, text: module.UUID(hex=text)),
    "date": ("datetime", lambda value: str(value.isoformat()), lambda module, text: module.date.fromisoformat(text)),
    "time": ("datetime", lambda value: str(value.isoformat()), lambda module, text: module.time.fromisoformat(text)),
    "datetime": (
        "datetime",
        lambda value: str(value.isoformat()),
        lambda module, text: module.datetime.fromisoformat(text),
    ),
    "timedelta": (
        "datetime",
        lambda value: f"{value.days}/{value.seconds}/{value.microseconds}",
        lambda module, text: module.timedelta(*map(int, text.split("/"))),
    ),
    "PosixPath": ("pathlib", str, lambda module, text: module.PosixPath(text)),
    "PurePosixPath": ("pathlib", str, lambda module, text: module.PurePosixPath(text)),
}
"""By the name of the class: its module, its text, and the value of a text."""
STANDARD = frozenset(module for module, _, _ in _CODECS.values())
"""The modules of those classes."""


def text_of(value: Any) -> tuple[str, str] | None:
    """The name of a value's class and its text; None for a value of any other class."""
    kind = type(value)
    module, to_text, _ = _CODECS.get(kind.__name__, ("", str, None))
    if not module or getattr(sys.modules.get(module), kind.__name__, None) is not kind:
        return None
    text = to_text(value)
    return (kind.__name__, text) if len(text) <= _LONGEST else None


def value_of(name: str, text: str) -> Any:
    """The value of a text of ``text_of``; ValueError where there is none."""
    if type(name) is not str or type(text) is not str or name not in _CODECS or len(text) > _LONGEST:
        raise ValueError("no text of a value")
    module, _, from_text = _CODECS[name]
    try:
        return from_text(importlib.import_module(module), text)
    except (ArithmeticError, TypeError, LookupError) as error:
        raise ValueError("no text of a value") from error
