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
MAX_DEPTH = 50
"""Nested parentheses and powers."""
MAX_BITS = 8_192
"""Bits of a numerator or denominator: 2,466 digits."""
MAX_ANSWER = 300
"""Digits of an integer answer; a fraction has at most `MAX_FRACTION` on either side."""
MAX_FRACTION = 40

_NUMBER = r"(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?"
_THOUSANDS = r"[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])(?:\.[0-9]+)?"
_REST = r"[A-Za-z_]\w*|\*\*|//|==|!=|<=|>=|[-+*/%^!()<>=,√]"
_PLAIN = re.compile(rf"({_THOUSANDS}|{_NUMBER}|{_REST})\s*")
_IN_CALL = re.compile(rf"({_NUMBER}|{_REST})\s*")
_TRAILING = re.compile(r"(?<![<>!=])={1,2}\Z")
_SPELLED = str.maketrans("×·⋅∗÷∕−–", "****//--") | str.maketrans({"≤": "<=", "≥": ">=", "≠": "!="})
_PYTHON = {"^": "**", "=": "=="}


def calculator(expression: str, *, digits: Annotated[int, Range(1, 100)] = 12) -> str:
    """Work out an arithmetic expression exactly.

    Args:
        expression: The expression, such as (17 + 4) * 3 / 8. Operators: + - * / // % ** and parentheses; functions:
            abs, ceil, comb, factorial, floor, gcd, lcm, max, min, round, sqrt.
        digits: Digits of a rounded decimal; for the config, not the model.

    Returns:
        The result; a fraction with its rounded decimal where it has no exact one.
    """
    answer = evaluate(expression)
    return str(answer).lower() if isinstance(answer, bool) else number_text(answer, digits)


def evaluate(expression: str) -> Fraction | bool:
    """The value of an expression; True or False of a comparison.

    >>> evaluate("1,000 × (1/3 + 2/3)")
    Fraction(1000, 1)
    >>> evaluate("9**9**9")
    Traceback (most recent call last):
    ...
    ValueError: the power is too large: numbers may have 2466 digits.

    ``-2**2`` is -4, powers group to the right, ``//`` and ``%`` round down as in Python, ``^`` is a power. ``50%`` is a
    half where no operand follows; before a sign, ``%`` could mean either, and is refused. Commas between groups of
    three digits are part of a number, but not directly in the parentheses of a function, where they separate.
    """
    if len(expression) > MAX_LENGTH:
        raise ValueError(f"the expression has {len(expression)} characters, the maximum is {MAX_LENGTH}.")
    source = _python(_TRAILING.sub("", expression.translate(_SPELLED).strip()))  # "2 + 3 =", as on a calculator
    try:
        tree = ast.parse(source, mode="eval").body
        if not isinstance(tree, ast.Compare):
            return _value(tree)
        if len(tree.ops) > 1:
            raise ValueError("only one comparison is possible at a time.")
        return bool(_COMPARE[type(tree.ops[0])](_value(tree.left), _value(tree.comparators[0])))
    except ZeroDivisionError:
        raise ValueError("division by zero.") from None
    except (MemoryError, RecursionError):
        raise _too_deep() from None
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


def _python(text: str) -> str:
    """The expression in Python: numbers are texts, and ``√``, ``!`` and the percent sign are calls and quotients."""
    out: list[str] = []
    opened: list[int] = []  # starts of operands with open parentheses
    start = at = 0
    while at < len(text):
        in_call = bool(opened) and out[opened[-1]] in _FUNCTIONS
        match = (_IN_CALL if in_call else _PLAIN).match(text, at)
        if match is None:
            raise ValueError(f"{show(text[at])} is nothing to calculate with, before {show(text[at + 1 :], 20)}.")
        word, at = match[1], match.end()
        after = text[at : at + 1]
        if word == "!":
            out.insert(start, "factorial(")
            out.append(")")
        elif word == "%" and not after.isalnum() and after not in {*"._(√+-"}:
            out.insert(start, "(")
            out.append("/'100')")
        elif word == "%" and after in {*"+-"}:
            raise ValueError("% before a sign may mean percent or a remainder: write /100, or (-3).")
        elif word[0] in "0123456789.":
            out.append(f"({word!r})")
            start = _wrap_in_roots(out, len(out) - 1)
        elif word == ")" and opened:
            out.append(")")
            start = _wrap_in_roots(out, opened.pop())
        else:
            if word == "(":
                opened.append(len(out) - bool(out and out[-1] in _FUNCTIONS))
            elif (word[0].isalpha() or word[0] == "_") and (word not in _FUNCTIONS or after != "("):
                needs = f"{word} needs its arguments in parentheses."
                raise ValueError(needs if word in _FUNCTIONS else unknown("name", word[:40], _FUNCTIONS))
            out.append(_PYTHON.get(word, word))
        if len(opened) > MAX_DEPTH:
            raise _too_deep()
    return " ".join(out)


def _wrap_in_roots(out: list[str], start: int) -> int:
    """Wrap an operand in the roots before it; return the new start."""
    while start and out[start - 1] == "√":
        start -= 1
        out[start] = "sqrt("
        out.append(")")
    return start


