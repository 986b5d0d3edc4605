"""Values of expressions at sixty digits, for a sine or a nested root that exact forms cannot decide.

Two expressions that agree to forty digits at several points without pattern, negative ones and ones beyond every bend
included, are equal; this decides more identities than a simplifier proves, and in bounded steps. Unless i is in them,
points where both are no real numbers lie outside their domain and say nothing; with several letters, points where an
argument of a root or a logarithm is negative. At two positive points a difference always counts.
"""

import threading
from collections.abc import Callable
from typing import Any

from grpo_verifiers.math.tree import Node, names, walk
from grpo_verifiers.math.values.canon import exact
from grpo_verifiers.math.words.vocabulary import FUNCTIONS

DIGITS = 60
AGREE = 40
LARGEST_POINT = 10**40
LARGEST = 1e150  # a value above it is no result
_UNKNOWN = (ArithmeticError, ValueError, KeyError, TypeError)
_THREAD = threading.local()
_BENT = {"abs", "root"}  # these have other formulas left and right of a point
_POINTS = (
    ("0.73917", "1.31273", "0.42191", "2.11737", "1.77411", "0.58123"),
    ("-1.19311", "0.34617", "-2.04593", "0.88379", "-1.52279", "1.09171"),
    ("2.31171", "-0.67211", "1.44473", "-1.90127", "0.37117", "-0.81337"),
)
_POSITIVE = (("1.61803", "0.27183", "3.31662", "0.57722", "2.23607", "1.20206"), *(_POINTS[0][::-1],))
_STRICT = (("0.7391", "1.3127", "0.4219", "2.1173", "1.7741"), ("1.1931", "0.3461", "2.0459", "0.8837", "1.5227"))


def real_value(node: Node) -> float | None:
    """The value of a constant expression, or None: no real number, or one that may be zero."""
    value: Any = exact(node)
    if value is None:
        mp = _context()
        try:
            with mp.workdps(DIGITS):
                number = _value(node, {}, mp)
                if 0 < abs(number) < mp.mpf(10) ** -AGREE or abs(mp.im(number)) > abs(number) * mp.mpf(10) ** -AGREE:
                    return None
                value = mp.re(number)
        except _UNKNOWN:
            return None
    return float(value) if abs(value) < LARGEST else None


def agree(left: Node, right: Node) -> bool | None:
    """True if two expressions have the same values; None if they could not be compared."""
    mp = _context()
    variables = sorted(names(left) | names(right))
    if len(variables) > len(_POINTS[0]) or (size := _bend(left, right)) > LARGEST_POINT:
        return None
    parts = [*walk(left), *walk(right)]
    real = ("v", "i") not in parts
    # with several letters the laws of roots and logarithms count where all arguments are positive
    lawful = len(variables) > 1 and not any(part[0] == "abs" for part in parts)
    inner = [argument for part in parts if lawful and (argument := _argument(part))]
    points = _POINTS + (_POSITIVE if len(variables) > 1 else ())
    rows = points if len(variables) > 1 else points[:1]
    far = [tuple(str(sign * size * float(value)) for value in row) for row in rows for sign in (1, -1) if size]
    compared = beyond = 0
    for point in (*_STRICT, *points, *far):
        with mp.workdps(DIGITS + 6 * len(str(size)) * (point in far)):
            at = {name: mp.mpf(value) for name, value in zip(variables, point, strict=False)}
            try:
                strict = point in _STRICT
                if not strict and any(mp.re(value := _value(part, at, mp)) < 0 or mp.im(value) for part in inner):
                    continue
                a, b = (_value(node, at, mp) for node in (left, right))
                largest = max(abs(a), abs(b), 0 if strict else 1)
                if not mp.isfinite(largest):
                    continue
                tiny = largest * mp.mpf(10) ** -AGREE
                if real and not strict and all(abs(mp.im(value)) > tiny for value in (a, b)):
                    continue  # outside the domain of both
                if abs(a - b) > tiny and not _vanishes(("+", left, ("-", right)), a - b, at, mp):
                    return False
            except _UNKNOWN:
                continue
        compared += point in points
        beyond += point in far
    return True if compared >= min(2, len(variables) + 1) and (beyond or not far) else None


def _context() -> Any:
    """The mpmath context of this thread: the default context shares its precision among threads."""
    if not hasattr(_THREAD, "mp"):
        import mpmath  # type: ignore[import-untyped]  # ships no types

        _THREAD.mp = mpmath.MPContext()
    return _THREAD.mp


def _bend(left: Node, right: Node) -> int:
    """A number beyond every point where a part of either expression may change its sign; 0 if none can."""
    parts = [*walk(left), *walk(right)]
    if not any(part[0] in _BENT or (part[0] == "f" and part[1] in {"min", "max", "sgn"}) for part in parts):
        return 0
    size = 3.0
    for value in {real_value(part) for part in parts if part[0] != "v" and not names(part)}:
        if value:
            size = min(size * max(abs(value), 1 / abs(value)), 2.0 * LARGEST_POINT)
    return int(size)


