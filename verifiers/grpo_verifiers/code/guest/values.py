"""Exact values of built-in and standard classes as JSON trees, the only data that cross between processes.

Numbers in range, strings, true, false and null are unchanged. Any other value is a list that begins with a tag.
"""

import importlib
import json
import math
import re
import sys
from array import array
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable
from typing import Any

from .records import TAGS, is_head, record_of, replica_of

MAX_DEPTH = 100
MAX_ITEMS = 200_000
"""Members of one list, tuple, set or mapping: more would not fit a message, and take long to encode."""
_WIDE = 1 << 63
_SEQUENCES: dict[type, str] = {
    list: "l", tuple: "t", set: "s", frozenset: "z", deque: "q", type({}.keys()): "k", type({}.values()): "v",
    type({}.items()): "y",
}  # fmt: skip
_MAPPINGS: dict[type, str] = {dict: "d", OrderedDict: "O", Counter: "C", defaultdict: "D"}
_FACTORIES: dict[Any, type] = {kind.__name__: kind for kind in (int, float, str, list, dict, set, tuple)}
"""Factories of a defaultdict that cross."""
_MAKERS: dict[str, Callable[[Any], Any]] = {
    "l": list, "t": tuple, "s": set, "z": frozenset, "g": iter, "q": deque,
    "k": lambda items: dict.fromkeys(items).keys(),
    "v": lambda items: dict(enumerate(items)).values(), "y": lambda items: dict(items).items(),
}  # fmt: skip
_LONGEST_TEXT = 10_000
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
"""Classes of the standard library with a lossless text form, by name: module, to text, from text."""
_OF_DATA = {"builtins", "program", "array", "collections", "_collections", "numpy"}.union(
    module for module, _, _ in _CODECS.values()
)
"""Modules of the classes of plain data, and of results of their methods."""
Maker = Callable[[str, list[Any], list[Any]], Any]
_DTYPE = re.compile(r"\|(?:b1|[iu]1|S\d{1,4})|[<>](?:[iu][248]|f[248]|c(?:8|16)|U\d{1,4})")
"""Types of arrays whose members are built-in values, as numpy writes them: no long doubles, which are none."""


class NoValueError(ValueError):
    """A value that cannot be encoded, or a tree that cannot be decoded.

    Attributes:
        data: plain data can turn into it, by computing with it or by naming one of its methods; no other function, nor
            an object of a user-defined class.
    """

    def __init__(self, message: str, *, data: bool = False) -> None:
        super().__init__(message)
        self.data = data


class ValueTooLargeError(NoValueError):
    """Built-in values, too many or nested too deeply."""


def encode(value: Any, depth: int = 0) -> Any:
    """The tree of a value, or ValueTooLargeError.

    NoValueError for an object of any other class, or a subclass of a built-in one that is no named tuple.
    """
    kind = type(value)
    if value is None or kind is bool or kind is str:
        return value
    if kind is int:
        return value if -_WIDE <= value < _WIDE else ["i", hex(value)]
    if kind is float:
        return value if math.isfinite(value) else ["f", repr(value)]
    if kind is complex:
        return ["c", repr(value.real), repr(value.imag)]
    if kind is bytes or kind is bytearray:
        return ["b" if kind is bytes else "B", value.hex()]
    if depth >= MAX_DEPTH:
        raise ValueTooLargeError(f"a value nested more than {MAX_DEPTH} deep")
    tag = _SEQUENCES.get(kind)
    if (tag is not None or kind in _MAPPINGS) and len(value) > MAX_ITEMS:
        raise ValueTooLargeError(f"a {kind.__name__} of more than {MAX_ITEMS} members")
    if tag is not None:
        return [tag, *(encode(item, depth + 1) for item in value)]
    if kind in _MAPPINGS:
        pairs = [[encode(key, depth + 1), encode(item, depth + 1)] for key, item in dict.items(value)]
        if kind is defaultdict:
            factory = getattr(value.default_factory, "__name__", None)
            return ["D", factory if _FACTORIES.get(factory) is value.default_factory else None, *pairs]
        return [_MAPPINGS[kind], *pairs]
    if kind is array:
        return ["a", value.typecode, encode(value.tolist(), depth + 1)]
    if kind is range:
        return ["r", *(encode(part) for part in (value.start, value.stop, value.step))]
    if is_iterator(kind):
        return ["g", *_items_of(value, depth)]
    if kind.__module__ == "numpy" and "numpy" in sys.modules:
        return _of_numpy(value, depth)
    if (text := _text_of(value)) is not None:
        return ["x", *text]
    if (record := record_of(value)) is not None:
        tag, head, members = record
        return [tag, head, *(encode(item, depth + 1) for item in members)]
    raise NoValueError(f"a value of type {kind.__name__[:60]}", data=_comes_of_data(value))


def is_iterator(kind: type) -> bool:
    """True for iterators of the interpreter's own classes, generators among them."""
    return kind.__module__ in {"builtins", "itertools"} and hasattr(kind, "__next__")


def _comes_of_data(value: Any) -> bool:
    if callable(value):
        owner = getattr(value, "__self__", None)  # that of a method
        return owner is not None and _comes_of_data(owner)
    kind = type(value)
    return kind.__module__.partition(".")[0] in _OF_DATA and kind is not type(sys)


def _items_of(iterator: Any, depth: int) -> list[Any]:
    items = []
    for item in iterator:
        items.append(encode(item, depth + 1))
        if len(items) > MAX_ITEMS:
            raise ValueTooLargeError(f"an iterator of more than {MAX_ITEMS} members")
    return items


