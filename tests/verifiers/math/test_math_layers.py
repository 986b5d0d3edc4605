"""Each way to a value against mpmath, over all small expressions: canonical forms and sixty digits."""

import math
from contextlib import suppress
from fractions import Fraction
from itertools import pairwise, product

import mpmath
import pytest

from grpo_verifiers.math.tree import number
from grpo_verifiers.math.values import numeric
from grpo_verifiers.math.values.canon import NoFormError, canon, exact, has_opaque, key, same

X = 0.7391
TINY = 1e-45
ATOMS = [
    *map(number, [0, 1, 2, 3, 12, Fraction(1, 3), Fraction(9, 4)]),
    *(("v", name) for name in ("pi", "e", "i", "x")),
]
FUNCTIONS = {
    "sin": mpmath.sin, "cos": mpmath.cos, "tan": mpmath.tan, "cot": mpmath.cot, "sec": mpmath.sec, "csc": mpmath.csc, "sinh": mpmath.sinh, "cosh": mpmath.cosh, "tanh": mpmath.tanh, "arcsin": mpmath.asin, "arccos": mpmath.acos,
    "arctan": mpmath.atan, "arcsinh": mpmath.asinh, "arccosh": mpmath.acosh, "arctanh": mpmath.atanh, "ln": mpmath.log, "exp": mpmath.exp, "floor": mpmath.floor, "ceil": mpmath.ceil,
}  # fmt: skip
ARITHMETIC = {
    "+": lambda a, b: a + b, "mixed": lambda a, b: a + b, "*": lambda a, b: a * b, "/": lambda a, b: a / b, "^": lambda a, b: a**b, "-": lambda a: -a, "%": lambda a: a / 100, "deg": lambda a: a * mpmath.pi / 180, "abs": abs, "!": mpmath.factorial, "binom": mpmath.binomial,
}  # fmt: skip
POWERS = [2, 3, 5, -1, -2, Fraction(1, 2), Fraction(-3, 2), Fraction(2, 3)]


@pytest.fixture(autouse=True)
def digits():
    with mpmath.workdps(60):
        yield


def root(value, degree):
    real = degree % 2 and not mpmath.im(value) and mpmath.re(value) < 0  # the real root of odd degree
    return -mpmath.root(-value, degree) if real else mpmath.root(value, degree)


def value(node):
    kind = node[0]
    if kind == "n":
        return mpmath.mpf(node[1].numerator) / node[1].denominator
    if kind == "v":
        return {"pi": +mpmath.pi, "e": +mpmath.e, "i": mpmath.mpc(0, 1), "x": mpmath.mpf(X)}[node[1]]
    if kind == "f":
        found = FUNCTIONS[node[1]](value(node[2][0]))
        if mpmath.im(found) and node[1].startswith("arc"):
            raise ValueError("on a cut, either side may be taken")
        return found
    if kind == "log":
        return mpmath.log(value(node[2])) / (1 if node[1] is None else mpmath.log(value(node[1])))
    if kind == "root":
        return root(value(node[1]), int(node[2][1]))
    return ARITHMETIC[kind](*map(value, node[1:]))


def around(node):
    yield from ((kind, node) for kind in ("-", "%", "deg", "abs", "!"))
    yield from (("^", node, number(power)) for power in POWERS)
    yield from (("root", node, number(degree)) for degree in (2, 3, 4))
    yield from (("f", name, (node,)) for name in FUNCTIONS)
    yield from (("log", base, node) for base in (None, number(10)))


def trees(*, every):
    """All of one operation; of two, every so many."""
    once = [*(tree for atom in ATOMS for tree in around(atom))]
    once += [(kind, *pair) for kind in ("+", "*", "/", "^", "binom") for pair in product(ATOMS, repeat=2)]
    once += [("mixed", number(3), ("/", number(1), number(2)))]
    twice = [*(tree for inner in once for tree in around(inner))]
    twice += [(kind, inner, atom) for kind in ("+", "*", "/") for inner, atom in product(once, ATOMS)]
    for tree in (*ATOMS, *once, *twice[::every]):
        with suppress(ArithmeticError, ValueError, TypeError):
            found = value(tree)
            if mpmath.isfinite(found) and abs(found) < 1e40:
                yield tree, found


EVERY = [pytest.param(101, id="few"), pytest.param(7, id="many", marks=pytest.mark.slow)]
KINDS = {(kind,) for kind in (*ARITHMETIC, "n", "v", "log", "root")} | {("f", name) for name in FUNCTIONS}


def kind_of(tree):
    return tree[:2] if tree[0] == "f" else tree[:1]


