r"""Inverse circular functions where they are known multiples of pi: ``\arccos\frac12`` is a third of it."""

from fractions import Fraction

from grpo_verifiers.math.forms import ONE, Form, constant, generator, key, times

_HALF = Fraction(1, 2)


def _root(radicand: int, factor: Fraction) -> str:
    return key(({(radicand, 0, ()): factor}, {ONE: Fraction(1)}))


# The argument of arcsin and of arctan, with the share of pi; the negative arguments follow.
_SINES = {key(constant(1)): _HALF, key(constant(_HALF)): Fraction(1, 6), _root(2, _HALF): Fraction(1, 4),
          _root(3, _HALF): Fraction(1, 3)}  # fmt: skip
_TANGENTS = {key(constant(1)): Fraction(1, 4), _root(3, Fraction(1)): Fraction(1, 3),
             _root(3, Fraction(1, 3)): Fraction(1, 6)}  # fmt: skip
_SINES |= {key(constant(-1)): -_HALF, key(constant(-_HALF)): Fraction(-1, 6), _root(2, -_HALF): Fraction(-1, 4),
           _root(3, -_HALF): Fraction(-1, 3), key(constant(0)): Fraction(0)}  # fmt: skip
_TANGENTS |= {key(constant(-1)): Fraction(-1, 4), _root(3, Fraction(-1)): Fraction(-1, 3),
              _root(3, Fraction(-1, 3)): Fraction(-1, 6), key(constant(0)): Fraction(0)}  # fmt: skip


def known_angle(name: str, argument: Form) -> Form | None:
    """The value of an inverse function; None where it is no known multiple of pi."""
    share = (_TANGENTS if name == "arctan" else _SINES).get(key(argument))
    if share is None:
        return None
    return times(constant(_HALF - share if name == "arccos" else share), generator("pi"))
