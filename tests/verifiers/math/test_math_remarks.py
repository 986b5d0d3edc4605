"""Remarks, second forms and marks around an answer: those of closed lists change nothing, all others make it another answer."""

from grpo_verifiers.math import math
from grpo_verifiers.math.grammar.read import read
from grpo_verifiers.math.remarks import MAX_REMARKED, without_remarks


def score(gold, answer):
    return math(f"\\boxed{{{answer}}}", gold).score


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
