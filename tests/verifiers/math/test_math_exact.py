"""Exact arithmetic against brute force: numbers against Fraction, expressions against sixty digits and sympy."""

import re
from fractions import Fraction

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from grpo_verifiers import Status
from grpo_verifiers.math import math
from grpo_verifiers.math.compare.leaf import same_value
from grpo_verifiers.math.grammar.parser import parse
from grpo_verifiers.math.options import Options
from grpo_verifiers.math.values.canon import NoFormError, canon, rational, same
from grpo_verifiers.math.values.numeric import agree

LOOSE = Options(evaluated=False, reduced=False, decimals=0, percent="value")
quickly = settings(max_examples=150, deadline=None)
WHOLE = st.integers(-10_000, 10_000)


def digits_of(value):
    """Decimal digits of a fraction whose denominator has no prime but 2 and 5; None for others."""
    for places in range(13):
        scaled = value * 10**places
        if scaled.denominator == 1:
            sign, digits = "-" if scaled < 0 else "", str(abs(scaled.numerator)).rjust(places + 1, "0")
            return sign + (digits if not places else f"{digits[:-places]}.{digits[-places:]}")
    return None


def spellings(value):
    """Ways to write a rational number, each as text."""
    top, bottom = abs(value.numerator), value.denominator
    sign = "-" if value < 0 else ""
    found = [f"{sign}\\frac{{{top}}}{{{bottom}}}", f"{sign}{top}/{bottom}"] if bottom > 1 else [f"{sign}{top}"]
    if bottom == 1:
        found += [f"{sign}{top:,}", f"{sign}{top}.0", f"{sign}{top}.", f"{sign}{top:,}".replace(",", "{,}")]
    if bottom > 1 and top > bottom:
        found += [
            f"{sign}{top // bottom}\\frac{{{top % bottom}}}{{{bottom}}}",
            f"{sign}{top // bottom} {top % bottom}/{bottom}",
        ]
    if (decimal := digits_of(value)) is not None:
        found.append(decimal)
    if (percent := digits_of(value * 100)) is not None:
        found += [f"{percent}\\%", f"{percent} percent"]
    return found


@pytest.mark.slow
@quickly
@given(st.fractions(-1000, 1000, max_denominator=64), st.data())
def test_every_spelling_of_a_number_equals_every_other(value, data):
    gold, answer = (data.draw(st.sampled_from(spellings(value))) for _ in range(2))
    assert math("\\boxed{" + answer + "}", gold).status is Status.CORRECT, (gold, answer)


@pytest.mark.slow
@quickly
@given(st.fractions(-50, 50, max_denominator=20), st.fractions(-50, 50, max_denominator=20), st.data())
def test_two_numbers_are_equal_only_if_they_are(left, right, data):
    gold, answer = (
        data.draw(st.sampled_from([text for text in spellings(side) if "%" not in text and "percent" not in text]))
        for side in (left, right)
    )
    verdict = math("\\boxed{" + answer + "}", gold)
    assert verdict is not None
    assert (verdict.score == 1) == (left == right), (gold, answer, verdict)


@pytest.mark.slow
@quickly
@given(st.fractions(0, 20, max_denominator=40), st.fractions(0, 20, max_denominator=40))
def test_a_percentage_is_its_hundredth_or_a_unit_and_nothing_else(gold, answer):
    percent = digits_of(answer)
    assume(percent is not None)
    verdict = math(f"\\boxed{{{percent}\\%}}", spellings(gold)[0])
    assert (verdict.score == 1) == (gold in {answer, answer / 100})


def written(scaled, places):
    """An integer as a decimal of so many places."""
    digits = str(abs(scaled)).rjust(places + 1, "0")
    return f"{'-' if scaled < 0 else ''}{digits[:-places]}.{digits[-places:]}"


