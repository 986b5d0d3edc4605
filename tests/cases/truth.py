"""Recompute the label of a maths row from its source: [checker, gold's argument, answer's argument]."""

import random
from collections.abc import Callable
from datetime import date
from fractions import Fraction
from typing import Any

import sympy
from sympy import Symbol, sympify

LETTERS = [*"abcCkmnovVwxyz", "alpha", "a_n", "a_np1", "a_nm1", "a_1", "x1", "x2", "x3", "x12"]
SYMBOLS = {name: Symbol(name, real=True) for name in LETTERS}
UNITS = {  # factor to the first unit of its dimension, and the dimension
    "m": (1, "L"), "cm": ("1/100", "L"), "mm": ("1/1000", "L"), "km": (1000, "L"), "mi": ("1609344/1000", "L"),
    "in": ("254/10000", "L"), "ft": ("3048/10000", "L"), "yd": ("9144/10000", "L"),
    "s": (1, "T"), "min": (60, "T"), "h": (3600, "T"),
    "kg": (1, "M"), "g": ("1/1000", "M"), "lb": ("45359237/100000000", "M"),
    "usd": (1, "USD"), "cent": ("1/100", "USD"), "eur": (1, "EUR"), "gbp": (1, "GBP"),
}  # fmt: skip
GRID = [Fraction(n, 4) for n in range(-60, 61)]


def value(text: str) -> Any:
    """A sympy expression of real symbols; divisions are exact."""
    return sympify(text, locals=dict(SYMBOLS), rational=True)


def equal(left: str, right: str) -> bool:
    """Equal by simplification, or different at random points."""
    a, b = value(left), value(right)
    if a == b:
        return True
    names = sorted(a.free_symbols | b.free_symbols, key=str)
    rng = random.Random(7)
    for _ in range(4):
        point = {name: sympy.Rational(rng.randint(30, 900), 1000) for name in names}
        gap = (a - b).subs(point).evalf(40)
        if gap.is_number and abs(gap) > sympy.Float("1e-25", 40):
            return False
        if not gap.is_number or not gap.is_finite:
            return False
    return bool(sympy.simplify(a - b) == 0) or not names or _zero(a - b, names)


def _zero(gap: Any, names: list[Any]) -> bool:
    """Zero to 25 digits at 20 more points: simplify does not find every identity."""
    rng = random.Random(8)
    points = [{name: sympy.Rational(rng.randint(30, 900), 1000) for name in names} for _ in range(20)]
    return all(abs(gap.subs(point).evalf(40)) < sympy.Float("1e-25", 40) for point in points)


def sets(left: str, right: str) -> bool:
    """Equal as sets."""
    return bool(sympify(left, rational=True) == sympify(right, rational=True))


def points(left: str, right: str) -> bool:
    """Python expressions in x that agree on a grid of quarters from -15 to 15."""
    a, b = (eval(f"lambda x: {text}", {"__builtins__": {"abs": abs, "int": int}}) for text in (left, right))
    return all(a(x) == b(x) for x in GRID)


def named(left: dict[str, str], right: dict[str, str]) -> bool:
    """The same value for the same names."""
    return left.keys() == right.keys() and all(equal(left[name], right[name]) for name in left)


def in_order(left: list[str], right: list[str]) -> bool:
    """Equal one by one."""
    return len(left) == len(right) and all(equal(a, b) for a, b in zip(left, right, strict=True))


def matrix(left: list[list[Any]], right: list[list[Any]]) -> bool:
    """Equal entry by entry, and of one shape."""
    a, b = (
        sympy.Matrix([[sympify(str(entry), rational=True) for entry in row] for row in rows]) for rows in (left, right)
    )
    return bool(a == b)


def base(left: list[Any], right: list[Any]) -> bool:
    """Numerals of equal value: [digits, base]."""
    return int(*left) == int(*right)


def quantity(text: str) -> tuple[Fraction, dict[str, int]]:
    """A number and the dimensions of "9.8 m s-2"."""
    number, *rest = text.split()
    factor, dimensions = Fraction(number), dict[str, int]()
    for part in rest:
        name = part.rstrip("-0123456789")
        power = int(part[len(name) :] or 1)
        scale, dimension = UNITS[name]
        factor *= Fraction(scale) ** power
        dimensions[dimension] = dimensions.get(dimension, 0) + power
    return factor, dimensions


def decimal(exact: str, text: str) -> bool:
    """Exact, or correctly rounded or cut with at least four significant digits."""
    number, stated = Fraction(exact), Fraction(text)
    if number == stated:
        return True
    places = len(text.partition(".")[2])
    if len(text.replace("-", "").replace(".", "").lstrip("0")) < 4 or number * stated < 0:
        return False
    scaled = abs(number) * 10**places
    return abs(stated) * 10**places in {scaled // 1, (scaled + Fraction(1, 2)) // 1}


def ratio(left: list[int], right: list[int]) -> bool:
    """One is a multiple of the other."""
    return len(left) == len(right) and all(a * right[0] == b * left[0] for a, b in zip(left, right, strict=True))


def residues(left: list[int], right: list[int]) -> bool:
    """The same integers: [residue, modulus]."""
    return all(((n - left[0]) % left[1] == 0) == ((n - right[0]) % right[1] == 0) for n in range(-200, 200))


def curve(left: str, right: str) -> bool:
    """Left sides of equations "… = 0" whose quotient is a number."""
    return bool(sympy.simplify(value(left) / value(right)).is_number)


CHECKS: dict[str, Callable[[Any, Any], bool]] = {
    "equal": equal,
    "sets": sets,
    "points": points,
    "named": named,
    "tuple": in_order,
    "matrix": matrix,
    "base": base,
    "units": lambda left, right: quantity(left) == quantity(right),
    "decimal": decimal,
    "ratio": ratio,
    "residues": residues,
    "curve": curve,
    "date": lambda left, right: date.fromisoformat(left) == date.fromisoformat(right),
}


def label(row: dict[str, Any]) -> bool:
    """Right or wrong, from the row's source; rows of convention state it."""
    check, *arguments = row["source"]
    return row["right"] if check == "convention" else CHECKS[check](*arguments)
