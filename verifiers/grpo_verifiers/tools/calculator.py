"""Exact arithmetic for models: a parser of its own on fractions, nothing evaluated as code, no floats.

The size of what an operation gives is bounded before it is worked out, so that no expression takes long.

Use it when a small model fails at arithmetic that is not what it should learn.

>>> calculator("(17 + 4) * 3 / 8")
'7.875'

Config:
    tools: [{name: calculator, kwargs: {digits: 6}}]
"""

import math
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
"""Parentheses and powers within each other."""
MAX_BITS = 8_192
"""Bits of a numerator or denominator: 2,466 digits."""
MAX_ANSWER = 300
"""Digits of an answer that is a whole number; a fraction has at most `MAX_FRACTION` on either side."""
MAX_FRACTION = 40

_NUMBER = r"(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?"
_THOUSANDS = r"[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])(?:\.[0-9]+)?"
_REST = r"[A-Za-z_]\w*|\*\*|//|==|!=|<=|>=|[-+*/%^!()<>=,√]"
_PLAIN = re.compile(rf"\s*({_THOUSANDS}|{_NUMBER}|{_REST})")
_IN_CALL = re.compile(rf"\s*({_NUMBER}|{_REST})")
_SPELLED = str.maketrans(
    {
        "×": "*",
        "·": "*",
        "⋅": "*",
        "∗": "*",
        "÷": "/",
        "∕": "/",
        "−": "-",
        "–": "-",
        "≤": "<=",
        "≥": ">=",
        "≠": "!=",
    }
)
_COMPARE: Mapping[str, Callable[[Fraction, Fraction], bool]] = {
    "=": lambda a, b: a == b,
    "==": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
}


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
    return str(answer).lower() if isinstance(answer, bool) else written(answer, digits)


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
        raise ValueError(f"the expression has {len(expression)} characters, at most {MAX_LENGTH} are taken.")
    return _Parser(_tokens(expression.translate(_SPELLED))).whole()


