"""The canonical form of an expression, in which equality of most answers is decided exactly and at once.

Rational functions of variables, pi, e, i and square roots of integers are brought to one form. Anything else (a sine,
a nested root, a power with a variable exponent) becomes a generator of its own, named by the canonical forms of its
arguments: equal forms are equal values always, unequal forms are unequal values unless such a generator is involved.

A form is a quotient of polynomials. A polynomial maps monomials to coefficients; a monomial is a square-free radicand,
a power of i, and named generators with exponents. Monomials that differ are linearly independent over the rationals
unless an opaque generator, which may depend on another generator, is in them.
"""

from fractions import Fraction
from functools import lru_cache, reduce
from hashlib import blake2b
from math import comb, factorial, gcd, isqrt, lcm

from grpo_verifiers.math.tree import Node

MAX_TERMS = 150
MAX_BITS = 6000
MAX_DEGREE = 120
Mono = tuple[int, int, tuple[tuple[str, int], ...]]  # radicand, power of i, generators with exponents
Poly = dict[Mono, Fraction]
Form = tuple[Poly, Poly]  # numerator, denominator
ONE: Mono = (1, 0, ())
UNIT: Poly = {ONE: Fraction(1)}  # the denominator of most forms; forms are never changed
OPAQUE = "?"  # prefix of a generator that may depend on another one


class NoFormError(ValueError):
    """An expression without a canonical form."""


class TooBigError(NoFormError):
    """A number that is not worth computing: towers of powers, factorials of millions."""


class UndefinedError(NoFormError):
    """No value: a division by zero, a difference of infinities."""


class NotAlgebraicError(NoFormError):
    """A structure of several values, or too many terms for this form."""


def constant(value: int | Fraction) -> Form:
    """The form of a rational number."""
    return ({ONE: Fraction(value)} if value else {}, UNIT)


def rational(form: Form) -> Fraction | None:
    """The value of a form that is a rational number."""
    top, bottom = form
    if not top:
        return Fraction(0)
    if bottom is UNIT and len(top) == 1 and ONE in top:
        return top[ONE]
    if top.keys() == bottom.keys():
        ratios = {top[mono] / bottom[mono] for mono in top}
        if len(ratios) == 1:
            return ratios.pop()
    return None


def same(left: Form, right: Form) -> bool | None:
    """True if two forms have the same value; None if opaque generators leave that open."""
    difference = _add(_mul(left[0], right[1]), _mul(right[0], left[1]), -1)
    if not difference:
        return True
    return None if has_opaque(difference) else False


def has_opaque(*parts: Poly) -> bool:
    """True if one of these polynomials has an opaque generator."""
    return any(name.startswith(OPAQUE) for part in parts for mono in part for name, _ in mono[2])


def key(form: Form) -> str:
    """A name that is the same for equal forms in all common cases."""
    top, bottom = form
    if not top:
        return "0"
    lead = bottom[max(bottom)]
    return "|".join(
        ";".join(f"{coefficient / lead}*{mono}" for mono, coefficient in sorted(part.items())) for part in (top, bottom)
    )


def generator(name: str) -> Form:
    """A variable or constant as a form."""
    mono = (1, 1, ()) if name == "i" else (1, 0, ((name, 1),))
    return {mono: UNIT[ONE]}, UNIT


def opaque(*parts: str) -> Form:
    """An opaque generator, named by its parts."""
    name = ",".join(parts)
    if len(name) > 300:  # nested generators would otherwise double their names at every level
        name = blake2b(name.encode(), digest_size=16).hexdigest()
    return generator(f"{OPAQUE}({name})")


def plus(left: Form, right: Form) -> Form:
    """The sum."""
    if left[1] == right[1]:
        return _add(left[0], right[0]), left[1]
    return _add(_mul(left[0], right[1]), _mul(right[0], left[1])), _mul(left[1], right[1])


def times(left: Form, right: Form) -> Form:
    """The product."""
    return _mul(left[0], right[0]), _mul(left[1], right[1])


def inverse(form: Form) -> Form:
    """One over the form."""
    if not form[0]:
        raise UndefinedError("a division by zero")
    return form[1], form[0]