@pytest.mark.slow
@quickly
@given(st.fractions(-100, 100, max_denominator=997), st.integers(1, 12), st.integers(-3, 3))
def test_decimals_of_repeating_fractions_are_rounded_or_cut_to_four_digits_or_more(value, places, shift):
    assume(digits_of(value) is None)
    scaled = value * 10**places
    answer = round(scaled) + shift
    right = answer in {round(scaled), int(scaled)} and abs(answer) >= 1000
    for gold, text in ((spellings(value)[0], written(answer, places)), (written(answer, places), spellings(value)[0])):
        verdict = math("\\boxed{" + text + "}", gold)
        assert (verdict.score == 1) == right, (gold, text)


@pytest.mark.slow
@quickly
@given(
    st.integers(2, 5000), st.integers(1, 13), st.integers(-2, 2), st.sampled_from(["\\sqrt{%d}", "%d\\pi", "\\ln %d"])
)
def test_decimals_of_irrational_values_are_rounded_or_cut_to_four_digits_or_more(number, places, shift, form):
    """Against fifty digits of mpmath."""
    import mpmath

    with mpmath.workdps(50):
        value = {"\\s": mpmath.sqrt, "%d": lambda n: n * mpmath.pi, "\\l": mpmath.log}[form[:2]](number)
        assume(abs(value - mpmath.nint(value)) > 1e-9)  # not the root of a square
        scaled = value * 10**places
        rounded, cut = int(mpmath.nint(scaled)), int(mpmath.floor(scaled))
    answer = rounded + shift
    assume(4 <= len(str(answer)) <= 11)
    text = written(answer, places)
    assert (math("\\boxed{" + text + "}", form % number).score == 1) == (answer in {rounded, cut}), (form, number, text)


EXPRESSIONS = st.recursive(
    st.sampled_from(["2", "3", "5", "12", "x", "y", "\\pi", "e", "i", "0.5", "10", "\\sqrt{2}", "1"]),
    lambda inner: st.one_of(
        st.builds("({}+{})".format, inner, inner),
        st.builds("({}-{})".format, inner, inner),
        st.builds("({}\\cdot {})".format, inner, inner),
        st.builds("\\frac{{{}}}{{{}}}".format, inner, inner),
        st.builds("({})^{{{}}}".format, inner, st.sampled_from(["2", "3", "-1", "1/2", "x"])),
        st.builds("\\sqrt{{{}}}".format, inner),
        st.builds("\\{}({})".format, st.sampled_from(["sin", "cos", "tan", "ln"]), inner),
        st.builds("|{}|".format, inner),
    ),
    max_leaves=6,
)


@pytest.mark.slow
@quickly
@given(EXPRESSIONS, EXPRESSIONS, st.booleans())
@example("\\sin(\\pi)", "x", True)
def test_exact_forms_never_contradict_sixty_digits(left, right, disguised):
    if disguised:  # the same value, written another way
        right = f"\\frac{{({left}) \\cdot ({right}) + ({right})}}{{{right}}} - 1"
    try:
        gold, answer = parse(left), parse(right)
    except ValueError:
        assume(False)
    try:
        decided = same(canon(gold), canon(answer))
    except NoFormError:
        assume(False)
    agreed = agree(gold, answer)
    assert None in (decided, agreed) or decided == agreed, (left, right)


SUMS = st.recursive(
    st.one_of(st.integers(0, 999).map(str), st.decimals(0, 99, places=2).map(str)),
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from(["+", "-", "*", "/", " + ", " - "]), inner).map("".join),
        inner.map(lambda text: f"({text})"),
        inner.map(lambda text: f"-{text}"),
    ),
    max_leaves=5,
)


@quickly
@given(SUMS)
def test_plain_arithmetic_is_that_of_fractions(text):
    """Against Python's own evaluation of the same digits and operators, numbers turned into fractions."""
    try:
        node = parse(text)
    except ValueError:
        assume(False)
    python = re.sub(r"\d+\.?\d*|\.\d+", lambda match: f"Fraction('{match.group()}')", text)
    python = python.replace(")(", ")*(")
    try:
        expected = eval(python, {"Fraction": Fraction})
        value = rational(canon(node))
    except (SyntaxError, TypeError, ZeroDivisionError, ValueError):
        assume(False)
    assume(isinstance(expected, Fraction))
    # a space between an integer and a fraction makes a mixed number, which Python does not know
    assume(not re.search(r"\d\s+\d", text))
    assert value == expected