def _of_numpy(value: Any, depth: int) -> Any:
    """Encode a scalar as its built-in value, an array with the type of its members."""
    numpy = sys.modules["numpy"]
    if isinstance(value, numpy.generic):
        item = value.item()
        if type(item).__module__ == "builtins":
            return encode(item, depth)
    elif type(value) is numpy.ndarray and _DTYPE.fullmatch(value.dtype.str):
        if value.size > MAX_ITEMS:
            raise ValueTooLargeError(f"an array of more than {MAX_ITEMS} members")
        return ["n", value.dtype.str, encode(value.tolist(), depth + 1)]
    raise NoValueError(f"a value of numpy's type {type(value).__name__[:60]}", data=_comes_of_data(value))


def _text_of(value: Any) -> tuple[str, str] | None:
    """The name of a value's class and its text; None for a value of any other class."""
    kind = type(value)
    module, to_text, _ = _CODECS.get(kind.__name__, ("", str, None))
    if not module or getattr(sys.modules.get(module), kind.__name__, None) is not kind:
        return None
    text = to_text(value)
    return (kind.__name__, text) if len(text) <= _LONGEST_TEXT else None


def _value_of(name: str, text: str) -> Any:
    """The value of a text of ``_text_of``; ValueError for any other text."""
    if type(name) is not str or type(text) is not str or name not in _CODECS or len(text) > _LONGEST_TEXT:
        raise ValueError("not the text of a value")
    module, _, from_text = _CODECS[name]
    try:
        return from_text(importlib.import_module(module), text)
    except (ArithmeticError, TypeError, LookupError) as error:
        raise ValueError("not the text of a value") from error


def decode(tree: Any, make: Maker = replica_of) -> Any:
    """The value of a tree that ``check`` has passed; ``make`` makes the objects of a program's classes."""
    if not isinstance(tree, list):
        return tree
    tag, *rest = tree
    if tag in _MAPPINGS.values():
        pairs = rest[1:] if tag == "D" else rest
        mapping = {decode(key, make): decode(item, make) for key, item in pairs}
        if tag == "D":
            return defaultdict(_FACTORIES.get(rest[0]), mapping)
        return {"d": dict, "O": OrderedDict, "C": Counter}[tag](mapping)
    if tag in _MAKERS:
        return _MAKERS[tag](decode(item, make) for item in rest)
    if tag in TAGS:
        return make(tag, rest[0], [decode(item, make) for item in rest[1:]])
    if tag == "r":
        return range(*map(decode, rest))
    if tag == "x":
        return _value_of(*rest)
    if tag == "a":
        return array(rest[0], decode(rest[1]))
    if tag == "n":
        members = decode(rest[1])
        return sys.modules["numpy"].array(members, dtype=rest[0]) if "numpy" in sys.modules else members
    if tag == "i":
        return int(rest[0], 16)
    if tag == "f":
        return float(rest[0])
    if tag == "c":
        return complex(float(rest[0]), float(rest[1]))
    if tag in {"b", "B"}:
        data = bytes.fromhex(rest[0])
        return data if tag == "b" else bytearray(data)
    raise NoValueError("an unknown tag")


def check(tree: Any) -> None:
    """Raise NoValueError unless ``encode`` can return this untrusted tree."""
    if not _is_well_formed(tree, 0):
        raise NoValueError("a malformed value")


def _is_well_formed(tree: Any, depth: int) -> bool:
    kind = type(tree)
    if tree is None or kind in {bool, str}:
        return True
    if kind is float:
        return math.isfinite(tree)
    if kind is int:
        return bool(-_WIDE <= tree < _WIDE)
    if kind is not list or not tree or depth > MAX_DEPTH or type(tree[0]) is not str:
        return False
    tag, *rest = tree
    if tag in _MAPPINGS.values():
        if tag == "D":
            if not rest or not (rest[0] is None or (type(rest[0]) is str and rest[0] in _FACTORIES)):
                return False
            rest = rest[1:]
        return all(type(pair) is list and len(pair) == 2 and _are_well_formed(pair, depth) for pair in rest)
    if tag in _MAKERS:
        return _are_well_formed(rest, depth)
    if tag in TAGS:
        if not rest or type(rest[0]) is not list or len(rest[0]) != (2 if tag == "m" else 4):
            return False
        return is_head(tag, rest[0], len(rest) - 1) and _are_well_formed(rest[1:], depth)
    if tag == "r":
        return len(rest) == 3 and _are_well_formed(rest, depth)
    if tag == "n":
        if len(rest) != 2 or type(rest[0]) is not str or not _DTYPE.fullmatch(rest[0]):
            return False
        return _is_well_formed(rest[1], depth + 1)
    if tag == "a":
        if len(rest) != 2 or type(rest[0]) is not str or len(rest[0]) != 1 or type(rest[1]) is not list:
            return False
        if not _is_well_formed(rest[1], depth + 1) or not {int, float, str, list}.issuperset(map(type, rest[1])):
            return False
        try:
            decode(tree)
        except (ValueError, TypeError, OverflowError):
            return False
        return True
    if tag in {"i", "f", "c", "b", "B", "x"}:
        if len(rest) != (2 if tag in {"c", "x"} else 1) or any(type(item) is not str for item in rest):
            return False
        try:
            return bool(encode(decode(tree)) == tree)
        except ValueError:
            return False
    return False


def _are_well_formed(items: list[Any], depth: int) -> bool:
    return all(_is_well_formed(item, depth + 1) for item in items)


def dump(message: Any) -> bytes:
    """A message as bytes, its length first."""
    data = json.dumps(message, separators=(",", ":")).encode("ascii")
    return len(data).to_bytes(4, "big") + data
