"""Remove secrets from output: values under names such as ``password``, texts that look like keys, logins in addresses.

One rule for model cards, records, reports, logs, errors and the environment of workers.
"""

import dataclasses
import logging
import re
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from types import SimpleNamespace
from typing import Any

from grpo_verifiers.redaction.names import Kind, secret_kind
from grpo_verifiers.redaction.texts import HIDDEN, is_random, redact_text, remember, secret_count

__all__ = ["HIDDEN", "RedactedError", "get_logger", "redact", "redact_text", "remember"]

MOST_DEEP = 60
_NAME = re.compile(r"[\w.-]{1,100}")
_SCHEMES = frozenset({"bearer", "basic", "digest", "negotiate", "token"})
_NAMES, _VALUES = ("name", "key", "header", "field", "option", "k"), ("value", "val", "v", "content", "default")


def redact(value: Any, name: str = "") -> Any:
    """The value without secrets, at any depth of plain data and dataclasses; other objects are unchanged.

    >>> redact({"api_key": "x", "url": "https://me:pw@host/v1", "max_tokens": 5})
    {'api_key': '(hidden)', 'url': 'https://(hidden)@host/v1', 'max_tokens': 5}

    A value under the ``name`` of a secret is a secret.
    """
    before = secret_count()
    result = _redact(value, secret_kind(name), 0)
    # A secret may occur without its name earlier in the data.
    return result if secret_count() == before else _redact(value, secret_kind(name), 0)


def _redact(value: Any, kind: Kind, depth: int) -> Any:
    if depth > MOST_DEEP:
        return HIDDEN
    if isinstance(value, str):
        return _hidden_text(value, kind)
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int | float):
        return HIDDEN if kind == "all" else value
    if isinstance(value, bytes | bytearray):
        return _hidden_text(value.decode("latin-1"), kind).encode("latin-1")
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = {field.name: getattr(value, field.name, None) for field in dataclasses.fields(value)}
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        value = value._asdict()
    elif isinstance(value, SimpleNamespace):
        value = vars(value)
    if isinstance(value, Mapping):
        return _mapping(value, kind, depth)
    if isinstance(value, Sequence):
        items = _sequence(value, kind, depth)
        return tuple(items) if isinstance(value, tuple) else items
    if isinstance(value, AbstractSet):
        return [_redact(item, kind, depth + 1) for item in value]
    return HIDDEN if kind in {"text", "all"} else value


def _mapping(values: Mapping[Any, Any], kind: Kind, depth: int) -> dict[Any, Any]:
    # The kind of the item "value" of a mapping with an item "name", as headers are written.
    names = (values.get(key) for key in _NAMES)
    named: Kind = max((secret_kind(name) for name in names if isinstance(name, str)), key=_STRENGTH.index, default="")
    result = {}
    for key, item in values.items():
        own = _stronger(named if key in _VALUES else "", secret_kind(_last_key(key)))
        result[redact_text(key) if isinstance(key, str) else key] = _redact(item, _stronger(kind, own), depth + 1)
    return result


def _last_key(key: Any) -> str:
    """A key of a mapping as a name; of a path of keys, the last."""
    while isinstance(key, tuple) and key:
        key = key[-1]
    return key.decode("latin-1") if isinstance(key, bytes) else key if isinstance(key, str) else ""


def _sequence(values: Sequence[Any], kind: Kind, depth: int) -> list[Any]:
    """Redact a list; a word after the name of a secret (an option, the name of a header) is its value."""
    result = []
    before: Kind = ""
    for at, item in enumerate(values):
        login = isinstance(item, str) and at > 0 and str(values[at - 1]) in {"-u", "--user"}
        result.append(redact_text(f"-u {item}")[3:] if login else _redact(item, _stronger(kind, before), depth + 1))
        before = _kind_of_next(item, pair=len(values) == 2 and at == 0)
    return result


def _kind_of_next(item: Any, *, pair: bool) -> Kind:
    if not isinstance(item, str) or not _NAME.fullmatch(item):
        return ""
    if item.lower() in _SCHEMES:
        return "random"
    kind = secret_kind(item)
    if item.startswith("-"):
        return kind
    # Of two words, the first may be a name, or a word like any other.
    return kind if pair and kind == "all" else "random" if (pair and kind) or kind == "all" else ""


_STRENGTH: tuple[Kind, ...] = ("", "random", "text", "all")


def _stronger(one: Kind, other: Kind) -> Kind:
    return max(one, other, key=_STRENGTH.index)


def _hidden_text(text: str, kind: Kind) -> str:
    if not text or kind == "" or (kind == "random" and not is_random(text)):
        return redact_text(text)
    remember(text)
    return HIDDEN


class _Redacted(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        record.msg, record.args = redact_text(record.getMessage()), ()
        return True


def get_logger(name: str) -> logging.Logger:
    """The logger of this name, whose messages show no secrets."""
    logger = logging.getLogger(name)
    if not any(isinstance(one, _Redacted) for one in logger.filters):
        logger.addFilter(_Redacted())
    return logger


class RedactedError(Exception):
    """An exception whose message shows no secret."""

    def __str__(self) -> str:
        return redact_text(super().__str__())
