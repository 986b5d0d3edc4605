"""Exact arithmetic for models: a whitelist of Python's syntax, worked out on fractions; no code runs, no floats.

The size of a result is bounded before its calculation, so that no expression takes long.

Use it when a small model fails at arithmetic that it need not learn.

>>> calculator("(17 + 4) * 3 / 8")
'7.875'

Config:
    tools: [{name: calculator, digits: 6}]
"""

import ast
import math
import operator
import re
from collections.abc import Callable, Mapping
from decimal import Context, Decimal
from fractions import Fraction
from typing import Annotated

from grpo_verifiers.errors.messages import show, unknown
from grpo_verifiers.options import Range

MAX_LENGTH = 2_000
"""Characters of an expression."""
MAX_BITS = 8_192
"""Bits of a numerator or denominator: 2,466 digits."""
MAX_ANSWER = 300
"""Digits of an integer answer; a fraction has at most `MAX_FRACTION` on either side."""
MAX_FRACTION = 40

_NUMBER = re.compile(r"(?<![\w.])(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_STRANGE = re.compile(r"[^\w\s.,+*/%()-]", re.ASCII)
_PERCENT = re.compile(r"%\s*(?![\s\w.(])")
_SPELLED = str.maketrans("×·⋅∗÷∕−–", "****//--") | {ord("^"): "**"}


def calculator(expression: str, *, digits: Annotated[int, Range(1, 100)] = 12) -> str:
    """Work out an arithmetic expression exactly.

    Args:
        expression: The expression, such as (17 + 4) * 3 / 8. Operators: + - * / // % ** and parentheses; functions:
            abs, ceil, factorial, floor, gcd, lcm, max, min, round, sqrt.
        digits: Digits of a rounded decimal; for the config, not the model.

    Returns:
        The result; a fraction with its rounded decimal where it has no exact one.
    """
    return number_text(evaluate(expression), digits)


def evaluate(expression: str) -> Fraction:
    """The value of an expression.

    >>> evaluate("1000 × (1/3 + 2/3)")
    Fraction(1000, 1)
    >>> evaluate("9**9**9")
    Traceback (most recent call last):
    ...
    ValueError: the power is too large: numbers may have 2466 digits.

    ``-2**2`` is -4, powers group to the right, ``//`` and ``%`` round down as in Python, ``^`` is a power.
    """
    if len(expression) > MAX_LENGTH:
        raise ValueError(f"the expression has {len(expression)} characters, the maximum is {MAX_LENGTH}.")
    source = expression.translate(_SPELLED).strip().rstrip("= ")  # "2 + 3 =", as on a calculator
    if (strange := _STRANGE.search(source)) is not None:
        raise ValueError(f"{show(strange[0])} is nothing to calculate with: write numbers, operators and functions.")
    if _PERCENT.search(source):
        raise ValueError("% is a remainder, and needs a number after it: write /100 for percent, or (-3).")
    try:
        # Numbers become texts: Python would round them.
        return _value(ast.parse(_NUMBER.sub(r"('\g<0>')", source), mode="eval").body)
    except ZeroDivisionError:
        raise ValueError("division by zero.") from None
    except (MemoryError, RecursionError):
        raise ValueError("it is nested too deep.") from None
    except SyntaxError as error:
        raise ValueError(f"it cannot be read: {error.msg}." if source else "it is empty.") from None


def number_text(value: Fraction, digits: int = 12) -> str:
    """A number as text.

    >>> number_text(Fraction(5, 4)), number_text(Fraction(-2, 3), 4)
    ('1.25', '-2/3 (about -0.6667)')
    """
    top, bottom = value.as_integer_ratio()
    if bottom == 1:
        text = str(top)
        if len(text.lstrip("-")) > MAX_ANSWER:
            raise ValueError(f"the result has {len(text.lstrip('-'))} digits, the maximum is {MAX_ANSWER}.")
        return text
    if 10**MAX_FRACTION % bottom == 0 and top.bit_length() <= 8 * MAX_FRACTION:
        integer, rest = divmod(abs(top) * 10**MAX_FRACTION // bottom, 10**MAX_FRACTION)
        return f"{'-' if top < 0 else ''}{integer}.{rest:0{MAX_FRACTION}d}".rstrip("0")
    context = Context(prec=digits, Emin=-(10**6), Emax=10**6)
    about = f"{context.divide(Decimal(top), Decimal(bottom)):g}"
    if max(top.bit_length(), bottom.bit_length()) > 3 * MAX_FRACTION:
        return f"about {about}"
    return f"{top}/{bottom} (about {about})"


def _value(node: ast.expr) -> Fraction:
    """The value of a part: by a loop along the first operands, by recursion into the rest."""
    pending = []
    while isinstance(node, ast.BinOp):
        pending.append(node)
        node = node.left
    value = _operand(node)
    for each in reversed(pending):
        value = _check_size(Fraction(_BINARY[type(each.op)](value, _value(each.right))))
    return value


def _operand(node: ast.expr) -> Fraction:
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.UAdd):
        value = _value(node.operand)
        return -value if isinstance(node.op, ast.USub) else value
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        exponent = re.split("[eE]", node.value)[1:]
        if exponent and len(exponent[0].lstrip("+-0")) > 4:
            raise _too_large(f"the number {show(node.value, 20)}")
        return _check_size(Fraction(node.value))
    if isinstance(node, ast.Call) and not node.keywords:
        if not isinstance(node.func, ast.Name):
            raise ValueError("'(' or a number was not expected after a number. Write * between factors.")
        if node.func.id not in _FUNCTIONS:
            raise ValueError(unknown("function", node.func.id[:40], _FUNCTIONS))
        fewest, most, fn = _FUNCTIONS[node.func.id]
        if not fewest <= len(node.args) <= most:
            raise ValueError(f"{node.func.id} does not take {len(node.args)} arguments.")
        return _check_size(fn(*map(_value, node.args)))
    messages = {
        ast.Name: "a function needs its arguments in parentheses.",
        ast.Tuple: "a comma is misplaced: write 1234 for 1,234, and a point in decimals.",
    }
    raise ValueError(messages.get(type(node), "a number was expected."))


def _too_large(name: str) -> ValueError:
    return ValueError(f"{name} is too large: numbers may have {int(MAX_BITS * math.log10(2))} digits.")


def _check_size(value: Fraction) -> Fraction:
    if _bits(value) > MAX_BITS:
        raise _too_large("a result on the way")
    return value


def _bits(value: Fraction) -> int:
    return max(value.numerator.bit_length(), value.denominator.bit_length())


def _integer(value: Fraction, of: str) -> int:
    if value.denominator != 1:
        raise ValueError(f"{of} takes integers, not {number_text(value, 6)}.")
    return value.numerator


def _power(base: Fraction, exponent: Fraction) -> Fraction:
    times = _integer(exponent, "an exponent")
    if (_bits(base) - 1) * abs(times) > MAX_BITS:
        raise _too_large("the power")
    return base**times


def _sqrt(value: Fraction) -> Fraction:
    if value < 0:
        raise ValueError("a root of a negative number is not a real number.")
    root = Fraction(math.isqrt(value.numerator), math.isqrt(value.denominator))
    if root**2 != value:
        raise ValueError("the root has no exact value: only exact roots are possible.")
    return root


def _factorial(value: Fraction) -> Fraction:
    number = _integer(value, "a factorial")
    if number < 0:
        raise ValueError("a factorial takes no negative numbers.")
    if number > 1_000:
        raise _too_large("the factorial")
    return Fraction(math.factorial(number))


def _round(value: Fraction, places: Fraction = Fraction(0)) -> Fraction:
    """Round halves away from zero, as on paper."""
    count = _integer(places, "round")
    if abs(count) > MAX_FRACTION:
        raise ValueError(f"round takes at most {MAX_FRACTION} places.")
    scale = Fraction(10) ** count
    rounded = math.floor(abs(value) * scale + Fraction(1, 2)) / scale
    return rounded if value >= 0 else -rounded


_MANY = 100
_FUNCTIONS: Mapping[str, tuple[int, int, Callable[..., Fraction]]] = {
    "abs": (1, 1, abs),
    "ceil": (1, 1, lambda value: Fraction(math.ceil(value))),
    "factorial": (1, 1, _factorial),
    "floor": (1, 1, lambda value: Fraction(math.floor(value))),
    "gcd": (1, _MANY, lambda *values: Fraction(math.gcd(*(_integer(each, "gcd") for each in values)))),
    "lcm": (1, 3, lambda *values: Fraction(math.lcm(*(_integer(each, "lcm") for each in values)))),
    "max": (1, _MANY, lambda *values: max(values)),
    "min": (1, _MANY, lambda *values: min(values)),
    "round": (1, 2, _round),
    "sqrt": (1, 1, _sqrt),
}
_BINARY: Mapping[type[ast.operator], Callable[[Fraction, Fraction], Fraction | int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: _power,
}
