"""Comparing what a program answered with what was expected; both are data here, and nothing of a program's runs.

The whole rule is the table of "Tests of a row" in the manual of verifiers.
"""

import json
import math
import re
from decimal import Context, Decimal
from typing import Any

from grpo_verifiers.code.guest.values import decode

_CLASS = {"l": "sequence", "t": "sequence", "s": "set", "z": "set"}
_NOISE = 1e-13
"""Rounding error around an expected 0.0, of a computation with numbers around 1."""
_MEASURED = 15
"""Significant digits from which on a number was not written by hand, but printed whole."""
_FORMATTED = 6
"""Decimals up to which zeros at the end are a format that was asked for."""
_DECIMAL = re.compile(
    r"-?(?:(?:0|[1-9]\d{0,400})\.(?P<decimals>\d{1,400})|\d\.(?P<more>\d{1,400})[eE][+-]\d{2,3})", re.ASCII
)
_NUMBER = re.compile(
    r"[+-]?(?:\d{1,400}(?:\.(?P<decimals>\d{0,400}))?|\.(?P<alone>\d{1,400}))(?P<exponent>[eE][+-]?\d{1,4})?",
    re.ASCII,
)
_WIDE = Context(prec=900, Emax=10**6, Emin=-(10**6), traps=[])


def same_value(wanted: Any, got: Any, tolerance: float) -> bool:
    """True if two trees of values are equal by the table; an array counts as its list."""
    return _same(wanted, got, tolerance, min(1.0, _largest(wanted) or 1.0))


def _same(wanted: Any, got: Any, tolerance: float, scale: float) -> bool:
    wanted, got = _listed(wanted), _listed(got)
    if isinstance(wanted, list):
        if not isinstance(got, list) or len(wanted) != len(got):
            return False
        kind = _CLASS.get(wanted[0], wanted[0])
        if kind != _CLASS.get(got[0], got[0]):
            return False
        if kind == "sequence":
            return all(_same(a, b, tolerance, scale) for a, b in zip(wanted[1:], got[1:], strict=True))
        if kind == "set":
            if _much_more(wanted, got):
                return False
            return sorted(map(_canonical, wanted[1:])) == sorted(map(_canonical, got[1:]))
        if kind == "d":
            return _same_mapping(wanted[1:], got[1:], tolerance, scale)
        if kind == "c":
            return _same_complex(wanted[1:], got[1:], tolerance)
        return bool(wanted == got)
    if type(wanted) is float:
        return _same_float(wanted, got, tolerance, scale)
    return type(wanted) is type(got) and bool(wanted == got)


def _listed(tree: Any) -> Any:
    """An array as its list, a deque and a named tuple as a tuple, a mapping as a dict, a bytearray as bytes."""
    if not isinstance(tree, list):
        return tree
    tag = tree[0]
    if tag in {"n", "a"}:
        return tree[2]
    if tag in {"m", "q"}:
        return ["t", *tree[2 if tag == "m" else 1 :]]
    if tag in {"O", "C", "D"}:
        return ["d", *tree[2 if tag == "D" else 1 :]]
    return ["b", tree[1]] if tag == "B" else tree


def _same_mapping(wanted: list[Any], got: list[Any], tolerance: float, scale: float) -> bool:
    if _much_more([key for key, _ in wanted], [key for key, _ in got]):
        return False
    there = {_canonical(key): value for key, value in got}
    return len(there) == len(wanted) and all(
        (text := _canonical(key)) in there and _same(value, there[text], tolerance, scale) for key, value in wanted
    )


def _much_more(wanted: Any, got: Any) -> bool:
    """True if a tree is too long to equal the other: sorting its members at every depth could take very long."""
    return len(json.dumps(got)) > 2 * len(json.dumps(wanted)) + 100


def _canonical(tree: Any) -> str:
    """One text for all trees of equal members of a set: as text, because a stranger's hash values are not to trust."""
    return json.dumps(_ordered(tree))


