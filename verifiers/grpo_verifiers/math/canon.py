"""A canonical form in which equality of most answers is decided exactly, without a computer algebra system.

Quotients of polynomials with rational coefficients over variables, pi, e, i and square roots of square-free integers.
Anything else (a sine, a nested root, a power with a variable exponent) becomes a generator of its own, named by the
canonical forms of its arguments. Distinct monomials of the first kind are linearly independent over the rationals, so
unequal forms are unequal values unless such an opaque generator is involved; equal forms are equal values always.

Every step is bounded: the number of terms, the size of coefficients, the trial divisions.
"""

from fractions import Fraction
from functools import lru_cache
from hashlib import blake2b
from math import comb, factorial, gcd, isqrt, lcm

from grpo_verifiers.math.tree import Node

MAX_TERMS = 150
MAX_BITS = 6000
MAX_DEGREE = 120
MAX_RADICAND = 10**9

Mono = tuple[int, int, tuple[tuple[str, int], ...]]  # radicand, power of i, generators with exponents
Poly = dict[Mono, Fraction]
Form = tuple[Poly, Poly]  # numerator, denominator

_ONE: Mono = (1, 0, ())
_OPAQUE = "?"  # begins the name of a generator that may depend on others


class TooBigError(ValueError):
    """A number that is not worth computing: towers of powers, factorials of millions."""


class UndefinedError(ValueError):
    """No value: a division by zero, a difference of infinities."""


class NotAlgebraicError(ValueError):
    """Not one value but a structure, or more terms than this form is good for."""


def constant(value: int | Fraction) -> Form:
    """The form of a rational number."""
    return ({_ONE: Fraction(value)} if value else {}, {_ONE: Fraction(1)})


def rational(form: Form) -> Fraction | None:
    """The value of a form that is a rational number."""
    top, bottom = form
    if not top:
        return Fraction(0)
    if len(top) == len(bottom) == 1:
        (mono, coefficient), (below, divisor) = next(iter(top.items())), next(iter(bottom.items()))
        if mono == below:
            return coefficient / divisor
    if len(top) == len(bottom) and top.keys() == bottom.keys():
        ratios = {top[mono] / bottom[mono] for mono in top}
        if len(ratios) == 1:
            return ratios.pop()
    return None


def same(left: Form, right: Form) -> bool | None:
    """Whether two forms have the same value; None where opaque generators leave that open."""
    difference = _add(_mul(left[0], right[1]), _mul(right[0], left[1]), -1)
    if not difference:
        return True
    opaque = any(name.startswith(_OPAQUE) for mono in difference for name, _ in mono[2])
    return None if opaque else False


def key(form: Form) -> str:
    """A name that equal forms share in all common cases."""
    top, bottom = form
    if not top:
        return "0"
    lead = bottom[max(bottom)]
    return "|".join(
        ";".join(f"{coefficient / lead}*{mono}" for mono, coefficient in sorted(part.items())) for part in (top, bottom)
    )


@lru_cache(maxsize=4096)
def canon(node: Node) -> Form:
    """The canonical form of an expression.

    Raises:
        TooBigError: a number that must not be computed.
        UndefinedError: no value.
        NotAlgebraicError: no single value, or too many terms.
    """
    kind = node[0]
    if kind == "n":
        return constant(node[1])
    if kind == "v":
        if node[1] == "inf":
            raise UndefinedError("infinity inside an expression")
        return _generator(node[1])
    if kind == "-":
        top, bottom = canon(node[1])
        return {mono: -value for mono, value in top.items()}, bottom
    if kind == "+":
        total = canon(node[1])
        for part in node[2:]:
            total = _plus(total, canon(part))
        return total
    if kind == "*":
        total = canon(node[1])
        for part in node[2:]:
            total = _times(total, canon(part))
        return total
    if kind == "/":
        return _times(canon(node[1]), _inverse(canon(node[2])))
    if kind == "^":
        return _power(canon(node[1]), canon(node[2]))
    if kind == "root":
        degree = rational(canon(node[2]))
        if degree is None or degree.denominator != 1 or not 2 <= degree <= 100:
            raise NotAlgebraicError("a root of unusual degree")
        return _root(canon(node[1]), int(degree))
    if kind == "mixed":
        return _plus(canon(node[1]), canon(node[2]))
    if kind == "%":
        return _times(canon(node[1]), constant(Fraction(1, 100)))
    if kind == "deg":
        return _times(_times(canon(node[1]), constant(Fraction(1, 180))), _generator("pi"))
    if kind == "!":
        return _factorial(canon(node[1]))
    if kind == "binom":
        return _binomial(canon(node[1]), canon(node[2]))
    if kind == "abs":
        return _absolute(canon(node[1]))
    if kind in {"f", "log"}:
        return _function(node)
    raise NotAlgebraicError(kind)


def _generator(name: str, exponent: int = 1) -> Form:
    mono = (1, 1, ()) if name == "i" else (1, 0, ((name, exponent),))
    return {mono: Fraction(1)}, {_ONE: Fraction(1)}


def _opaque(*parts: str) -> Form:
    name = ",".join(parts)
    if len(name) > 300:  # nested generators would otherwise double their names at every level
        name = blake2b(name.encode(), digest_size=16).hexdigest()
    return _generator(f"{_OPAQUE}({name})")


