"""Comparing what a program answered with what was expected; both are data here, and nothing of a program's runs."""

import json
import math
import re
from typing import Any

_ABSOLUTE = 1e-9
_CLASS = {"l": "sequence", "t": "sequence", "s": "set", "z": "set"}
_FLOAT = re.compile(r"[+-]?(\d{1,400}\.\d{0,400}|\.\d{1,400}|\d{1,400}(?=[eE]))([eE][+-]?\d{1,4})?")
_NUMBER = re.compile(r"[+-]?(\d{1,400}\.?\d{0,400}|\.\d{1,400})([eE][+-]?\d{1,4})?")


def same_value(wanted: Any, got: Any, tolerance: float) -> bool:
    """Whether two trees of values are equal, by type and value.

    A list matches a tuple and a set a frozenset; an integer answers for an expected float, not the reverse; a bool
    matches bools only, an array what it has as a list. Floats are equal within the tolerance, but as members of sets
    and as keys exactly.
    """
    wanted, got = _listed(wanted), _listed(got)
    if isinstance(wanted, list):
        if not isinstance(got, list) or len(wanted) != len(got):
            return _same_float(wanted, got, tolerance)
        kind = _CLASS.get(wanted[0], wanted[0])
        if kind != _CLASS.get(got[0], got[0]):
            return False
        if kind == "sequence":
            return all(same_value(a, b, tolerance) for a, b in zip(wanted[1:], got[1:], strict=True))
        if kind == "set":
            if _much_more(wanted, got):
                return False
            return sorted(map(_canonical, wanted[1:])) == sorted(map(_canonical, got[1:]))
        if kind == "d":
            return _same_mapping(wanted[1:], got[1:], tolerance)
        return bool(wanted == got)
    if type(wanted) is float:
        return _same_float(wanted, got, tolerance)
    return type(wanted) is type(got) and bool(wanted == got)


def _listed(tree: Any) -> Any:
    return tree[2] if isinstance(tree, list) and tree[0] == "n" else tree


def _same_mapping(wanted: list[Any], got: list[Any], tolerance: float) -> bool:
    if _much_more([key for key, _ in wanted], [key for key, _ in got]):
        return False
    there = {_canonical(key): value for key, value in got}
    return len(there) == len(wanted) and all(
        (text := _canonical(key)) in there and same_value(value, there[text], tolerance) for key, value in wanted
    )


def _much_more(wanted: Any, got: Any) -> bool:
    """Whether a tree is too long to equal the other: sorting its members at every depth could take very long."""
    return len(json.dumps(got)) > 2 * len(json.dumps(wanted)) + 100


def _canonical(tree: Any) -> str:
    """One text for all trees of equal members of a set: as text, because a stranger's hash values are not to trust."""
    return json.dumps(_ordered(tree))


def _ordered(tree: Any) -> Any:
    if isinstance(tree, list):
        kind = _CLASS.get(tree[0], tree[0])
        members = [_ordered(member) for member in tree[1:]]
        return [kind, *(sorted(members, key=json.dumps) if kind in {"set", "d"} else members)]
    return 0.0 if type(tree) is float and tree == 0 else tree


def _same_float(wanted: Any, got: Any, tolerance: float) -> bool:
    a, b = _number(wanted), _number(got)
    if a is None or b is None or type(wanted) is not float:
        return False
    return math.isclose(a, b, rel_tol=tolerance, abs_tol=_ABSOLUTE if tolerance else 0.0)


def _number(tree: Any) -> float | None:
    """A number that may be compared within a tolerance."""
    if type(tree) is float:
        return tree
    if type(tree) is int:
        return float(tree)
    if isinstance(tree, list) and tree[0] == "i":
        try:
            return float(int(tree[1], 16))
        except OverflowError:
            return None
    return None


def same_output(wanted: str, got: str, tolerance: float) -> bool:
    """Whether two outputs agree line by line, whole; blanks at the end of lines and lines at the end do not count."""
    a, b = _lines(wanted), _lines(got)
    return len(a) == len(b) and all(x == y or _same_line(x, y, tolerance) for x, y in zip(a, b, strict=True))


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.rstrip().split("\n")]


def _same_line(wanted: str, got: str, tolerance: float) -> bool:
    """Word by word, where an expected decimal fraction may be met within the tolerance."""
    a, b = wanted.split(), got.split()
    return (
        len(a) == len(b)
        and wanted[: len(wanted) - len(wanted.lstrip())] == got[: len(got) - len(got.lstrip())]
        and all(x == y or _same_word(x, y, tolerance) for x, y in zip(a, b, strict=True))
        and any(_FLOAT.fullmatch(x) for x in a)
    )


def _same_word(wanted: str, got: str, tolerance: float) -> bool:
    if not _FLOAT.fullmatch(wanted) or not _NUMBER.fullmatch(got):
        return False
    a, b = float(wanted), float(got)
    return math.isfinite(a) and math.isclose(a, b, rel_tol=tolerance, abs_tol=_ABSOLUTE if tolerance else 0.0)
