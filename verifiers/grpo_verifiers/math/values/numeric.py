"""Floating-point values with error bounds: enough to refute an equality, never to prove one."""

import cmath
import math
from collections.abc import Mapping
from typing import NamedTuple

from grpo_verifiers.math.tree import Node, names
from grpo_verifiers.math.words.vocabulary import FUNCTIONS
from grpo_verifiers.reading.budget import spend

# Fixed points, positive and without pattern, so that verdicts never depend on a random state.
_POINTS = ((0.7391, 1.3127, 0.4219, 2.1173, 1.7741), (1.1931, 0.3461, 2.0459, 0.8837, 1.5227))
_EPSILON = 4e-16
_MARGIN = 1e4
_FUNCTIONS = {
    "sin": cmath.sin, "cos": cmath.cos, "tan": cmath.tan, "sinh": cmath.sinh, "cosh": cmath.cosh, "tanh": cmath.tanh,
    "exp": cmath.exp, "ln": cmath.log, "arcsin": cmath.asin, "arccos": cmath.acos, "arctan": cmath.atan,
    "arcsinh": cmath.asinh, "arccosh": cmath.acosh, "arctanh": cmath.atanh,
}  # fmt: skip
_RECIPROCAL = {"cot": "tan", "sec": "cos", "csc": "sin"}
_CONSTANTS = {"pi": complex(cmath.pi), "e": complex(math.e), "i": 1j}


class Value(NamedTuple):
    """A number with a bound on its error."""

    at: complex
    error: float


def is_refuted(gold: Node, answer: Node) -> bool:
    """True if two expressions certainly differ: at some point the difference is far above rounding.

    An answer that overflows where the gold does not differs, too.
    """
    variables = sorted(names(gold) | names(answer))
    if len(variables) > len(_POINTS[0]):
        return False
    for point in _POINTS:
        at = dict(zip(variables, point, strict=False))
        try:
            left = _value(gold, at)
        except (ArithmeticError, ValueError, KeyError, TypeError):
            continue
        try:
            right = _value(answer, at)
        except OverflowError:
            return True
        except (ArithmeticError, ValueError, KeyError, TypeError):
            continue
        size = max(abs(left.at), abs(right.at))
        if abs(left.at - right.at) > _MARGIN * (left.error + right.error) + 1e-11 * size:
            return True
    return False


def real_value(node: Node) -> float | None:
    """The value of a constant expression, right to about ten digits, or None."""
    try:
        value = _value(node, {})
    except (ArithmeticError, ValueError, KeyError, TypeError):
        return None
    size = max(abs(value.at), 1e-300)
    if abs(value.at.imag) > _MARGIN * value.error or value.error > 1e-11 * size:
        return None
    return value.at.real


def _value(node: Node, at: Mapping[str, float]) -> Value:
    spend(3)
    kind = node[0]
    if kind == "n":
        return _rounded(complex(float(node[1])))
    if kind == "v":
        return _rounded(_CONSTANTS[node[1]] if node[1] in _CONSTANTS else complex(at[node[1]]))
    if kind == "log":
        value = _logarithm(_value(node[2], at))
        return value if node[1] is None else _quotient(value, _logarithm(_value(node[1], at)))
    if kind == "f":
        return _call(node[1], [_value(argument, at) for argument in node[2]])
    if kind not in _ARITHMETIC:
        raise ValueError(kind)
    return _ARITHMETIC[kind]([_value(part, at) for part in node[1:]])


def _rounded(value: complex, error: float = 0.0) -> Value:
    size = abs(value)
    if not math.isfinite(size) or size > 1e150:
        raise OverflowError
    return Value(value, error + _EPSILON * size)


def _sum(parts: list[Value]) -> Value:
    total = sum(part.at for part in parts)
    return _rounded(total, sum(part.error + _EPSILON * abs(part.at) for part in parts))


def _product(parts: list[Value]) -> Value:
    result = parts[0]
    for part in parts[1:]:
        error = abs(result.at) * part.error + abs(part.at) * result.error + part.error * result.error
        result = _rounded(result.at * part.at, error)
    return result


