"""Floating-point values of expressions: enough to refute an equality, never to prove one."""

import cmath
import math
from collections.abc import Mapping

from grpo_verifiers.math.tree import Node, names
from grpo_verifiers.math.words import FUNCTIONS

# Fixed points, positive and without pattern, so that verdicts never depend on a random state.
_POINTS = ((0.7391, 1.3127, 0.4219, 2.1173, 1.7741), (1.1931, 0.3461, 2.0459, 0.8837, 1.5227))
_FUNCTIONS = {
    "sin": cmath.sin, "cos": cmath.cos, "tan": cmath.tan, "sinh": cmath.sinh, "cosh": cmath.cosh, "tanh": cmath.tanh,
    "exp": cmath.exp, "ln": cmath.log, "arcsin": cmath.asin, "arccos": cmath.acos, "arctan": cmath.atan,
}  # fmt: skip
_ARITHMETIC = frozenset({"+", "mixed", "-", "*", "/", "^", "root", "%", "deg", "abs", "!"})
_RECIPROCAL = {"cot": cmath.tan, "sec": cmath.cos, "csc": cmath.sin}


class _Scale:
    """The largest value met on the way: rounding errors are in proportion to it."""

    def __init__(self) -> None:
        self.largest = 1.0

    def see(self, value: complex) -> complex:
        size = abs(value)
        if not math.isfinite(size):
            raise OverflowError
        self.largest = max(self.largest, size)
        return value


def refuted(left: Node, right: Node) -> bool:
    """Whether two expressions certainly differ: they do at some point, by far more than rounding explains."""
    variables = sorted(names(left) | names(right))
    if len(variables) > 5:
        return False
    for point in _POINTS:
        at = dict(zip(variables, point, strict=False))
        found = values(left, right, at)
        if found is None:
            continue
        a, b, scale = found
        if abs(a - b) > 1e-7 * scale:
            return True
    return False


def values(left: Node, right: Node, at: Mapping[str, float]) -> tuple[complex, complex, float] | None:
    """Both values and the scale of rounding errors; None where one of them has no value in floating point."""
    scale = _Scale()
    try:
        return _value(left, at, scale), _value(right, at, scale), scale.largest
    except (ArithmeticError, ValueError, KeyError, TypeError):
        return None


def real_value(node: Node) -> float | None:
    """The value of a constant expression, or None."""
    scale = _Scale()
    try:
        value = _value(node, {}, scale)
    except (ArithmeticError, ValueError, KeyError, TypeError):
        return None
    if abs(value.imag) > 1e-12 * scale.largest or scale.largest > 1e9 * max(1.0, abs(value)):
        return None
    return value.real


def _value(node: Node, at: Mapping[str, float], scale: _Scale) -> complex:
    kind = node[0]
    if kind == "n":
        return scale.see(complex(float(node[1])))
    if kind == "v":
        return {"pi": cmath.pi, "e": math.e, "i": 1j}[node[1]] if node[1] in {"pi", "e", "i"} else at[node[1]]
    if kind in {"f", "log"}:
        return scale.see(_call(node, at, scale))
    if kind not in _ARITHMETIC:
        raise ValueError(kind)
    parts = [_value(part, at, scale) for part in node[1:]]
    if kind in {"+", "mixed"}:
        result = sum(parts)
    elif kind == "-":
        result = -parts[0]
    elif kind == "*":
        result = math.prod(parts)
    elif kind == "/":
        result = parts[0] / parts[1]
        # a small divisor magnifies the errors of what it divides
        scale.see(scale.largest / min(1.0, abs(parts[1])))
    elif kind == "^":
        result = parts[0] ** parts[1]
        scale.see(abs(result) * max(1.0, abs(parts[1])))
    elif kind == "root":
        if parts[0].imag == 0 and parts[0].real < 0:
            if parts[1] != 2:
                raise ValueError("an odd root of a negative number has two readings")
            result = 1j * math.sqrt(-parts[0].real)
        else:
            result = parts[0] ** (1 / parts[1])
    elif kind == "%":
        result = parts[0] / 100
    elif kind == "deg":
        result = parts[0] * math.pi / 180
    elif kind == "abs":
        result = abs(parts[0])
    else:
        result = _gamma(parts[0])
    return scale.see(complex(result))


def _gamma(value: complex) -> float:
    if value.imag or not 0 <= value.real <= 100:
        raise ValueError("a factorial out of range")
    return math.gamma(value.real + 1)


def _call(node: Node, at: Mapping[str, float], scale: _Scale) -> complex:
    if node[0] == "log":
        value = cmath.log(_value(node[2], at, scale))
        return value if node[1] is None else value / cmath.log(_value(node[1], at, scale))
    name, args = node[1], [_value(argument, at, scale) for argument in node[2]]
    if len(args) != 1:
        raise ValueError(name)
    if abs(args[0]) > 1e6:
        raise OverflowError
    scale.see(abs(args[0]))
    if name in _RECIPROCAL:
        below = _RECIPROCAL[name](args[0])
        scale.see(scale.largest / min(1.0, abs(below)))
        return 1 / below
    if name == "tan":
        scale.see(scale.largest / min(1.0, abs(cmath.cos(args[0])) ** 2))
    if name in _FUNCTIONS:
        return _FUNCTIONS[name](args[0])
    if name in FUNCTIONS:
        raise ValueError(name)
    # an unknown function: what holds for it holds for this one too
    return cmath.sin(1.7 * args[0] + sum(map(ord, name)))