def _argument(node: Node) -> Node | None:
    """The argument of a square root, of another even root, of a logarithm; None for any other node."""
    inner: Node | None = None
    if node[0] == "root" and node[2][0] == "n" and node[2][1] % 2 == 0:
        inner = node[1]
    elif node[0] == "log" or node[:2] == ("f", "ln"):
        inner = node[2] if node[0] == "log" else node[2][0]
    return inner


def _value(node: Node, at: dict[str, Any], mp: Any) -> Any:
    kind = node[0]
    if kind == "n":
        return mp.mpf(node[1].numerator) / node[1].denominator
    if kind == "v":
        constants: dict[str, Any] = {"pi": mp.pi, "e": mp.e, "i": mp.mpc(0, 1)}
        return +constants[node[1]] if node[1] in constants else at[node[1]]
    if kind == "log":
        value = mp.log(_value(node[2], at, mp))
        return value if node[1] is None else value / mp.log(_value(node[1], at, mp))
    if kind == "f":
        args = [_value(argument, at, mp) for argument in node[2]]
        return _function(node[1], args, mp)
    if kind not in _ARITHMETIC:
        raise ValueError(kind)
    parts = [_value(part, at, mp) for part in node[1:]]
    if (kind == "/" and _vanishes(node[2], parts[1], at, mp)) or (
        kind == "^" and mp.re(parts[1]) < 0 and _vanishes(node[1], parts[0], at, mp)
    ):
        raise ZeroDivisionError("a denominator is zero")
    return _ARITHMETIC[kind](parts, mp)


def _vanishes(node: Node, value: Any, at: dict[str, Any], mp: Any) -> bool:
    """True if a value is zero with rounding errors: it shrinks with more digits, a tiny one does not."""
    if abs(value) >= mp.mpf(10) ** -AGREE:
        return False
    with mp.workdps(2 * DIGITS):
        return bool(abs(_value(node, at, mp)) <= abs(value) * mp.mpf(10) ** -AGREE)


def _root(parts: list[Any], mp: Any) -> Any:
    if mp.im(parts[0]) == 0 and mp.re(parts[0]) < 0 and int(parts[1]) % 2:
        return -mp.root(-parts[0], int(parts[1]))  # the real root of a negative number, as at school
    return mp.root(parts[0], int(parts[1]))


def _power(parts: list[Any], mp: Any) -> Any:
    if abs(parts[1]) > 1e6 or (abs(parts[0]) > 1 and abs(parts[1]) * mp.log(abs(parts[0])) > 1e5):
        raise OverflowError("too large")
    return mp.power(parts[0], parts[1])


def _factorial(parts: list[Any], mp: Any) -> Any:
    if abs(parts[0]) > 1e3:
        raise OverflowError("too large")
    return mp.factorial(parts[0])


def _binomial(parts: list[Any], mp: Any) -> Any:
    if max(map(abs, parts)) > 1e3:
        raise OverflowError("too large")
    return mp.binomial(*parts)


_ARITHMETIC: dict[str, Callable[[list[Any], Any], Any]] = {
    "+": lambda parts, mp: mp.fsum(parts),
    "mixed": lambda parts, mp: mp.fsum(parts),
    "-": lambda parts, _: -parts[0],
    "*": lambda parts, mp: mp.fprod(parts),
    "/": lambda parts, _: parts[0] / parts[1],
    "%": lambda parts, _: parts[0] / 100,
    "deg": lambda parts, mp: parts[0] * mp.pi / 180,
    "abs": lambda parts, _: abs(parts[0]),
    "^": _power,
    "root": _root,
    "!": _factorial,
    "binom": _binomial,
}
_PERIODIC = frozenset({"sin", "cos", "tan", "cot", "sec", "csc", "sgn"})
_NAMES = {
    "arcsin": "asin", "arccos": "acos", "arctan": "atan", "arccot": "acot", "arcsec": "asec", "arccsc": "acsc",
    "arcsinh": "asinh", "arccosh": "acosh", "arctanh": "atanh", "ln": "log", "Re": "re", "Im": "im",
    "sgn": "sign",
}  # fmt: skip


def _function(name: str, args: list[Any], mp: Any) -> Any:
    if name in {"min", "max"}:
        return (min if name == "min" else max)(args)
    if len(args) != 1 or name in {"det", "gcd", "lcm", "deg", "dim"}:
        raise ValueError(name)
    if name != "ln" and abs(args[0]) > (1e50 if name in _PERIODIC else 1e5):
        raise OverflowError("too large")
    if name in FUNCTIONS:
        return getattr(mp, _NAMES.get(name, name))(args[0])
    # an undefined function: use only properties of every function
    return mp.sin(args[0] * mp.mpf("1.7") + sum(map(ord, name)))