def _quotient(top: Value, bottom: Value) -> Value:
    if abs(bottom.at) <= 10 * bottom.error:
        raise ZeroDivisionError
    value = top.at / bottom.at
    return _rounded(value, 2 * (top.error + abs(value) * bottom.error) / abs(bottom.at))


def _off_the_cut(value: Value) -> Value:
    """Move a value onto the negative axis if its distance is rounding: both sides of a cut must not mix."""
    if value.at.real < 0 and abs(value.at.imag) <= _MARGIN * value.error:
        return Value(complex(value.at.real, 0.0), value.error)
    return value


def _logarithm(value: Value) -> Value:
    value = _off_the_cut(value)
    if abs(value.at) <= 10 * value.error:
        raise ZeroDivisionError
    return _rounded(cmath.log(value.at), 2 * value.error / abs(value.at) + _EPSILON)


def _power(parts: list[Value]) -> Value:
    base, exponent = parts
    integral = exponent.at.imag == 0 and exponent.at.real == round(exponent.at.real) and abs(exponent.at) < 1e6
    if abs(base.at) <= 10 * base.error:
        if integral and exponent.at.real > 0 and base.at == 0:
            return Value(0j, base.error)
        raise ZeroDivisionError
    if not integral:
        base = _off_the_cut(base)
    log = cmath.log(base.at)
    if abs(exponent.at) * max(abs(log), 1e-3) > 340:
        raise OverflowError
    value = base.at ** (int(exponent.at.real) if integral else exponent.at)
    relative = abs(exponent.at) * base.error / abs(base.at) + (0 if integral else abs(log) * exponent.error)
    return _rounded(value, 2 * abs(value) * (relative + _EPSILON * (1 + abs(exponent.at))))


def _root(parts: list[Value]) -> Value:
    base, degree = _off_the_cut(parts[0]), parts[1].at.real
    if base.at.imag == 0 and base.at.real < 0 and degree != 2:
        raise ValueError("an odd root of a negative number has two readings")
    if abs(base.at) <= 10 * base.error:
        raise ZeroDivisionError
    value = 1j * math.sqrt(-base.at.real) if base.at.imag == 0 and base.at.real < 0 else base.at ** (1 / degree)
    return _rounded(value, abs(value) * (base.error / abs(base.at) + _EPSILON))


def _factorial(parts: list[Value]) -> Value:
    value = parts[0].at.real
    if parts[0].at.imag or not 0 <= value <= 80:
        raise ValueError("a factorial out of range")
    return _rounded(complex(math.gamma(value + 1)), math.gamma(value + 1) * 10 * (parts[0].error + 1e-15))


_ARITHMETIC = {
    "+": _sum,
    "mixed": _sum,
    "-": lambda parts: Value(-parts[0].at, parts[0].error),
    "*": _product,
    "/": lambda parts: _quotient(*parts),
    "%": lambda parts: _quotient(parts[0], Value(100 + 0j, 0.0)),
    "deg": lambda parts: _product([parts[0], Value(complex(math.pi / 180), 1e-17)]),
    "abs": lambda parts: Value(complex(abs(parts[0].at)), parts[0].error),
    "^": _power,
    "root": _root,
    "!": _factorial,
}


def _call(name: str, args: list[Value]) -> Value:
    if len(args) != 1:
        raise ValueError(name)
    argument = args[0]
    if name in _RECIPROCAL:
        return _quotient(Value(1 + 0j, 0.0), _call(_RECIPROCAL[name], args))
    if name == "ln":
        return _logarithm(argument)
    if abs(argument.at) > 1e5:
        raise OverflowError
    if name in _FUNCTIONS:
        value = _FUNCTIONS[name](argument.at)
        # at least as steep as the derivative of any of them away from its poles and branch points
        slope = 1 + abs(value) ** 2 if name in {"tan", "tanh"} else 1e3 if name.startswith("arc") else 1 + abs(value)
        if name in {"arcsin", "arccos", "arccosh", "arctanh"} and abs(abs(argument.at) - 1) < 1e-5:
            raise ValueError(name)
        return _rounded(value, slope * (argument.error + _EPSILON))
    if name in FUNCTIONS:
        raise ValueError(name)
    # an undefined function: use only properties of every function
    return _rounded(cmath.sin(1.7 * argument.at + sum(map(ord, name))), 10 * argument.error + 1e-12)
