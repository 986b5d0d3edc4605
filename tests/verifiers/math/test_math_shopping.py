r"""Two answers in one place never count, whatever a page offers to join them."""

import itertools

import pytest

from grpo_verifiers.math import math

JOINS = [
    ", ", " or ", " and ", r"\text{ or }", r"\text{, }", r"\quad", "\\ ", r"\\", " & ", "; ", "|", r"\mid ", "/", r"\to ", r"\Rightarrow ",
    r"\vee ", r"\lor ", r"\cup ", r"\cap ", " = ", r" \ne ", r"\approx ", r"\in ", r"\pm ", r"\text{ not }", r"\text{ (or }", r"\wedge ",
    r"\mapsto ", r"\iff ", " vs ", r"\sim ", r"\le ", " : ", r"\leftrightarrow ", r"\text{ maybe }", r"\hspace{1cm}", r"\cdots ", r"\ldots ",
    "^", "_", "!", "'", r"\oplus ", r"\circ ", r"\color{white}", "%", "#", r"\&", "\n", "\t", "\u200b", "\u3000", "→", "∨", "·", "•", "⟹", "∪",
]  # fmt: skip
PAIRS = [
    ("42", "41"), (r"\frac{1}{2}", r"\frac{1}{3}"), ("x+1", "x+2"), ("(1,2)", "(3,4)"), ("[0,1)", "[2,3)"), ("C", "D"), (r"3\sqrt{2}", r"2\sqrt{3}"),
    (r"\text{yes}", r"\text{no}"), ("1,2", "3,4"), (r"\{1,2\}", r"\{3\}"), ("y=2x", "y=3x"), ("x>3", "x>4"), (r"\sin x", r"\cos x"), ("52_8", "42"),
    (r"5\text{ cm}", r"6\text{ cm}"), (r"10\%", r"20\%"), ("2+3i", "2-3i"), (r"\infty", "0"), ("1:2", "2:1"),
]  # fmt: skip


@pytest.mark.sample(8)
@pytest.mark.parametrize(("gold", "other"), PAIRS)
def test_no_join_of_the_right_answer_and_another_counts(gold, other):
    accepted = []
    for join, (first, second) in itertools.product(JOINS, ((gold, other), (other, gold))):
        answer = f"{first}{join}{second}"
        if math("\\boxed{" + answer + "}", gold).score != 0:
            accepted.append(answer)
    assert accepted == []


@pytest.mark.parametrize(("gold", "other"), PAIRS)
def test_no_second_statement_beside_the_right_one_counts(gold, other):
    for template in (
        "\\boxed{%s} \\boxed{%s}", "\\boxed{%s} or \\fbox{%s}", "\\boxed{%s} <answer>%s</answer>", "<answer>%s</answer> <answer>%s</answer>",
        "Answer: $%s$\nAnswer: $%s$", "The answer is $%s$. The answer is $%s$.",
    ):  # fmt: skip
        for pair in ((gold, other), (other, gold)):
            assert math(template % pair, gold).score == 0, template % pair
        assert math(template % (gold, gold), gold).score == 1, template
