"""Parts of the comparison against enumeration: families of values, sets of intervals, words, matrices, relations."""

import sys
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from itertools import product

from grpo_verifiers.math import math
from grpo_verifiers.math.grammar.parser import parse
from grpo_verifiers.math.tree import number
from grpo_verifiers.math.values.numeric import agree
from grpo_verifiers.math.values.sets import (
    HIGHEST,
    LOWEST,
    End,
    Region,
    complement,
    intersection,
    interval,
    union,
    without_integers,
)
from grpo_verifiers.math.words.numerals import number_in_words, ordinal
from tests.waiting import no_hang

GRID = [Fraction(step, 2) for step in range(-7, 8)]
ENDS = [LOWEST, *(End(number(at), float(at)) for at in (-1, 0, Fraction(3, 2))), HIGHEST]
INTERVALS = [
    parts for low, high in product(ENDS, repeat=2) for sides in product([False, True], repeat=2)
    if (parts := interval(low, sides[0], high, sides[1]))
]  # fmt: skip


def holds(parts, x):
    return any((p.low.at < x or (p.low_in and p.low.at == x)) and (x < p.high.at or (p.high_in and p.high.at == x)) for p in parts)  # fmt: skip


def test_the_algebra_of_intervals_is_that_of_membership():
    for a, b in product(INTERVALS, repeat=2):
        both, either, other = intersection(a, b), union(a + b), complement(union(a + b))
        for x in GRID:
            assert holds(both, x) == (holds(a, x) and holds(b, x)), (a, b, x)
            assert holds(either, x) == (holds(a, x) or holds(b, x)), (a, b, x)
            assert holds(other, x) != holds(either, x), (a, b, x)
        assert complement(other) == either == union(b + a)
        assert intersection(either, other) == ()


def test_integers_of_a_set_are_listed_where_they_are_few():
    for a, b in product(INTERVALS, repeat=2):
        parts = union(a + b)
        for domain, least in (("Z", -9), ("N", 0)):
            found = without_integers(Region(parts, domain))
            integers = [x for x in range(least, 10) if holds(parts, x)]
            assert [x for x in range(-9, 10) if holds(found.parts, x) and x >= least] == integers, (parts, domain)
            if domain == "Z":
                listed = all(part.low is not LOWEST and part.high is not HIGHEST for part in parts)
                assert (found.domain == "R") == listed, parts


NAMES = {2: "half", 3: "third", 4: "quarter", 5: "fifth", 6: "sixth", 7: "seventh", 8: "eighth", 9: "ninth", 12: "twelfth", 20: "twentieth"}  # fmt: skip
SMALL = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven"]


def test_fractions_decimals_and_places_in_words_are_read_as_they_are_written():
    for top, (bottom, name) in product(range(1, 12), NAMES.items()):
        plural = ("halves" if bottom == 2 else name + "s") if top > 1 else name
        part = ("/", number(top), number(bottom))
        assert number_in_words(f"{SMALL[top]} {plural}") == part
        mixed = ("mixed", number(7), part) if top < bottom else None
        assert number_in_words(f"seven and {'a' if top == 1 else SMALL[top]} {plural}") == mixed
        assert number_in_words(f"minus {SMALL[top]} {plural}") == ("-", part)
    for bottom, name in {10: "tenth", 100: "hundredth", 1000: "thousandth"}.items():
        assert number_in_words(f"five {name}s") == ("n", Fraction(5, bottom), len(str(bottom)) - 1)
        assert number_in_words(f"a {name}") == ("n", Fraction(1, bottom), len(str(bottom)) - 1)
    for first, second in product(range(10), repeat=2):
        said = f"{SMALL[first]} point {SMALL[second]} {SMALL[first]}"
        assert number_in_words(said) == ("n", first + Fraction(10 * second + first, 100), 2)
    refused = ("zero fifths", "one fifths", "two fifth", "and a half", "three point", "three point ten", "half one")
    for wrong in (*refused, "point one point two"):
        assert number_in_words(wrong) is None, wrong
    for place in range(1, 130):
        ending = "th" if place % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(place % 10, "th")
        assert [ordinal(f"{place}{each}") for each in ("st", "nd", "rd", "th") if each != ending] == [None] * 3
        assert ordinal(f"the {place}{ending}") == ordinal(f"{place}^{{{ending}}}") == place
    assert [ordinal(f"{tens}-first") for tens in ("twenty", "ninety", "one")] == [21, 91, None]


def test_many_digits_are_those_of_a_thread():
    """The precision of mpmath is one for all threads: half of these were wrong where eight threads shared it."""
    one, same, undefined = (
        parse(text) for text in (r"\sin 2x+\sqrt{x+5}", r"2\sin x\cos x+\sqrt{5+x}", r"\sin 2x+\frac{1}{\sin x-\sin x}")
    )
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with ThreadPoolExecutor(8) as pool:
            outcomes = set(pool.map(lambda _: (agree(one, same), agree(undefined, one)), range(100)))
    finally:
        sys.setswitchinterval(interval)
    assert outcomes == {(True, None)}


def test_a_group_of_wrong_solutions_is_refuted_before_anything_slow():
    with no_hang():
        for k in range(64):
            answer = f"x(t)={k % 7 + 1}e^{{-{k % 5 + 1}t}}-{k}e^{{-4t}}"
            assert math(f"\\boxed{{{answer}}}", r"y=-\frac{2}{3}(e^{-8t}-2e^{-4t})").score == 0.0


def test_expressions_of_more_letters_than_points_have_are_left_open():
    letters = [parse("+".join("abcdfghkm"[:count])) for count in range(1, 9)]
    assert [agree(one, ("+", one, number(1))) for one in letters] == [False] * 6 + [None] * 2
    assert agree(parse("\\sqrt{x}"), parse("\\sqrt{x}+1")) is False