def _value(node: ast.expr, depth: int = 0) -> Fraction:
    """The value of a part: by a loop along the first operands, by recursion into the rest."""
    if depth > MAX_DEPTH:
        raise _too_deep()
    pending = []
    while isinstance(node, ast.BinOp):
        pending.append(node)
        node = node.left
    value = _operand(node, depth)
    for each in reversed(pending):
        other = _value(each.right, depth + isinstance(each.op, ast.Pow))
        value = _check_size(Fraction(_BINARY[type(each.op)](value, other)))
    return value


def _operand(node: ast.expr, depth: int) -> Fraction:
    sign = 1
    while isinstance(node, ast.UnaryOp):
        sign = -sign if isinstance(node.op, ast.USub) else sign
        node = node.operand
    if isinstance(node, ast.Constant):
        return sign * _number(str(node.value).replace(",", ""))
    if isinstance(node, ast.BinOp):
        return sign * _value(node, depth)
    if isinstance(node, ast.Call) and not node.keywords:
        if not isinstance(node.func, ast.Name):
            raise ValueError("'(' or a number was not expected after a number. Write * between factors.")
        fewest, most, fn = _FUNCTIONS[node.func.id]
        if not fewest <= len(node.args) <= most:
            raise ValueError(f"{node.func.id} does not take {len(node.args)} arguments.")
        return sign * _check_size(fn(*(_value(each, depth) for each in node.args)))
    comma = "a comma is misplaced: write 1234 or 1,234, and a point in decimals."
    raise ValueError(comma if isinstance(node, ast.Tuple) else "a number was expected.")


def _too_deep() -> ValueError:
    return ValueError(f"it is nested more than {MAX_DEPTH} deep.")


def _too_large(name: str) -> ValueError:
    return ValueError(f"{name} is too large: numbers may have {int(MAX_BITS * math.log10(2))} digits.")


def _check_size(value: Fraction) -> Fraction:
    if _bits(value) > MAX_BITS:
        raise _too_large("a result on the way")
    return value


def _bits(value: Fraction) -> int:
    return max(value.numerator.bit_length(), value.denominator.bit_length())


def _number(word: str) -> Fraction:
    exponent = re.split("[eE]", word)[1:]
    if exponent and len(exponent[0].lstrip("+-0")) > 4:
        raise _too_large(f"the number {show(word, 20)}")
    return _check_size(Fraction(word))


def _integer(value: Fraction, of: str) -> int:
    if value.denominator != 1:
        raise ValueError(f"{of} takes integers, not {number_text(value, 6)}.")
    return value.numerator


def _power(base: Fraction, exponent: Fraction) -> Fraction:
    times = abs(exponent.numerator)
    root = _root(base, exponent.denominator)
    if (_bits(root) - 1) * times > MAX_BITS:
        raise _too_large("the power")
    return Fraction(1) * root ** (times if exponent >= 0 else -times)


def _root(value: Fraction, degree: int = 2) -> Fraction:
    if degree == 1 or value in {0, 1}:
        return value
    if value < 0:
        raise ValueError("a root of a negative number is not a real number.")
    # Beyond the bits of a number, its integer root is 1.
    top, bottom = (_integer_root(each, degree) if degree <= MAX_BITS else 1 for each in value.as_integer_ratio())
    root = Fraction(top, bottom)
    if degree > MAX_BITS or root**degree != value:
        raise ValueError("the root has no exact value: only exact roots are possible.")
    return root


def _integer_root(number: int, degree: int) -> int:
    if degree == 2:
        return math.isqrt(number)
    low, high = 1, 1 << (number.bit_length() // degree + 1)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if middle**degree <= number else (low, middle)
    return low


def _factorial(value: Fraction) -> Fraction:
    number = _integer(value, "a factorial")
    if number < 0:
        raise ValueError("a factorial takes no negative numbers.")
    if number > 1_000:
        raise _too_large("the factorial")
    return _check_size(Fraction(math.factorial(number)))


def _comb(of: Fraction, chosen: Fraction) -> Fraction:
    many, few = _integer(of, "comb"), _integer(chosen, "comb")
    if many < 0 or few < 0:
        raise ValueError("comb takes no negative numbers.")
    few = min(few, many - few)
    if few < 0:
        return Fraction(0)
    if few > MAX_BITS or few * ((many // max(few, 1)).bit_length() - 1) > MAX_BITS:
        raise _too_large("the number of combinations")
    return Fraction(math.comb(many, few))


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
    "comb": (2, 2, _comb),
    "factorial": (1, 1, _factorial),
    "floor": (1, 1, lambda value: Fraction(math.floor(value))),
    "gcd": (1, _MANY, lambda *values: Fraction(math.gcd(*(_integer(each, "gcd") for each in values)))),
    "lcm": (1, 3, lambda *values: Fraction(math.lcm(*(_integer(each, "lcm") for each in values)))),
    "max": (1, _MANY, lambda *values: max(values)),
    "min": (1, _MANY, lambda *values: min(values)),
    "round": (1, 2, _round),
    "sqrt": (1, 1, _root),
}

_BINARY = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv}
_BINARY |= {ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod, ast.Pow: _power}
_COMPARE = {ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le}
_COMPARE |= {ast.Gt: operator.gt, ast.GtE: operator.ge}
