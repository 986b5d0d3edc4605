"""Remarks around an answer: those of closed lists change nothing, all others make it another answer."""

import pytest

from grpo_verifiers.math import math
from grpo_verifiers.math.grammar.read import read
from grpo_verifiers.math.remarks import MAX_REMARKED, without_remarks


def score(gold, answer):
    return math(f"\\boxed{{{answer}}}", gold).score


@pytest.mark.parametrize(
    "remark",
    ["{} only", "only {}", "{} (only solution)", "{} (the only solution)", r"{}\text{{ (double root)}}", r"{} \blacksquare",
     "John has {} apples", "She makes \\${} every day.", "There are {} students in the class.", r"\${} profit",
     "{} o'clock", r"{}\,\Omega", "{} m", r"\operatorname{{Var}}(X) = {}", r"\max_{{x}} f(x) = {}"],
)  # fmt: skip
def test_a_remark_of_the_lists_changes_nothing_and_hides_nothing(remark):
    assert score("24", remark.format(24)) == 1.0
    assert score("24", remark.format(25)) == 0.0


@pytest.mark.parametrize(
    "answer",
    ["Half is 24", "Wrong is 24", "Twice is 24", "Nobody has 24 apples", "Nothing is 24", "The double is 24",
     "John has twice 24 apples", "John has 24 dozen apples", "John does not have 24 apples", "John has 24 or 25 apples",
     "24 not only", "24 loss", "24 x", "24x", r"\sqrt{\operatorname{Var}(X)} = 24", r"2\operatorname{Var}(X) = 24",
     r"\max_{x} 2f(x) = 24", "24 or 25 only", "24 of the pizza", "24 more"],
)  # fmt: skip
def test_what_is_on_no_list_makes_another_answer(answer):
    assert score("24", answer) == 0.0


def test_a_unit_of_one_letter_is_left_out_only_where_the_gold_has_none():
    assert score("5", "5 m") == 1.0
    assert score(r"5\text{ cm}", "5 m") == 0.0
    assert score(r"5\text{ m}", "5 m") == 1.0


@pytest.mark.sample(12)
@pytest.mark.parametrize(
    ("gold", "right", "wrong"),
    [
        ("Yes", "Yes, it converges", "Yes, it does not converge"),
        ("Yes", "Yes, every time", "Yes, if n is even"),
        ("f(x)=x", r"f(x)=x \text{ for all real } x", r"f(x)=x \text{ for all integers } x"),
        ("No", "No, it is not prime", "No, it is true"),
        ("f(x)=x", r"f(x)=x \text{ for all } x", r"f(x)=x \text{ for all } x > 0"),
        ("f(x)=x", r"f(x)=x \quad \forall x \in \mathbb{R}", r"f(x)=x \text{ for some } x"),
        (r"2\pi k, k\in\mathbb{Z}", r"2\pi n \text{ for integer } n", r"2\pi n \text{ for an odd integer } n"),
        (r"n \ge 3", r"\text{all integers } n \ge 3", r"\text{all even } n \ge 3"),
        (r"(-\infty,\infty)", r"\mathbf{R}", r"\mathbf{S}"),
        ("y=2x+1", "y(x)=2x+1", "y(2)=2x+1"),
        ("(1,2)", r"x=1 \quad y=2", r"x=2 \quad y=1"),
        # a constant of integration has any name and no other place
        ("y=Ce^{2x}", "y=Ke^{2x}", "y=e^{Kx}"),
        ("y=Ce^{2x}", "y(x)=C_1e^{2x}", "y=KAe^{2x}"),
        ("y=C_1e^x+C_2e^{-x}", "y=Ae^x+Be^{-x}", "y=Ae^x+Ae^{-x}"),
        ("y=C_1e^x+C_2e^{-x}", "y=Be^x+Ae^{-x}", "y=Be^x+Ae^{-2x}"),
        (r"y=C_1\cos x+C_2\sin x", r"y=C_1\sin x+C_2\cos x", r"y=C_1\sin x+C_1\cos x"),
        (r"y=\frac{C-Ax}{B}", r"y=\frac{-Ax+C}{B}", r"y=\frac{D-Ax}{B}"),
        (r"U=\frac{C_2}{C_1+C_2}V", r"U=\frac{VC_2}{C_1+C_2}", r"U=\frac{C_1}{C_1+C_2}V"),
        (r"C=2\pi r", r"C=2r\pi", r"A=2\pi r"),
        ("y=x^2+C", "y=C+x^2", "y=x^2+k"),
    ],
)
def test_each_kind_of_gold_has_remarks_and_constants_of_its_own(gold, right, wrong):
    assert score(gold, right) == 1.0
    assert score(gold, wrong) == 0.0


def test_two_cases_that_meet_in_one_value_may_each_own_the_point():
    cases = r"\begin{{cases}} {} & x {} 0 \\ x & x {} 0\end{{cases}}"
    assert score(cases.format(0, "<", r"\ge"), cases.format(0, r"\le", ">")) == 1.0
    assert score(cases.format(1, "<", r"\ge"), cases.format(1, r"\le", ">")) == 0.0
    assert score(cases.format(0, "<", r"\ge"), cases.format(0, "<", ">")) == 0.0


def test_a_long_text_has_no_remarks():
    assert without_remarks("3 only", read("3")) == "3"
    assert without_remarks("3 only" + " " * MAX_REMARKED, read("3")) is None