def _add(left: Poly, right: Poly, sign: int = 1) -> Poly:
    total = dict(left)
    for mono, value in right.items():
        signed = value if sign > 0 else -value
        new = total[mono] + signed if mono in total else signed
        if new:
            total[mono] = new
        else:
            total.pop(mono, None)
    if len(total) > MAX_TERMS:
        raise NotAlgebraicError("too many terms")
    return total


def _mul(left: Poly, right: Poly) -> Poly:
    if left is UNIT or right is UNIT:
        return right if left is UNIT else left
    if len(left) * len(right) > 4 * MAX_TERMS:
        raise NotAlgebraicError("too many terms")
    total: Poly = {}
    for (rad_a, im_a, gens_a), a in left.items():
        for (rad_b, im_b, gens_b), b in right.items():
            common = gcd(rad_a, rad_b)
            value = a * b if common == 1 else a * b * common
            if max(value.numerator.bit_length(), value.denominator.bit_length()) > MAX_BITS:
                raise TooBigError("a number too large to compute")
            if im_a and im_b:
                value = -value
            mono = ((rad_a // common) * (rad_b // common), im_a ^ im_b, _merge(gens_a, gens_b))
            new = total[mono] + value if mono in total else value
            if new:
                total[mono] = new
            else:
                total.pop(mono, None)
    if len(total) > MAX_TERMS:
        raise NotAlgebraicError("too many terms")
    return total


def _merge(left: tuple[tuple[str, int], ...], right: tuple[tuple[str, int], ...]) -> tuple[tuple[str, int], ...]:
    if not left or not right:
        return left or right
    exponents = dict(left)
    for name, exponent in right:
        exponents[name] = exponents.get(name, 0) + exponent
        if exponents[name] > MAX_DEGREE:
            raise NotAlgebraicError("too high a degree")
    return tuple(sorted(exponents.items()))


def quotient(left: Form, right: Form) -> Form:
    """One form divided by another."""
    return times(left, inverse(right))


def negative(form: Form) -> Form:
    """The form with its sign changed."""
    return {mono: -value for mono, value in form[0].items()}, form[1]


@lru_cache(maxsize=1024)
def canon(node: Node) -> Form:
    """The canonical form of an expression; NoFormError has the reason if there is none."""
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
    """The value of an expression if it is a rational number, else None."""
    try:
        return rational(canon(node))
    except NoFormError:
        return None


def _factorial(form: Form) -> Form:
    value = rational(form)
    if value is None:
        return opaque("!", key(form))
    if value.denominator != 1 or value < 0:
        raise UndefinedError("a factorial of something other than a natural number")
    if value > 500:
        raise TooBigError("a factorial too large to compute")
    return constant(factorial(int(value)))


def _binomial(top: Form, bottom: Form) -> Form:
    upper, lower = rational(top), rational(bottom)
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


_OF_INTEGERS = {"gcd": gcd, "lcm": lcm}


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
    numbers = [value for value in values if value is not None]
    if len(numbers) == len(values):
        if name == "min":
            return constant(min(numbers))
        if name == "max":
            return constant(max(numbers))
        if name in {"floor", "ceil"} and len(numbers) == 1:
            floor = numbers[0].numerator // numbers[0].denominator
            return constant(floor if name == "floor" else -((-numbers[0].numerator) // numbers[0].denominator))
        if name in _OF_INTEGERS and all(value.denominator == 1 for value in numbers):
            return constant(_OF_INTEGERS[name](*(int(value) for value in numbers)))
    if name in {"det", "arg", "Re", "Im", "deg", "dim"}:
        raise NotAlgebraicError(name)
    keys = [key(argument) for argument in args]
    return opaque(name, *keys)


def _remainder(value: Form, modulus: Form) -> Form:
    number, divisor = rational(value), rational(modulus)
    if number is not None and divisor is not None and number.denominator == divisor.denominator == 1 and divisor > 0:
        value = constant(number % divisor)
    return opaque("mod", key(value), key(modulus))


MAX_RADICAND = 10**7


def power_of(base: Form, exponent: Form) -> Form:
    """One form to the power of another."""
    power = rational(exponent)
    value = rational(base)
    if power is None:
        if value in {Fraction(0), Fraction(1)}:
            raise NotAlgebraicError("a power of 0 or 1")
        return opaque("^", key(base), key(exponent))
    if power == 0:
        if value == 0:
            raise UndefinedError("0^0")
        return constant(1)
    if power < 0:
        base, power = inverse(base), -power
        value = None if value is None else 1 / value
    if power.denominator != 1:
        if power.denominator > 100:
            raise NotAlgebraicError("an unusual exponent")
        return power_of(root_of(base, power.denominator), constant(power.numerator))
    integer = power.numerator
    if value is not None:
        if abs(value) in {0, 1}:
            return constant(value if integer % 2 else value * value)
        bits = max(value.numerator.bit_length(), value.denominator.bit_length())
        if bits * integer > MAX_BITS:
            raise TooBigError("a power too large to compute")
        return constant(value**integer)
    if len(base[0]) == len(base[1]) == 1:
        return tuple(_monomial_power(*next(iter(part.items())), integer) for part in base)  # type: ignore[return-value]
    if integer > 24:
        raise NotAlgebraicError("a high power of a sum")
    result = base
    for _ in range(integer - 1):
        result = times(result, base)
    return result


def _monomial_power(mono: Mono, coefficient: Fraction, power: int) -> Poly:
    radicand, imaginary, generators = mono
    size = max(coefficient.numerator.bit_length(), coefficient.denominator.bit_length()) + radicand.bit_length()
    if power * size > MAX_BITS and (abs(coefficient) != 1 or radicand != 1):
        raise TooBigError("a power too large to compute")
    if any(exponent * power > 10**6 for _, exponent in generators):
        raise NotAlgebraicError("too high a degree")
    value = coefficient**power * radicand ** (power // 2)
    if imaginary and power % 4 in {2, 3}:
        value = -value
    new = (
        radicand if power % 2 else 1,
        imaginary * (power % 2),
        tuple((name, exponent * power) for name, exponent in generators),
    )
    return {new: value}


def root_of(form: Form, degree: int) -> Form:
    """The root of a form."""
    value = rational(form)
    if value is None:
        inner = _power_inside(form) if degree % 2 else None
        if inner is not None:  # the real root of odd degree of a power is the power of the root
            return power_of(opaque("root", str(degree), key(inner[0])), constant(inner[1]))
        return opaque("root", str(degree), key(form))
    if value == 0:
        return constant(0)
    if value < 0:
        if degree == 2:
            return times(root_of(constant(-value), 2), generator("i"))
        return opaque("root", str(degree), key(form))
    if degree == 2 and (value.numerator * value.denominator <= MAX_RADICAND or _is_square(value)):
        # sqrt(p/q) = sqrt(p q)/q
        outside, inside = _square_free(value.numerator * value.denominator)
        return {(inside, 0, ()): Fraction(outside, value.denominator)}, UNIT
    top, bottom = _exact_root(value.numerator, degree), _exact_root(value.denominator, degree)
    if top is not None and bottom is not None:
        return constant(Fraction(top, bottom))
    return opaque("root", str(degree), key(form))


def _power_inside(form: Form) -> tuple[Form, int] | None:
    """The name and the exponent of a form that is a power with an exponent above one; else None."""
    if form[1] != UNIT or len(form[0]) != 1:
        return None
    (radicand, imaginary, generators), coefficient = next(iter(form[0].items()))
    if coefficient != 1 or radicand != 1 or imaginary or len(generators) != 1 or generators[0][1] < 2:
        return None
    return generator(generators[0][0]), generators[0][1]


def _is_square(value: Fraction) -> bool:
    return all(isqrt(part) ** 2 == part for part in (value.numerator, value.denominator))


def _square_free(value: int) -> tuple[int, int]:
    """``value`` as ``outside**2 * inside`` with ``inside`` square-free."""
    root = isqrt(value)
    if root * root == value:
        return root, 1
    outside, inside, prime = 1, 1, 2
    while prime * prime <= value:
        count = 0
        while value % prime == 0:
            value //= prime
            count += 1
        outside *= prime ** (count // 2)
        inside *= prime ** (count % 2)
        prime += 1 if prime == 2 else 2
    return outside, inside * value


def _exact_root(value: int, degree: int) -> int | None:
    if value.bit_length() > 1000:
        return None
    guess = round(value ** (1 / degree))
    return next((near for near in (guess - 1, guess, guess + 1) if near >= 0 and near**degree == value), None)