EQUAL = [
    *((r"\sqrt{8}\sqrt{18}", "12"), (r"\frac{1}{1+\sqrt2}", r"\sqrt2-1"), (r"(1+i)^8", "16"), (r"i^{2026}", "-1")),
    *((r"\sqrt{-4}", "2i"), (r"\frac{x^2-1}{x-1}", "x+1"), (r"(a+b)^5-(a-b)^5", r"2b(5a^4+10a^2b^2+b^4)")),
    *(
        *((r"\sqrt[3]{27}", "3"), (r"8^{2/3}", "4"), (r"\sqrt{10.5}", r"\frac{\sqrt{42}}{2}")),
        (r"\lfloor 7/2 \rfloor", "3"),
    ),
    (r"2^{100}", "1267650600228229401496703205376"),
]
UNEQUAL = [
    *((r"\sqrt2+\sqrt3", r"\sqrt5"), (r"\pi", r"\frac{355}{113}")),
    (r"\sqrt{2}", r"\frac{1414213562373095}{1000000000000000}"),
]


def test_exact_values_are_decided_and_divisions_by_zeros_and_tiny_values_are_not_guessed():
    for zero in [
        *("((\\cos(5)+(2)^{1/2})-(\\cos(5)+(2)^{1/2}))", "(\\sin(3)^2+\\cos(3)^2-1)", "(\\sin(x)^2+\\cos(x)^2-1)"),
    ]:
        for form in ["\\frac{{2 \\cdot {0} + {0}}}{{{0}}} - 1", "(2 \\cdot {0} + {0}) \\cdot ({0})^{{-1}} - 1"]:
            assert agree(parse("2"), parse(form.format(zero))) is None
    for tiny in ("10^{-50}", "\\frac{1}{10^{70}}"):
        assert agree(parse("\\sin(1)"), parse(f"\\frac{{\\sin(1) \\cdot {tiny}}}{{{tiny}}}")) is True
        assert agree(parse("\\sin(1)"), parse(f"\\frac{{\\sin(2) \\cdot {tiny}}}{{{tiny}}}")) is False
    for left, right in EQUAL + UNEQUAL:
        assert same_value(parse(left), parse(right), LOOSE)[0] is ((left, right) in EQUAL)


def test_what_is_decided_exactly_is_what_sympy_says():
    """The classes of expressions that answers are made of, against an independent computer algebra system."""
    import sympy
    from sympy.abc import x, y

    pairs = [
        (r"\frac{3\sqrt{3}}{4}", 3 * sympy.sqrt(3) / 4), (r"\frac{x}{y}+\frac{y}{x}", x / y + y / x), (r"(x+2y)^4", sympy.expand((x + 2 * y) ** 4)), (r"\frac{\sqrt{7}+3i}{2}", (sympy.sqrt(7) + 3 * sympy.I) / 2), (r"\frac{\pi^2}{8}-\frac{e}{3}", sympy.pi**2 / 8 - sympy.E / 3), (r"\binom{12}{5}", sympy.binomial(12, 5)),
    ]  # fmt: skip
    for latex, value in pairs:
        again = sympy.latex(sympy.together(value)).replace("\\left", "").replace("\\right", "")
        assert same_value(parse(latex), parse(again), LOOSE)[0] is True, (latex, again)
        assert same_value(parse(latex), parse(f"{again} + 1"), LOOSE)[0] is False
    assert math(r"\boxed{\frac{\sqrt{7}+3i}{2}}", r"\frac{3i}{2}+\frac{\sqrt7}{2}").score == 1
