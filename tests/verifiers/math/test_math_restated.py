"""An answer in two forms, what a question asks for on the left of it, and marks that only change its look."""

import pytest

from grpo_verifiers.math import math


def score(gold, answer):
    return math(f"\\boxed{{{answer}}}", gold).score


@pytest.mark.parametrize(
    "second",
    [r" \text{ or } 0.75", " (0.75)", r" \text{ (or } 0.75)", r",\text{ i.e., }75\%", r"\ (\text{about }0.751)"],
)
def test_one_value_in_two_forms_is_one_answer(second):
    assert score(r"\frac{3}{4}", r"\frac{3}{4}" + second) == 1.0
    assert score(r"\frac{1}{4}", r"\frac{1}{4}" + second) == 0.0


@pytest.mark.parametrize(
    "left", ["m + n", "x^2 + y^2", "100m + n", r"\frac{x+y}{2}", r"\int_0^1 f(x)\,dx", r"\sum_{k=1}^3 a_k"]
)
def test_what_the_question_asks_for_may_stand_on_the_left(left):
    assert score("25", f"{left} = 25") == 1.0
    assert score("25", f"{left} = 26") == 0.0
    assert score("26", f"{left} = 25 = 26") == 0.0


SEVEN = ("O(7)", "f (7)", r"\Gamma(7)", "7 (x)", "7 (8)", "7 or 8", "eight (7)", "x (7)")
WRONG = {
    "a name before brackets says nothing twice": [("7", answer) for answer in SEVEN],
    "an equation in one unknown is no value": [("25", f"{left} = 25") for left in ("2x", "x + 1", "x^2", "x - 3")],
    "a value that is not said to be about the other": [("7", "7 (or 7.0001)"), (r"\frac13", r"\frac13 (or 0.333)")],
    "dots": [("7", "7..."), ("1, 2", "1, 2, ..."), ("2.718", r"2.718\ldots"), ("7", "7..")],
    "a formula of an option": [("B", f"(B){mark}") for mark in ("'", "^2", "+1", "!", "^{-1}", "^*", "_1", "/2")],
}


@pytest.mark.parametrize("why", WRONG)
def test_what_is_another_answer(why):
    assert [(gold, answer) for gold, answer in WRONG[why] if score(gold, answer) != 0.0] == []


def test_a_mixed_number_carries_its_sign_as_a_whole():
    assert score(r"\frac{2}{3}", r"66\frac{2}{3}\%") == 1.0
    assert score("0.44", r"66\frac{2}{3}\%") == 0.0
    assert score(r"22.5^\circ", r"22\frac12^\circ") == 1.0


def test_colours_are_left_out_but_for_what_nobody_sees():
    assert score("7", r"\textcolor{red}{7}") == score("7", r"{\color{blue}7}") == 1.0
    assert score("7", r"\textcolor{white}{7}") == score("7", r"7\color{red}{8}") == 0.0


APPLIED = [
    *("({})'", "[{}]''", "({})^{{(1)}}", r"\Re {}", r"\cancel{{{}}}", r"\bar{{{}}}", r"\nabla {}", "{}_1"),
    r"\partial {}",
]


@pytest.mark.parametrize(
    "gold", ["2x", "x^2+1", r"\frac{x}{3}", r"\sin x", "e^{2x}", r"3\sqrt{x}", "(1,2)", r"\mathbb{R}"]
)
def test_nothing_that_is_done_to_the_whole_is_left_out(gold):
    assert [mark for mark in APPLIED if score(gold, mark.format(gold)) == 1.0] == []


@pytest.mark.parametrize("gold", [r"\mathbb{R}", "(1,2)", r"\text{Monday}", r"\{1,2\}", "B", "[1,2)", "101_2"])
def test_only_values_have_degrees_and_percents(gold):
    assert score(gold, gold + r"^\circ") == score(gold, gold + r"\%") == 0.0
