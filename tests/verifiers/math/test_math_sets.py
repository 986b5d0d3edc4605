r"""Sets of numbers against membership: random sets in random spellings are equal if the same numbers are in them."""

from fractions import Fraction

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from grpo_verifiers.math import math

quickly = settings(max_examples=200, deadline=None)
# All ends are integers between -3 and 3, so halves between -4 and 4 tell any two sets apart.
GRID = [Fraction(step, 2) for step in range(-8, 9)]
ENDS = st.integers(-3, 3)


@st.composite
def intervals(draw):
    """An interval as a test of membership and in several spellings."""
    low = draw(st.one_of(st.none(), ENDS))
    high = draw(st.one_of(st.none(), st.integers(-3 if low is None else low, 3)))
    left, right = (draw(st.booleans()) and end is not None for end in (low, high))
    if low is not None and low == high:
        left = right = True

    def holds(x):
        return (low is None or x > low or (left and x == low)) and (high is None or x < high or (right and x == high))

    ends = ("-\\infty" if low is None else str(low)), ("\\infty" if high is None else str(high))
    standard = f"{'[' if left else '('}{ends[0]},{ends[1]}{']' if right else ')'}"
    spelled = [standard, f"{'[' if left else ']'}{ends[0]};{ends[1]}{']' if right else '['}"]
    below, above = ("\\le" if left else "<"), ("\\le" if right else "<")
    over, under = ("\\ge " if left else ">"), ("\\ge " if right else ">")
    conditions = []
    if low is not None:
        conditions.append(draw(st.sampled_from([f"{low}{below} x", f"x{over}{low}"])))
    if high is not None:
        conditions.append(draw(st.sampled_from([f"x{above} {high}", f"{high}{under}x"])))
    condition = draw(st.sampled_from([" \\text{ and } ", " \\land ", " \\wedge "])).join(conditions)
    if low is not None and high is not None:
        spelled.append(f"{low}{below} x{above} {high}")
    if conditions and low != high:
        spelled += [condition, f"\\{{x \\mid {condition}\\}}", f"\\{{x\\in\\mathbb{{R}} : {condition}\\}}"]
    return holds, standard, spelled


UNIONS = st.lists(intervals(), min_size=1, max_size=3)


def members(holds):
    return [any(each(x) for each in holds) for x in GRID]


def joined(parts):
    return "\\cup ".join(standard for _, standard, _ in parts)


@pytest.mark.slow
@quickly
@given(UNIONS, UNIONS)
def test_unions_are_equal_if_the_same_numbers_are_in_them(left, right):
    """``(1, 2)`` alone may be a point, so that a sign of union stands on every side."""
    texts = [joined(parts) + "\\cup\\emptyset" if len(parts) == 1 else joined(parts) for parts in (left, right)]
    verdict = math("\\boxed{" + texts[1] + "}", texts[0])
    same = members([part[0] for part in left]) == members([part[0] for part in right])
    assert (verdict.score == 1) == same, texts


@pytest.mark.slow
@quickly
@given(intervals(), intervals(), st.data())
def test_an_interval_is_right_in_all_its_spellings_and_in_no_others(gold, answer, data):
    text = data.draw(st.sampled_from(answer[2]))
    verdict = math("\\boxed{" + text + "}", gold[1] + "\\cup\\emptyset")
    assert (verdict.score == 1) == (members([gold[0]]) == members([answer[0]])), (gold[1], text)


@pytest.mark.slow
@quickly
@given(intervals(), intervals(), st.sampled_from(["and", "or"]), st.sampled_from(["\\cap", "\\cup"]))
def test_and_is_an_intersection_and_or_is_a_union(first, second, word, sign):
    """A condition that changes nothing is a second answer in disguise, and wrong."""
    found = [spelled[-1].partition(" : ")[2].removesuffix("\\}") for _, _, spelled in (first, second)]
    assume(all(found))
    text, gold = f"({found[0]}) \\text{{ {word} }} ({found[1]})", f"{first[1]}{sign} {second[1]}"
    combine = {"and": all, "\\cap": all, "or": any, "\\cup": any}
    said, meant = ([combine[way]((first[0](x), second[0](x))) for x in GRID] for way in (word, sign))
    redundant = said in (members([first[0]]), members([second[0]]))
    assert (math("\\boxed{" + text + "}", gold).score == 1) == (said == meant and not redundant), (gold, text)


@pytest.mark.slow
@quickly
@given(ENDS, ENDS.filter(bool), st.integers(-3, 3), st.sampled_from(["<", ">", "\\le", "\\ge"]))
def test_a_set_by_a_linear_form_holds_its_images(end, slope, shift, op):
    """``{ax + b | x > c}`` against the end of its image, on the side that the slope says."""
    text = f"\\{{{slope}x{shift:+}\\mid x{op} {end}\\}}"
    image = slope * end + shift
    flipped = {"<": ">", ">": "<", "\\le": "\\ge", "\\ge": "\\le"}[op] if slope < 0 else op
    for sign in ("<", ">", "\\le", "\\ge"):
        for value in {image, end, image + 1}:
            right = (sign, value) == (flipped, image)
            assert (math("\\boxed{" + text + "}", f"x{sign} {value}").score == 1) == right, (text, sign, value)


def test_ends_beyond_all_floats_are_no_error():
    assert getattr(math(r"\boxed{(9^{999},9^{1200})\cup(1,2)}", r"(1,2)\cup(3,4)"), "score", 0) == 0
    assert math(r"\boxed{x>9^{999}}", r"(9^{999},\infty)").score == 1
