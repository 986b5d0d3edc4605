"""Compare a program's answer with the expected one; both are data here, and no code of a program runs.

The complete rule is the table of "Tests of a row" in the manual of verifiers.
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
"""Significant digits from which on a number was printed in full and not written by hand."""
_FORMATTED = 6
"""Decimals up to which zeros at the end are a required format."""
_DECIMAL = re.compile(
    r"-?(?:(?:0|[1-9]\d{0,400})\.(?P<decimals>\d{1,400})|\d\.(?P<more>\d{1,400})[eE][+-]\d{2,3})", re.ASCII
)
_NUMBER = re.compile(
    r"[+-]?(?:\d{1,400}(?:\.(?P<decimals>\d{0,400}))?|\.(?P<alone>\d{1,400}))(?P<exponent>[eE][+-]?\d{1,4})?", re.ASCII
)
_WIDE = Context(prec=900, Emax=10**6, Emin=-(10**6), traps=[])


def same_value(expected: Any, got: Any, tolerance: float) -> bool:
    """True if two trees of values are equal by the table; an array counts as its list."""
    return _same(expected, got, tolerance, min(1.0, _largest(expected) or 1.0))


def _same(expected: Any, got: Any, tolerance: float, scale: float) -> bool:
    expected, got = _plain_form(expected), _plain_form(got)
    if isinstance(expected, list):
        if not isinstance(got, list) or len(expected) != len(got):
            return False
        kind = _CLASS.get(expected[0], expected[0])
        if kind != _CLASS.get(got[0], got[0]):
            return False
        if kind == "sequence":
            return all(_same(a, b, tolerance, scale) for a, b in zip(expected[1:], got[1:], strict=True))
        if kind == "set":
            if _much_more(expected, got):
                return False
            return sorted(map(_canonical, expected[1:])) == sorted(map(_canonical, got[1:]))
        if kind == "d":
            return _same_mapping(expected[1:], got[1:], tolerance, scale)
        if kind == "c":
            return _same_complex(expected[1:], got[1:], tolerance)
        return bool(expected == got)
    if type(expected) is float:
        return _same_float(expected, got, tolerance, scale)
    return type(expected) is type(got) and bool(expected == got)


def _plain_form(tree: Any) -> Any:
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


def _same_mapping(expected: list[Any], got: list[Any], tolerance: float, scale: float) -> bool:
    if _much_more([key for key, _ in expected], [key for key, _ in got]):
        return False
    by_key = {_canonical(key): value for key, value in got}
    return len(by_key) == len(expected) and all(
        (text := _canonical(key)) in by_key and _same(value, by_key[text], tolerance, scale) for key, value in expected
    )


def _much_more(expected: Any, got: Any) -> bool:
    """True if a tree is too long to equal the other: sorting its members at every depth could take very long."""
    return len(json.dumps(got)) > 2 * len(json.dumps(expected)) + 100


def _canonical(tree: Any) -> str:
    """One text for all trees of equal members of a set: a text, because a program's hash values are untrusted."""
    return json.dumps(_sort_members(tree))


def _sort_members(tree: Any) -> Any:
    tree = _plain_form(tree)
    if isinstance(tree, list):
        kind = _CLASS.get(tree[0], tree[0])
        members = [_sort_members(member) for member in tree[1:]]
        return [kind, *(sorted(members, key=json.dumps) if kind in {"set", "d"} else members)]
    return 0.0 if type(tree) is float and tree == 0 else tree


def _largest(tree: Any) -> float:
    """The largest size of a float of a tree that is finite."""
    if isinstance(tree, list):
        if tree[0] == "d":
            return max((_largest(item) for _, item in tree[1:]), default=0.0)
        return max(map(_largest, tree[1:]), default=0.0)
    return abs(tree) if type(tree) is float else 0.0


def _same_float(expected: float, got: Any, tolerance: float, scale: float) -> bool:
    number = _number(got)
    if number is None or not math.isfinite(number):
        return False
    if number == expected or not tolerance:
        return number == expected
    # Reject distant values without the cost of exact arithmetic.
    if expected and not math.isclose(expected, number, rel_tol=tolerance):
        return False
    return _near(Decimal(repr(expected)), Decimal(number), tolerance, scale)


def _same_complex(expected: list[str], got: list[str], tolerance: float) -> bool:
    a, b = ([float(part) for part in parts] for parts in (expected, got))
    scale = min(1.0, max((abs(part) for part in a if abs(part) > 0), default=1.0))
    return all(
        repr(x) == repr(y) or (math.isfinite(x) and math.isfinite(y) and _same_float(x, y, tolerance, scale))
        for x, y in zip(a, b, strict=True)
    )


def _near(expected: Decimal, got: Decimal, tolerance: float, scale: float) -> bool:
    """True if the distance of a number to the expected one, as written, is at most the tolerance."""
    gap = _WIDE.abs(_WIDE.subtract(expected, got))
    if not gap or not tolerance:
        return not gap
    if not expected:
        return gap <= Decimal(_NOISE * scale)
    room = _WIDE.multiply(Decimal(tolerance), _WIDE.abs(expected))
    _, digits, exponent = expected.as_tuple()
    if len(digits) < _MEASURED:
        room = min(room, Decimal((0, (5,), int(exponent) - 1)))
    return gap <= room


def _number(tree: Any) -> float | None:
    """A number that may be compared with a tolerance."""
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


def same_output(expected: str, got: str, tolerance: float) -> bool:
    """True if two outputs agree line by line; blanks at the end of lines and blank lines at the end do not count."""
    a, b = _lines(expected), _lines(got)
    return len(a) == len(b) and all(x == y or _same_line(x, y, tolerance) for x, y in zip(a, b, strict=True))


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.rstrip().split("\n")]


def _same_line(expected: str, got: str, tolerance: float) -> bool:
    """Compare word by word, an expected decimal with the tolerance."""
    a, b = expected.split(), got.split()
    return (
        len(a) == len(b)
        and expected[: len(expected) - len(expected.lstrip())] == got[: len(got) - len(got.lstrip())]
        and all(x == y or _same_word(x, y, tolerance) for x, y in zip(a, b, strict=True))
        and any(_DECIMAL.fullmatch(x) for x in a)
    )


def _same_word(expected: str, got: str, tolerance: float) -> bool:
    decimal, number = _DECIMAL.fullmatch(expected), _NUMBER.fullmatch(got)
    if not decimal or not number:
        return False
    digits = decimal["decimals"] or decimal["more"]
    printed = number["decimals"] or number["alone"] or ""
    if digits.endswith("0") and digits != "0" and len(digits) <= _FORMATTED and len(printed) != len(digits):
        return False
    return _near(Decimal(expected), Decimal(got), tolerance, 1.0)