def _ordered(tree: Any) -> Any:
    tree = _listed(tree)
    if isinstance(tree, list):
        kind = _CLASS.get(tree[0], tree[0])
        members = [_ordered(member) for member in tree[1:]]
        return [kind, *(sorted(members, key=json.dumps) if kind in {"set", "d"} else members)]
    return 0.0 if type(tree) is float and tree == 0 else tree


def _largest(tree: Any) -> float:
    """The largest size of a float of a tree that is finite."""
    if isinstance(tree, list):
        if tree[0] == "d":
            return max((_largest(item) for _, item in tree[1:]), default=0.0)
        return max(map(_largest, tree[1:]), default=0.0)
    return abs(tree) if type(tree) is float else 0.0


def _same_float(wanted: float, got: Any, tolerance: float, scale: float) -> bool:
    number = _number(got)
    if number is None or not math.isfinite(number):
        return False
    if number == wanted or not tolerance:
        return number == wanted
    # What is not even near is told without the cost of exact arithmetic.
    if wanted and not math.isclose(wanted, number, rel_tol=tolerance):
        return False
    return _near(Decimal(repr(wanted)), Decimal(number), tolerance, scale)


def _same_complex(wanted: list[str], got: list[str], tolerance: float) -> bool:
    a, b = ([float(part) for part in parts] for parts in (wanted, got))
    scale = min(1.0, max((abs(part) for part in a if abs(part) > 0), default=1.0))
    return all(
        repr(x) == repr(y) or (math.isfinite(x) and math.isfinite(y) and _same_float(x, y, tolerance, scale))
        for x, y in zip(a, b, strict=True)
    )


def _near(wanted: Decimal, got: Decimal, tolerance: float, scale: float) -> bool:
    """True if a number is within the tolerance of the expected one, as that was written."""
    gap = _WIDE.abs(_WIDE.subtract(wanted, got))
    if not gap or not tolerance:
        return not gap
    if not wanted:
        return gap <= Decimal(_NOISE * scale)
    room = _WIDE.multiply(Decimal(tolerance), _WIDE.abs(wanted))
    _, digits, exponent = wanted.as_tuple()
    if len(digits) < _MEASURED:
        room = min(room, Decimal((0, (5,), int(exponent) - 1)))
    return gap <= room


def _number(tree: Any) -> float | None:
    """A number that may be compared within a tolerance."""
    if type(tree) is float:
        return tree
    if type(tree) is int:
        return float(tree)
    if isinstance(tree, list) and (tree[0] == "i" or (tree[0] == "x" and tree[1] in {"Decimal", "Fraction"})):
        try:
            return float(decode(tree))
        except (OverflowError, ValueError):
            return None
    return None


def same_output(wanted: str, got: str, tolerance: float) -> bool:
    """True if two outputs agree line by line; blanks at the end of lines and blank lines at the end do not count."""
    a, b = _lines(wanted), _lines(got)
    return len(a) == len(b) and all(x == y or _same_line(x, y, tolerance) for x, y in zip(a, b, strict=True))


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.rstrip().split("\n")]


def _same_line(wanted: str, got: str, tolerance: float) -> bool:
    """Word by word, where an expected decimal may be met within the tolerance."""
    a, b = wanted.split(), got.split()
    return (
        len(a) == len(b)
        and wanted[: len(wanted) - len(wanted.lstrip())] == got[: len(got) - len(got.lstrip())]
        and all(x == y or _same_word(x, y, tolerance) for x, y in zip(a, b, strict=True))
        and any(_DECIMAL.fullmatch(x) for x in a)
    )


def _same_word(wanted: str, got: str, tolerance: float) -> bool:
    decimal, number = _DECIMAL.fullmatch(wanted), _NUMBER.fullmatch(got)
    if not decimal or not number:
        return False
    stated = decimal["decimals"] or decimal["more"]
    given = number["decimals"] or number["alone"] or ""
    if stated.endswith("0") and stated != "0" and len(stated) <= _FORMATTED and len(given) != len(stated):
        return False
    return _near(Decimal(wanted), Decimal(got), tolerance, 1.0)