def _plus(left: Form, right: Form) -> Form:
    if left[1] == right[1]:
        return _add(left[0], right[0]), left[1]
    return _add(_mul(left[0], right[1]), _mul(right[0], left[1])), _mul(left[1], right[1])


def _times(left: Form, right: Form) -> Form:
    return _mul(left[0], right[0]), _mul(left[1], right[1])


def _inverse(form: Form) -> Form:
    if not form[0]:
        raise UndefinedError("a division by zero")
    return form[1], form[0]


def _add(left: Poly, right: Poly, sign: int = 1) -> Poly:
    total = dict(left)
    for mono, value in right.items():
        new = total.get(mono, Fraction(0)) + sign * value
        if new:
            total[mono] = new
        else:
            total.pop(mono, None)
    if len(total) > MAX_TERMS:
        raise NotAlgebraicError("too many terms")
    return total


def _mul(left: Poly, right: Poly) -> Poly:
    if len(left) * len(right) > 4 * MAX_TERMS:
        raise NotAlgebraicError("too many terms")
    total: Poly = {}
    for (rad_a, im_a, gens_a), a in left.items():
        for (rad_b, im_b, gens_b), b in right.items():
            common = gcd(rad_a, rad_b)
            value = a * b * common
            _check(value)
            if im_a and im_b:
                value = -value
            mono = ((rad_a // common) * (rad_b // common), im_a ^ im_b, _merge(gens_a, gens_b))
            new = total.get(mono, Fraction(0)) + value
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


def _check(value: Fraction) -> None:
    if value.numerator.bit_length() > MAX_BITS or value.denominator.bit_length() > MAX_BITS:
        raise TooBigError("a number too large to compute")


def _power(base: Form, exponent: Form) -> Form:
    power = rational(exponent)
    value = rational(base)
    if power is None:
        if value in {Fraction(0), Fraction(1)}:
            raise NotAlgebraicError("a power of 0 or 1")
        return _opaque("^", key(base), key(exponent))
    if power == 0:
        if value == 0:
            raise UndefinedError("0^0")
        return constant(1)
    if power < 0:
        base, power = _inverse(base), -power
        value = None if value is None else 1 / value
    if power.denominator != 1:
        if power.denominator > 100:
            raise NotAlgebraicError("an unusual exponent")
        return _power(_root(base, power.denominator), constant(power.numerator))
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
        result = _times(result, base)
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


def _root(form: Form, degree: int) -> Form:
    value = rational(form)
    if value is None:
        return _opaque("root", str(degree), key(form))
    if value == 0:
        return constant(0)
    if value < 0:
        if degree == 2:
            return _times(_root(constant(-value), 2), _generator("i"))
        return _opaque("root", str(degree), key(form))
    if degree == 2:
        # sqrt(p/q) = sqrt(p q)/q
        outside, inside = _square_free(value.numerator * value.denominator)
        return {(inside, 0, ()): Fraction(outside, value.denominator)}, {_ONE: Fraction(1)}
    top, bottom = _exact_root(value.numerator, degree), _exact_root(value.denominator, degree)
    if top is not None and bottom is not None:
        return constant(Fraction(top, bottom))
    return _opaque("root", str(degree), key(form))


def _square_free(value: int) -> tuple[int, int]:
    """``value`` as ``outside**2 * inside`` with ``inside`` square-free."""
    root = isqrt(value)
    if root * root == value:
        return root, 1
    if value > MAX_RADICAND:
        raise NotAlgebraicError("a large number under a root")
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


def _factorial(form: Form) -> Form:
    value = rational(form)
    if value is None:
        return _opaque("!", key(form))
    if value.denominator != 1 or value < 0:
        raise UndefinedError("a factorial of no natural number")
    if value > 500:
        raise TooBigError("a factorial too large to compute")
    return constant(factorial(int(value)))


def _binomial(top: Form, bottom: Form) -> Form:
    upper, lower = rational(top), rational(bottom)
    if upper is None or lower is None:
        return _opaque("binom", key(top), key(bottom))
    if upper.denominator != 1 or lower.denominator != 1 or upper < 0 or lower < 0:
        raise NotAlgebraicError("a generalised binomial")
    if upper > 1000:
        raise TooBigError("a binomial too large to compute")
    return constant(comb(int(upper), int(lower)))


def _absolute(form: Form) -> Form:
    value = rational(form)
    return constant(abs(value)) if value is not None else _opaque("abs", key(form))


_WHOLE = {"gcd": gcd, "lcm": lcm}


def _function(node: Node) -> Form:
    if node[0] == "log":
        base, argument = node[1], canon(node[2])
        return _opaque("log", "" if base is None else key(canon(base)), key(argument))
    name, args = node[1], [canon(argument) for argument in node[2]]
    values = [rational(argument) for argument in args]
    if name == "exp" and len(args) == 1:
        return _power(_generator("e"), args[0])
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
        sine, cosine = _opaque("sin", *keys), _opaque("cos", *keys)
        quotients = {"tan": (sine, cosine), "cot": (cosine, sine), "sec": (constant(1), cosine), "csc": (constant(1), sine)}
        above, below = quotients[name]
        return _times(above, _inverse(below))
    return _opaque(name, *keys)


def quotient(left: Form, right: Form) -> Form:
    """One form divided by another."""
    return _times(left, _inverse(right))