@pytest.mark.parametrize("every", EVERY)
def test_sixty_digits_are_right(every):
    reached = set()
    for tree, known in trees(every=every):
        size = max(1, abs(known))
        with suppress(ArithmeticError, ValueError), mpmath.workdps(numeric.DIGITS):
            digits = numeric._value(tree, {"x": mpmath.mpf(X)}, mpmath)
            assert abs(digits - known) < size * TINY, tree
            reached.add(kind_of(tree))
        value_of_tree = numeric.real_value(tree)
        assert value_of_tree is None or abs(value_of_tree - known) < 1e-13 * abs(known) + 1e-300, tree
    assert reached >= KINDS


@pytest.mark.parametrize("every", EVERY)
def test_canonical_forms_are_equal_where_values_are(every):
    """Equal forms always have one value; forms without a function in them are equal wherever their values are."""
    forms, algebraic, reached = {}, [], set()
    for tree, known in trees(every=every):
        with suppress(NoFormError):
            form = canon(tree)
            other = forms.setdefault(key(form), known)
            assert abs(other - known) < max(1, abs(known)) * TINY, tree
            reached.add(kind_of(tree))
            if not has_opaque(*form) and abs(known) < 1e5:
                algebraic.append((mpmath.re(known), mpmath.im(known), tree, form))
    assert reached == KINDS
    algebraic.sort(key=lambda row: row[:2])
    for (re, im, tree, form), (real, imaginary, after, next_form) in pairwise(algebraic):
        gap = max(abs(re - real), abs(im - imaginary))
        equal = gap < max(1, abs(re)) * TINY
        assert same(form, next_form) is equal, (tree, after)
        assert numeric.agree(tree, after) in {equal, None}, (tree, after)


def test_whole_numbers_are_those_of_python():
    def exact_of(name, *args):
        return exact(("f", name, tuple(map(number, args))) if name in of else (name, *map(number, args)))

    of = {"gcd": math.gcd, "lcm": math.lcm, "min": min, "max": max}
    for a, b in product(range(12), repeat=2):
        for name, function in of.items():
            assert exact_of(name, a, b, 6) == function(a, b, 6), (name, a, b)
        assert exact_of("binom", a, b) == math.comb(a, b)
        assert exact_of("!", a) == math.factorial(a)
        for name, function in {"floor": math.floor, "ceil": math.ceil}.items():
            assert exact(("f", name, (number(Fraction(a - 5, b + 1)),))) == function(Fraction(a - 5, b + 1))
        remainders = [("f", "mod", (number(value), number(b + 1))) for value in (a, a % (b + 1), a + 1)]
        assert [key(canon(one)) == key(canon(remainders[0])) for one in remainders] == [True, True, b == 0]


def test_expressions_in_a_letter_are_equal_where_they_are_at_every_point():
    """Polynomials, binomials and roots of a letter, against their values at more points than their degree."""
    letter = ("v", "x")
    built = [("binom", letter, number(below)) for below in range(1, 7)] + [
        ("binom", ("+", letter, number(1)), number(2))
    ]
    built += [("^", ("+", letter, number(one)), number(power)) for one in (-1, 0, 2) for power in range(1, 4)]
    built += [("*", letter, ("+", letter, number(-1)), ("/", number(1), number(2)))]
    built += [("/", ("+", ("^", letter, number(2)), number(-1)), ("+", letter, number(1))), ("+", letter, number(-1))]
    built += [("abs", letter), ("abs", ("-", letter)), ("root", ("^", letter, number(2)), number(2))]
    built += [("root", ("^", letter, number(3)), number(3)), letter, ("f", "min", (letter, number(100)))]
    built += [
        ("f", "max", (letter, ("-", letter))),
        ("^", number(2), letter),
        ("^", number(4), ("/", letter, number(2))),
    ]
    points = [Fraction(point, 3) for point in (*range(-40, 40, 7), 400)]

    def at(node, point):
        if node == letter:
            return Fraction(point)
        if node[0] == "n":
            return node[1]
        if node[0] == "f":
            return {"min": min, "max": max}[node[1]](at(part, point) for part in node[2])
        parts = [at(part, point) for part in node[1:]]
        if node[0] == "binom":
            return Fraction(math.prod(parts[0] - step for step in range(int(parts[1]))), math.factorial(int(parts[1])))
        if node[0] == "root":
            return root(mpmath.mpf(parts[0].numerator) / parts[0].denominator, int(parts[1]))
        if node[0] == "^" and parts[1].denominator > 1:
            return mpmath.mpf(parts[0].numerator) ** (mpmath.mpf(parts[1].numerator) / parts[1].denominator)
        return {"+": sum, "*": math.prod}[node[0]](parts) if node[0] in "+*" else ARITHMETIC[node[0]](*parts)

    values = [[mpmath.mpmathify(at(node, point)) for point in points] for node in built]
    for (left, ours), (right, theirs) in product(zip(built, values, strict=True), repeat=2):
        equal = all(abs(one - other) < 1e-20 * max(1, abs(one)) for one, other in zip(ours, theirs, strict=True))
        assert numeric.agree(left, right) in {equal, None}, (left, right)
        assert same(canon(left), canon(right)) in {equal, None}, (left, right)
