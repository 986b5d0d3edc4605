"""The calculator is exact, and refuses at once what it cannot give exactly."""

import contextlib
import re
import time
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_verifiers.tools.calculator import MAX_DEPTH, MAX_LENGTH, calculator, evaluate

EXACT = """
1+2*3 -> 7 | (1+2)*3 -> 9 | 0.1 + 0.2 -> 0.3 | -2**2 -> -4 | 2**3**2 -> 512 | 2^-1 -> 0.5 | --3 -> 3 | 7 // -2 -> -4
10 % 3 -> 1 | 7 % (-3) -> -2 | 50% -> 0.5 | 200*15% -> 30 | 12 × 3 ÷ 4 − 1 -> 8 | 1,234,567 + 1 -> 1234568
(1,000 + 1) -> 1001 | gcd(100,200) -> 100 | max(1, (2,000), 3) -> 2000 | lcm(4, 6) -> 12 | sqrt(16/9) * 3 -> 4
√(4) + √9 -> 5 | 27**(1/3) -> 3 | 5! -> 120 | comb(49, 6) -> 13983816 | round(2.5) + round(-2.5) -> 0
round(1234.567, -2) + round(1.25, 1) -> 1201.3 | floor(-1.5) + ceil(-1.5) + abs(-1) -> -2 | 1e3 -> 1000 | 2 + 3 = -> 5
1/3 + 1/3 + 1/3 == 1 -> true | 2 >= 3 -> false | 1/3 -> 1/3 (about 0.333333333333) | -1/8 -> -0.125
12345678901234567890 * 98765432109876543210 -> 1219326311370217952237463801111263526900
"""
REFUSED = """
too large: 9**9**9 | 2**8193 | (1/2)**99999999999 | 99999! | comb(10**9, 10**6) | 1e99999999999 | 10**2000 * 10**2000
301 digits: 10**300
division by zero: 1/0 | 5 % 0 | 0**-1
no exact value: sqrt(2) | 2**0.3
negative: sqrt(-4)
whole numbers, not 2.5: 2.5!
percent or a remainder: 7 % -3
a comma: 12,34 | 1,2345
not expected after: 1 2
one comparison: 1 < 2 < 3
ends where: 3 +
closing parenthesis: (1 | gcd(4
not expected: 1)
in parentheses: gcd
does not take 1: comb(1)
Did you mean 'sqrt': sqr(4)
nothing to calculate with: 1;2 | ١+١
"""


@pytest.mark.parametrize("case", [case for line in EXACT.strip().splitlines() for case in line.split(" | ")])
def test_answers_are_exact(case):
    expression, _, answer = case.rpartition(" -> ")
    assert calculator(expression) == answer


@pytest.mark.parametrize(
    ("words", "expression"),
    [
        *(
            (line.split(": ")[0], case)
            for line in REFUSED.strip().splitlines()
            for case in line.split(": ")[1].split(" | ")
        ),
        *(("Write \\* between", "2(3)"), ("empty", ""), ("'\"'|nothing to calculate|unknown name", "__import__('os')")),
        *(
            ("deep", "(" * (MAX_DEPTH + 1)),
            ("deep", "2**" * (MAX_DEPTH + 1) + "1"),
            ("characters", "1" * (MAX_LENGTH + 1)),
        ),
    ],
)
def test_what_has_no_exact_answer_is_an_error_that_says_why(words, expression):
    with pytest.raises(ValueError, match=words):
        calculator(expression)


trees = st.recursive(
    st.integers(0, 99).map(str),
    lambda inner: (
        st.tuples(inner, st.sampled_from(["+", "-", "*", "/", "//", "%"]), inner).map(lambda t: f"({' '.join(t)})")
        | inner.map(lambda text: f"(-{text})")
    ),
    max_leaves=8,
)


@settings(max_examples=300, deadline=None)
@given(trees)
def test_values_are_those_of_pythons_fractions(expression):
    try:
        expected = Fraction(eval(re.sub(r"(\d+)", r"Fraction(\1)", expression), {"Fraction": Fraction}))
    except ZeroDivisionError:
        with pytest.raises(ValueError, match="division by zero"):
            evaluate(expression)
    else:
        assert evaluate(expression) == expected


@settings(max_examples=400, deadline=None)
@given(st.text(st.sampled_from("0123456789+-*/%^!().,=<>√ egcdmaxsqrt"), max_size=40) | st.text(max_size=20))
def test_any_text_is_answered_or_refused_with_words(text):
    try:
        said = calculator(text)
    except ValueError as error:
        said = str(error)
    assert 0 < len(said) < 310


@pytest.mark.parametrize(
    "expression",
    [
        "(1/3)" + "**-1**1" * 20,
        "*".join(["(1/7)"] * 350),
        "+".join(["1/997"] * 300),
        "(10**2400/(10**2399+1))" * 1 + "%(1/(10**2300+3))" * 5,
    ],
)
def test_the_dearest_expressions_end(expression):
    started = time.process_time()
    with contextlib.suppress(ValueError):
        calculator(expression)
    assert time.process_time() - started < 60  # a hang, not a pace


def test_digits_of_rounded_decimals_can_be_chosen():
    assert calculator("2/3", digits=4) == "2/3 (about 0.6667)"
    assert calculator("(2/3)**200", digits=3).startswith("about 6.0")
