"""Powers and roots of canonical forms."""

from fractions import Fraction
from math import isqrt

from grpo_verifiers.math.values.forms import (
    MAX_BITS,
    UNIT,
    Form,
    Mono,
    NotAlgebraicError,
    Poly,
    TooBigError,
    UndefinedError,
    constant,
    generator,
    inverse,
    key,
    opaque,
    rational,
    times,
)
from grpo_verifiers.reading.budget import spend

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
    whole = power.numerator
    if value is not None:
        if abs(value) in {0, 1}:
            return constant(value if whole % 2 else value * value)
        bits = max(value.numerator.bit_length(), value.denominator.bit_length())
        if bits * whole > MAX_BITS:
            raise TooBigError("a power too large to compute")
        return constant(value**whole)
    if len(base[0]) == len(base[1]) == 1:
        return tuple(_monomial_power(*next(iter(part.items())), whole) for part in base)  # type: ignore[return-value]
    if whole > 24:
        raise NotAlgebraicError("a high power of a sum")
    result = base
    for _ in range(whole - 1):
        result = times(result, base)
    return result


def _monomial_power(mono: Mono, coefficient: Fraction, whole: int) -> Poly:
    radicand, imaginary, generators = mono
    size = max(coefficient.numerator.bit_length(), coefficient.denominator.bit_length()) + radicand.bit_length()
    if whole * size > MAX_BITS and (abs(coefficient) != 1 or radicand != 1):
        raise TooBigError("a power too large to compute")
    if any(exponent * whole > 10**6 for _, exponent in generators):
        raise NotAlgebraicError("too high a degree")
    value = coefficient**whole * radicand ** (whole // 2)
    if imaginary and whole % 4 in {2, 3}:
        value = -value
    new = (
        radicand if whole % 2 else 1,
        imaginary * (whole % 2),
        tuple((name, exponent * whole) for name, exponent in generators),
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
    """A name and its exponent, above one, where a form is nothing but that power."""
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
    spend(prime >> 3)
    return outside, inside * value


def _exact_root(value: int, degree: int) -> int | None:
    if value.bit_length() > 1000:
        return None
    guess = round(value ** (1 / degree))
    return next((near for near in (guess - 1, guess, guess + 1) if near >= 0 and near**degree == value), None)
