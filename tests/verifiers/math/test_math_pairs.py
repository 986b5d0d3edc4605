r"""Labelled pairs, both ways: notations of plain values, structures, and solved relations, which answers must not restate."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_verifiers.math import check_golds, math
from grpo_verifiers.math.grammar.read import read
from grpo_verifiers.math.remarks import MAX_REMARKED, without_remarks
from tests.cases.rows import sections


def tables():
    """By heading and gold: the right answers, and the wrong ones."""
    return {
        heading: {
            gold: [[answer[1:] for answer in answers.split(" ;; ") if answer[0] == mark] for mark in "+-"]
            for gold, _, answers in (row.partition(" :: ") for row in rows if not row.startswith("# "))
        }
        for heading, rows in sections("maths_pairs.txt").items()
    }


LABELLED = tables()
TABLES = list(LABELLED.values())


def pairs(place, tables=TABLES):
    return [(gold, answer) for table in tables for gold, answers in table.items() for answer in answers[place]]


def score(gold, answer):
    return math("\\boxed{" + answer + "}", gold).score


@pytest.mark.sample(600)
@pytest.mark.parametrize(("gold", "answer"), pairs(0))
def test_what_says_the_same_is_right(gold, answer):
    verdict = math("\\boxed{" + answer + "}", gold)
    assert verdict.score == 1, verdict.detail


@pytest.mark.sample(600)
@pytest.mark.parametrize(("gold", "answer"), pairs(1))
def test_what_says_something_else_or_restates_the_question_is_wrong(gold, answer):
    assert score(gold, answer) == 0


@pytest.mark.parametrize("gold", dict.fromkeys(gold for table in TABLES for gold in table))
def test_these_golds_accept_themselves(gold):
    assert check_golds([gold]).ok


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(
    value=st.integers(-50, 50),
    factor=st.integers(-9, 9).filter(lambda factor: factor not in (-1, 0, 1)),
    shift=st.integers(-9, 9).filter(bool),
    op=st.sampled_from(["=", "<", ">", "\\le", "\\ge", "\\ne"]),
    name=st.sampled_from(["x", "t", "n", "\\theta", "x_1"]),
)
def test_whatever_is_done_to_both_sides_makes_it_another_answer(value, factor, shift, op, name):
    flipped = {"<": ">", ">": "<", "\\le": "\\ge", "\\ge": "\\le"}.get(op, op)
    gold = f"{name} {op} {value}"
    assert score(gold, gold) == score(gold, f"{value} {flipped} {name}") == 1
    turned = flipped if factor < 0 else op
    for restated in (
        *(f"{factor}{name} {turned} {factor * value}", f"{name}+{shift} {op} {value + shift}"),
        *(f"{name}-{value} {op} 0", f"{factor}{name}+{shift} {turned} {factor * value + shift}"),
        f"0 {flipped} {name}-{value}",
        f"\\frac{{{name}}}{{{abs(factor) + 1}}} {op} \\frac{{{value}}}{{{abs(factor) + 1}}}",
    ):
        assert score(gold, restated) == 0, restated


def test_remarks_of_the_lists_change_nothing_and_others_make_another_answer():
    for remark in [
        *("{} only", "only {}", "{} (only solution)", "{} (the only solution)", r"{}\text{{ (double root)}}"),
        *(r"{} \blacksquare", "John has {} apples", "She makes \\${} every day."),
        *("There are {} students in the class.", r"\${} profit", "{} o'clock", r"{}\,\Omega", "{} m"),
        *(r"\operatorname{{Var}}(X) = {}", r"\max_{{x}} f(x) = {}"),
    ]:
        assert (score("24", remark.format(24)), score("24", remark.format(25))) == (1.0, 0.0)
    for answer in [
        *("Half is 24", "Wrong is 24", "Twice is 24", "Nobody has 24 apples", "Nothing is 24", "The double is 24"),
        *("John has twice 24 apples", "John has 24 dozen apples", "John does not have 24 apples"),
        *("John has 24 or 25 apples", "24 not only", "24 loss", "24 x", "24x", r"\sqrt{\operatorname{Var}(X)} = 24"),
        *(r"2\operatorname{Var}(X) = 24", r"\max_{x} 2f(x) = 24", "24 or 25 only", "24 of the pizza", "24 more"),
    ]:
        assert score("24", answer) == 0.0
    assert (score("5", "5 m"), score(r"5\text{ cm}", "5 m"), score(r"5\text{ m}", "5 m")) == (1.0, 0.0, 1.0)
    assert without_remarks("3 only", read("3")) == "3"
    assert without_remarks("3 only" + " " * MAX_REMARKED, read("3")) is None
    assert (score(r"\frac{2}{3}", r"66\frac{2}{3}\%"), score("0.44", r"66\frac{2}{3}\%")) == (1.0, 0.0)
    assert score(r"22.5^\circ", r"22\frac12^\circ") == 1.0
    assert score("7", r"\textcolor{red}{7}") == score("7", r"{\color{blue}7}") == 1.0
    assert score("7", r"\textcolor{white}{7}") == score("7", r"7\color{red}{8}") == 0.0


SEVEN = ("O(7)", "f (7)", r"\Gamma(7)", "7 (x)", "7 (8)", "7 or 8", "eight (7)", "x (7)")
OTHER = {
    "a name before brackets says nothing twice": [("7", answer) for answer in SEVEN],
    "an equation in one unknown is no value": [("25", f"{left} = 25") for left in ("2x", "x + 1", "x^2", "x - 3")],
    "a value that is not said to be about the other": [("7", "7 (or 7.0001)"), (r"\frac13", r"\frac13 (or 0.333)")],
    "dots": [("7", "7..."), ("1, 2", "1, 2, ..."), ("2.718", r"2.718\ldots"), ("7", "7..")],
    "a formula of an option": [("B", f"(B){mark}") for mark in ("'", "^2", "+1", "!", "^{-1}", "^*", "_1", "/2")],
}


APPLIED = [
    *("({})'", "[{}]''", "({})^{{(1)}}", r"\Re {}", r"\cancel{{{}}}", r"\bar{{{}}}", r"\nabla {}", "{}_1"),
    r"\partial {}",
]


def test_answers_in_two_forms_left_sides_and_marks_are_judged_as_one_value():
    for second in [
        *(r" \text{ or } 0.75", " (0.75)", r" \text{ (or } 0.75)", r",\text{ i.e., }75\%"),
        r"\ (\text{about }0.751)",
    ]:
        assert score(r"\frac{3}{4}", r"\frac{3}{4}" + second) == 1.0
        assert score(r"\frac{1}{4}", r"\frac{1}{4}" + second) == 0.0
    for left in ["m + n", "x^2 + y^2", "100m + n", r"\frac{x+y}{2}", r"\int_0^1 f(x)\,dx", r"\sum_{k=1}^3 a_k"]:
        assert (score("25", f"{left} = 25"), score("25", f"{left} = 26")) == (1.0, 0.0)
        assert score("26", f"{left} = 25 = 26") == 0.0
    others = [pair for pairs in OTHER.values() for pair in pairs]
    assert [pair for pair in others if score(*pair) != 0.0] == []
    for gold in ["2x", "x^2+1", r"\frac{x}{3}", r"\sin x", "e^{2x}", r"3\sqrt{x}", "(1,2)", r"\mathbb{R}"]:
        assert [mark for mark in APPLIED if score(gold, mark.format(gold)) == 1.0] == []
    for gold in [r"\mathbb{R}", "(1,2)", r"\text{Monday}", r"\{1,2\}", "B", "[1,2)", "101_2"]:
        assert score(gold, gold + r"^\circ") == score(gold, gold + r"\%") == 0.0