def written(value: Fraction, digits: int = 12) -> str:
    """A number as text.

    >>> written(Fraction(5, 4)), written(Fraction(-2, 3), 4)
    ('1.25', '-2/3 (about -0.6667)')
    """
    top, bottom = value.as_integer_ratio()
    if bottom == 1:
        text = str(top)
        if len(text.lstrip("-")) > MAX_ANSWER:
            raise ValueError(f"the result has {len(text.lstrip('-'))} digits, at most {MAX_ANSWER} are given.")
        return text
    twos, fives = _times(bottom, 2), _times(bottom, 5)
    places = max(twos, fives)
    if 2**twos * 5**fives == bottom and places <= MAX_FRACTION and top.bit_length() <= 8 * MAX_FRACTION:
        whole, rest = divmod(abs(top) * 10**places // bottom, 10**places)
        return f"{'-' if top < 0 else ''}{whole}.{rest:0{places}d}"
    context = Context(prec=digits, Emin=-(10**6), Emax=10**6)
    about = f"{context.divide(Decimal(top), Decimal(bottom)):g}"
    if max(top.bit_length(), bottom.bit_length()) > 3 * MAX_FRACTION:
        return f"about {about}"
    return f"{top}/{bottom} (about {about})"


def _times(number: int, factor: int) -> int:
    """How often a number can be divided by another one."""
    count = 0
    while number % factor == 0:
        number, count = number // factor, count + 1
    return count


def _tokens(text: str) -> list[str]:
    text = text.rstrip()
    found: list[str] = []
    calls: list[bool] = []  # of each open parenthesis, whether it holds the arguments of a function
    at = 0
    while at < len(text):
        match = (_IN_CALL if calls and calls[-1] else _PLAIN).match(text, at)
        if match is None:
            rest = text[at:].lstrip()
            raise ValueError(f"{show(rest[:1])} is nothing to calculate with, before {show(rest[1:], 20)}.")
        word = match[1]
        if word == "(":
            calls.append(bool(found) and (found[-1][0].isalpha() or found[-1][0] == "_"))
        elif word == ")" and calls:
            calls.pop()
        found.append(word)
        at = match.end()
    if found and found[-1] in {"=", "=="}:  # "2 + 3 =", as on a calculator
        found.pop()
    return found


class _Parser:
    """One function for each level of precedence, the loosest first."""

    def __init__(self, tokens: list[str]) -> None:
        self.tokens = tokens
        self.at = 0
        self.depth = 0

    @property
    def next(self) -> str:
        """The word in turn; empty at the end."""
        return self.tokens[self.at] if self.at < len(self.tokens) else ""

    def take(self, *wanted: str) -> str:
        """Take the word in turn if it is one of these; else an empty text."""
        word = self.next
        if word and word in wanted:
            self.at += 1
            return word
        return ""

    def whole(self) -> Fraction | bool:
        value = self.sum()
        sign = self.take(*_COMPARE)
        if sign:
            found = _COMPARE[sign](value, self.sum())
            self.end()
            return found
        self.end()
        return value

    def end(self) -> None:
        if not self.next:
            return
        if self.next == ",":
            raise ValueError("a comma stands where none can: write 1234 or 1,234, and a point in decimals.")
        if self.next in _COMPARE:
            raise ValueError("only one comparison can be made at a time.")
        hint = " Write * between factors." if _starts_operand(self.next) else ""
        raise ValueError(f"{show(self.next)} was not expected after {show(self.tokens[self.at - 1])}.{hint}")

    def sum(self) -> Fraction:
        value = self.product()
        while sign := self.take("+", "-"):
            other = self.product()
            value = _capped(value + other if sign == "+" else value - other)
        return value

    def product(self) -> Fraction:
        value = self.signed()
        while sign := self.take("*", "/", "//", "%"):
            other = self.signed()
            if sign == "*":
                value = _capped(value * other)
                continue
            if other == 0:
                raise ValueError("division by zero.")
            value = _capped(
                value / other if sign == "/" else Fraction(value // other) if sign == "//" else value % other
            )
        return value

    def signed(self) -> Fraction:
        minus = False
        while sign := self.take("+", "-"):
            minus ^= sign == "-"
        value = self.power()
        return -value if minus else value

    def power(self) -> Fraction:
        value = self.marked()
        if self.take("**", "^"):
            self.deeper()
            value = _power(value, self.signed())
            self.depth -= 1
        return value

    def marked(self) -> Fraction:
        value = self.single()
        while True:
            if self.take("!"):
                value = _factorial(value)
            elif self.next == "%" and not _starts_operand(
                self.tokens[self.at + 1] if self.at + 1 < len(self.tokens) else ""
            ):
                self.at += 1
                if self.next in {"+", "-"}:
                    raise ValueError("% before a sign may mean percent or a remainder: write /100, or (-3).")
                value /= 100
            else:
                return value

    def single(self) -> Fraction:
        word = self.next
        if not word:
            raise ValueError("the expression ends where a number was expected." if self.tokens else "it is empty.")
        self.at += 1
        if word == "(":
            self.deeper()
            value = self.sum()
            self.close()
            return value
        if word == "√":
            self.deeper()
            value = self.single()
            self.depth -= 1
            return _root(value)
        if word[0] in "0123456789.":
            return _number(word.replace(",", ""))
        if word[0].isalpha() or word[0] == "_":
            return self.call(word)
        raise ValueError(f"a number was expected, not {show(word)}.")

    def call(self, name: str) -> Fraction:
        if name not in _FUNCTIONS:
            raise ValueError(unknown("name", name[:40], _FUNCTIONS))
        if not self.take("("):
            raise ValueError(f"{name} needs its arguments in parentheses.")
        self.deeper()
        values = []
        if self.next != ")":
            values.append(self.sum())
            while self.take(","):
                values.append(self.sum())
        self.close()
        fewest, most, fn = _FUNCTIONS[name]
        if not fewest <= len(values) <= most:
            raise ValueError(f"{name} does not take {len(values)} arguments.")
        return _capped(fn(*values))

    def close(self) -> None:
        self.depth -= 1
        if not self.take(")"):
            if self.next:
                self.end()
            raise ValueError("a closing parenthesis is missing.")

    def deeper(self) -> None:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise ValueError(f"it is nested more than {MAX_DEPTH} deep.")


def _starts_operand(word: str) -> bool:
    return bool(word) and (word[0].isalnum() or word[0] in "._(√")


def _too_large(what: str) -> ValueError:
    return ValueError(f"{what} is too large: numbers may have {int(MAX_BITS * math.log10(2))} digits.")


def _capped(value: Fraction) -> Fraction:
    if _bits(value) > MAX_BITS:
        raise _too_large("a result on the way")
    return value


def _bits(value: Fraction) -> int:
    return max(value.numerator.bit_length(), value.denominator.bit_length())


def _number(word: str) -> Fraction:
    exponent = re.split("[eE]", word)[1:]
    if exponent and len(exponent[0].lstrip("+-0")) > 4:
        raise _too_large(f"the number {show(word, 20)}")
    return _capped(Fraction(word))


def _integer(value: Fraction, of: str) -> int:
    if value.denominator != 1:
        raise ValueError(f"{of} takes whole numbers, not {written(value, 6)}.")
    return value.numerator


def _power(base: Fraction, exponent: Fraction) -> Fraction:
    if base == 0 and exponent < 0:
        raise ValueError("division by zero.")
    times = abs(exponent.numerator)
    root = _root_of(base, exponent.denominator)
    if (_bits(root) - 1) * times > MAX_BITS:
        raise _too_large("the power")
    value = _capped(Fraction(root.numerator**times, root.denominator**times))
    return value if exponent >= 0 else 1 / value


def _root(value: Fraction) -> Fraction:
    return _root_of(value, 2)


def _root_of(value: Fraction, degree: int) -> Fraction:
    """The exact root of a number."""
    if degree == 1 or value in {0, 1}:
        return value
    if value < 0:
        raise ValueError("a root of a negative number is no real number.")
    # Beyond the bits of a number, its whole root is 1.
    top, bottom = (_whole_root(each, degree) if degree <= MAX_BITS else 1 for each in value.as_integer_ratio())
    root = Fraction(top, bottom)
    if degree > MAX_BITS or root**degree != value:
        raise ValueError("the root has no exact value: only roots that come out even are given.")
    return root


def _whole_root(number: int, degree: int) -> int:
    """The largest integer whose power is not above a number."""
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
    return _capped(Fraction(math.factorial(number)))


def _comb(of: Fraction, taken: Fraction) -> Fraction:
    many, few = _integer(of, "comb"), _integer(taken, "comb")
    if many < 0 or few < 0:
        raise ValueError("comb takes no negative numbers.")
    few = min(few, many - few)
    if few < 0:
        return Fraction(0)
    if few > MAX_BITS or few * ((many // max(few, 1)).bit_length() - 1) > MAX_BITS:
        raise _too_large("the number of combinations")
    return Fraction(math.comb(many, few))


def _round(value: Fraction, places: Fraction = Fraction(0)) -> Fraction:
    """Halves away from zero, as on paper."""
    count = _integer(places, "round")
    if abs(count) > MAX_FRACTION:
        raise ValueError(f"round takes at most {MAX_FRACTION} places.")
    scale = Fraction(10) ** count
    whole = math.floor(abs(value) * scale + Fraction(1, 2)) / scale
    return whole if value >= 0 else -whole


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
