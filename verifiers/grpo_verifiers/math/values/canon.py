"""The canonical form of an expression, in which equality of most answers is decided exactly and at once.

Rational functions of variables, pi, e, i and square roots of integers are brought to one form. Anything else (a sine,
a nested root, a power with a variable exponent) becomes a generator of its own, named by the canonical forms of its
arguments: equal forms are equal values always, unequal forms are unequal values unless such a generator is involved.
"""

from fractions import Fraction
from functools import lru_cache, reduce
from math import comb, factorial, gcd, lcm

from grpo_verifiers.math.tree import Node
from grpo_verifiers.math.values.forms import (
    Form,
    NoFormError,
    NotAlgebraicError,
    TooBigError,
    UndefinedError,
    constant,
    generator,
    inverse,
    key,
    negative,
    opaque,
    plus,
    rational,
    times,
)
from grpo_verifiers.math.values.powers import power_of, root_of
from grpo_verifiers.reading.budget import spend

MAX_LOWER = 6  # binomials of a formula over a number up to this are polynomials


@lru_cache(maxsize=1024)
def canon(node: Node) -> Form:
    """The canonical form of an expression.

    Raises:
        TooBigError: a number that must not be computed.
        UndefinedError: no value.
        NotAlgebraicError: no single value, or too many terms.
    """
    spend(2)
    kind = node[0]
    if kind == "n":
        return constant(node[1])
    if kind == "v":
        if node[1] == "inf":
            raise UndefinedError("infinity inside an expression")
        return generator(node[1])
    if kind == "-":
        return negative(canon(node[1]))
    if kind in {"+", "*"}:
        return reduce(plus if kind == "+" else times, map(canon, node[1:]))
    if kind == "/":
        return times(canon(node[1]), inverse(canon(node[2])))
    if kind == "^":
        return power_of(canon(node[1]), canon(node[2]))
    if kind == "root":
        degree = rational(canon(node[2]))
        if degree is None or degree.denominator != 1 or not 2 <= degree <= 100:
            raise NotAlgebraicError("a root of unusual degree")
        return root_of(canon(node[1]), int(degree))
    if kind == "mixed":
        return plus(canon(node[1]), canon(node[2]))
    if kind == "%":
        return times(canon(node[1]), constant(Fraction(1, 100)))
    if kind == "deg":
        return times(times(canon(node[1]), constant(Fraction(1, 180))), generator("pi"))
    if kind == "!":
        return _factorial(canon(node[1]))
    if kind == "binom":
        return _binomial(canon(node[1]), canon(node[2]))
    if kind == "abs":
        return _absolute(canon(node[1]))
    if kind in {"f", "log"}:
        return _function(node)
    raise NotAlgebraicError(kind)


def exact(node: Node) -> Fraction | None:
    """The value of an expression that is a rational number; None for all others."""
    try:
        return rational(canon(node))
    except NoFormError:
        return None


def _factorial(form: Form) -> Form:
    value = rational(form)
    if value is None:
        return opaque("!", key(form))
    if value.denominator != 1 or value < 0:
        raise UndefinedError("a factorial of no natural number")
    if value > 500:
        raise TooBigError("a factorial too large to compute")
    return constant(factorial(int(value)))


def _binomial(top: Form, bottom: Form) -> Form:
    upper, lower = rational(top), rational(bottom)
    if upper is None and lower is not None and lower.denominator == 1 and 0 < lower <= MAX_LOWER:
        product = top
        for index in range(1, int(lower)):
            product = times(product, plus(top, constant(-index)))
        return times(product, constant(Fraction(1, factorial(int(lower)))))
    if upper is None or lower is None:
        return opaque("binom", key(top), key(bottom))
    if upper.denominator != 1 or lower.denominator != 1 or upper < 0 or lower < 0:
        raise NotAlgebraicError("a generalised binomial")
    if upper > 1000:
        raise TooBigError("a binomial too large to compute")
    return constant(comb(int(upper), int(lower)))


def _absolute(form: Form) -> Form:
    value = rational(form)
    return constant(abs(value)) if value is not None else opaque("abs", key(form))


_WHOLE = {"gcd": gcd, "lcm": lcm}


def _function(node: Node) -> Form:
    if node[0] == "log":
        base, argument = node[1], canon(node[2])
        return opaque("log", "" if base is None else key(canon(base)), key(argument))
    name, args = node[1], [canon(argument) for argument in node[2]]
    values = [rational(argument) for argument in args]
    if name == "mod":
        return _remainder(*args)
    if name == "exp" and len(args) == 1:
        return power_of(generator("e"), args[0])
    known = [value for value in values if value is not None]
    if len(known) == len(values):
        if name == "min":
            return constant(min(known))
        if name == "max":
            return constant(max(known))
        if name in {"floor", "ceil"} and len(known) == 1:
            whole = known[0].numerator // known[0].denominator
            return constant(whole if name == "floor" else -((-known[0].numerator) // known[0].denominator))
        if name in _WHOLE and all(value.denominator == 1 for value in known):
            return constant(_WHOLE[name](*(int(value) for value in known)))
    if name in {"det", "arg", "Re", "Im", "deg", "dim"}:
        raise NotAlgebraicError(name)
    keys = [key(argument) for argument in args]
    # the reciprocal functions in terms of sine and cosine, so that more answers meet in one form
    if len(args) == 1 and name in {"tan", "cot", "sec", "csc"}:
        sine, cosine = opaque("sin", *keys), opaque("cos", *keys)
        quotients = {
            "tan": (sine, cosine),
            "cot": (cosine, sine),
            "sec": (constant(1), cosine),
            "csc": (constant(1), sine),
        }
        above, below = quotients[name]
        return times(above, inverse(below))
    return opaque(name, *keys)


def _remainder(value: Form, modulus: Form) -> Form:
    number, divisor = rational(value), rational(modulus)
    if number is not None and divisor is not None and number.denominator == divisor.denominator == 1 and divisor > 0:
        value = constant(number % divisor)
    return opaque("mod", key(value), key(modulus))
