"""Short ways of the math verifier give what the long ways give: plain numbers, one walk over a tree, marks in a text."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo_verifiers.math.compare.leaf import exact_value, same_value, unequal_numbers
from grpo_verifiers.math.grammar.parser import parse
from grpo_verifiers.math.grammar.read import notation, plain, read
from grpo_verifiers.math.grammar.tokens import ParseError
from grpo_verifiers.math.options import Options
from grpo_verifiers.math.tree import survey, walk

DIGITS = st.text("0123456789", min_size=1, max_size=42)
NUMBERS = st.one_of(
    st.tuples(DIGITS).map(lambda parts: parts[0]),
    st.tuples(DIGITS, st.sampled_from([".", "/", ",", " ", "//", "^"]), DIGITS).map("".join),
    st.tuples(st.sampled_from(["\\frac", "\\dfrac", "\\tfrac", "\\cfrac"]), DIGITS, DIGITS).map(
        lambda parts: f"{parts[0]}{{{parts[1]}}}{{{parts[2]}}}"
    ),
    st.text("0123456789./-{}\\frac ", max_size=12),
)
PLAIN = st.tuples(st.sampled_from(["", "-", "--", "+"]), NUMBERS).map("".join)
EXPRESSIONS = st.sampled_from([
    "x+1", "\\sqrt{2}", "(1,2)", "3\\%", "\\pm 3", "2\\pi", "x=3", "\\text{ cm}", "f(x, y)", "\\log_{10} 3", "\\infty", "\\begin{pmatrix}1\\\\2\\end{pmatrix}", "[1,2)\\cup(3,4]", "5\\text{ km}", "30^\\circ", "C+x", "1,2,3", "\\{1,2\\}",
])  # fmt: skip


@pytest.mark.slow
@given(st.fractions(), st.fractions())
def test_fractions_are_told_apart_exactly_where_their_values_differ(left: Fraction, right: Fraction) -> None:
    gold, answer = (parse(f"\\frac{{{side.numerator}}}{{{side.denominator}}}") for side in (left, right))
    if left >= 0 and right >= 0:
        assert (exact_value(gold), exact_value(answer)) == (left, right)
        assert (unequal_numbers(gold, answer) is not None) == (left != right)


@given(PLAIN)
def test_a_plain_number_gets_the_tree_that_the_grammar_gives_it(text: str) -> None:
    node = plain(text)
    if node is None:
        return
    assert notation(text) is None
    assert node == parse(text) == read(text)


def test_plain_numbers_are_read_and_others_left_to_the_grammar():
    for text in ["7", "-7", "007", "0.50", "-3/4", "\\frac{6}{8}", "-\\dfrac{1}{2}", "5/0", "0"]:
        assert plain(text) == parse(text)
    for text in ["", "1,000", "+7", "--7", "1.", ".5", "7.", "\\frac34", "\\frac{-1}{2}", "٣", "1/2/3", "²"]:
        assert plain(text) is None


@given(PLAIN, PLAIN, st.sampled_from([Options(), Options(decimals=1), Options(evaluated=False, reduced=False)]))
def test_plain_numbers_told_apart_get_the_verdict_and_the_reason_of_canonical_forms(
    gold: str, answer: str, options: Options
) -> None:
    try:
        left, right = parse(gold), parse(answer)
    except ParseError:
        return
    found = unequal_numbers(left, right)
    if found is not None:
        assert found == same_value(left, right, options)


@given(st.lists(EXPRESSIONS, min_size=1, max_size=3).map(" , ".join))
def test_a_survey_says_what_walks_say(text: str) -> None:
    try:
        node = read(text)
    except ParseError:
        return
    found, nodes = survey(node), list(walk(node))
    assert found.kinds == {top[0] for top in nodes}
    assert found.variables == {top[1] for top in nodes if top[0] == "v"}
