"""Quotients of polynomials over the rationals, with square roots of integers and i reduced, in bounded steps.

A polynomial maps monomials to coefficients; a monomial is a square-free radicand, a power of i, and named generators
with exponents. Monomials that differ are linearly independent over the rationals unless an opaque generator, which
may depend on others, is in them.
"""

from fractions import Fraction
from hashlib import blake2b
from math import gcd

from grpo_verifiers.reading.budget import spend

MAX_TERMS = 150
MAX_BITS = 6000
MAX_DEGREE = 120
Mono = tuple[int, int, tuple[tuple[str, int], ...]]  # radicand, power of i, generators with exponents
Poly = dict[Mono, Fraction]
Form = tuple[Poly, Poly]  # numerator, denominator
ONE: Mono = (1, 0, ())
UNIT: Poly = {ONE: Fraction(1)}  # the denominator of most forms; forms are never changed
OPAQUE = "?"  # begins the name of a generator that may depend on others


class NoFormError(ValueError):
    """An expression without a canonical form."""


class TooBigError(NoFormError):
    """A number that is not worth computing: towers of powers, factorials of millions."""


class UndefinedError(NoFormError):
    """No value: a division by zero, a difference of infinities."""


class NotAlgebraicError(NoFormError):
    """A structure of several values, or more terms than this form is good for."""


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
        spend(sum(_cost(value) for value in top.values()))
        ratios = {top[mono] / bottom[mono] for mono in top}
        if len(ratios) == 1:
            return ratios.pop()
    return None


def same(left: Form, right: Form) -> bool | None:
    """True if two forms have the same value; None where opaque generators leave that open."""
    difference = _add(_mul(left[0], right[1]), _mul(right[0], left[1]), -1)
    if not difference:
        return True
    return None if has_opaque(difference) else False


def has_opaque(*parts: Poly) -> bool:
    """True if a generator that may depend on others is in one of these polynomials."""
    return any(name.startswith(OPAQUE) for part in parts for mono in part for name, _ in mono[2])


def key(form: Form) -> str:
    """A name that equal forms share in all common cases."""
    top, bottom = form
    if not top:
        return "0"
    lead = bottom[max(bottom)]
    spend(sum(2 * _cost(value) for part in form for value in part.values()))
    return "|".join(
        ";".join(f"{coefficient / lead}*{mono}" for mono, coefficient in sorted(part.items())) for part in (top, bottom)
    )


def generator(name: str) -> Form:
    """A variable or constant as a form."""
    mono = (1, 1, ()) if name == "i" else (1, 0, ((name, 1),))
    return {mono: UNIT[ONE]}, UNIT


def opaque(*parts: str) -> Form:
    """A generator that may depend on others, named by what it is made of."""
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
        spend(_cost(new))
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
            cost = _cost(value)
            if cost > _MAX_COST:
                raise TooBigError("a number too large to compute")
            spend(2 + 2 * cost)
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


def _cost(value: Fraction) -> int:
    """Units of one operation that gives this fraction: greatest common divisors are quadratic in the bits."""
    return _units(max(value.numerator.bit_length(), value.denominator.bit_length()))


def _units(bits: int) -> int:
    return 1 + (bits >> 7) + (bits * bits >> 19)


_MAX_COST = _units(MAX_BITS)


def _merge(left: tuple[tuple[str, int], ...], right: tuple[tuple[str, int], ...]) -> tuple[tuple[str, int], ...]:
    if not left or not right:
        return left or right
    spend((len(left) + len(right)) >> 2)
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
