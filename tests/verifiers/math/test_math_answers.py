"""Answers that must count and answers that must not: one line each, joined in pairs, and as parts of a formula."""

import itertools

import pytest

from grpo_verifiers import Status
from grpo_verifiers.math import math
from tests.cases.rows import sections


def stated(mark):
    named = [rows for heading, rows in sections("maths_answers.txt").items() if heading.startswith(mark)]
    return [tuple(row.replace("<br>", "\n").split(" :: ")) for rows in named for row in rows]


ANSWERS_RIGHT = [*stated("right"), ("42", "\\boxed{4\u200b2}"), ("7" * 5000, r"\boxed{" + "7" * 5000 + "}")]
ANSWERS_WRONG = [
    *stated("wrong"),
    *(("42", text) for text in ("\\boxed{\u202e24}", "\\boxed{4\x002}", "\\boxed{\ud800}", "")),
]


@pytest.mark.sample(1)
@pytest.mark.parametrize(("gold", "completion"), ANSWERS_RIGHT)
def test_right_answers_count(gold, completion):
    verdict = math(completion, gold)
    assert (verdict.score, verdict.status) == (1.0, Status.CORRECT), verdict.detail


@pytest.mark.sample(67)
@pytest.mark.parametrize(("gold", "completion"), ANSWERS_WRONG)
def test_wrong_answers_and_tricks_do_not_count(gold, completion):
    verdict = math(completion, gold)
    assert verdict.score == 0.0
    assert verdict.status in {Status.WRONG, Status.UNPARSABLE}
    assert verdict.detail


@pytest.mark.parametrize(
    ("gold", "completion", "status", "reason"),
    [
        ("42", r"\boxed{41}", Status.WRONG, "41 is not 42"),
        ("42", r"\boxed{41=42}", Status.WRONG, "41 is not 42: a false equation"),
        ("42", "no idea", Status.UNPARSABLE, "no answer found"),
        ("42", "<think>hm", Status.UNPARSABLE, "outside the thinking section"),
        ("42", r"\boxed{4", Status.UNPARSABLE, "not closed"),
        ("42", r"\boxed{9^{9^9}}", Status.WRONG, "too large to compute"),
        ("42", r"\boxed{\frac{1}{1-1}}", Status.WRONG, "division by zero"),
        ("1/2", r"\boxed{2/4}", Status.WRONG, "lowest terms"),
        ("391", r"\boxed{17 \cdot 23}", Status.WRONG, "not carried out"),
        (r"5\text{ cm}", r"\boxed{5\text{ kg}}", Status.WRONG, "the unit 'kg' is not 'cm'"),
        (r"5\text{ cm}", r"\boxed{5\text{ m}}", Status.WRONG, "500 is not 5"),
        ("(1,2)", r"\boxed{(1,3)}", Status.WRONG, "3 is not 2"),
        ("42", r"\boxed{1,2}", Status.WRONG, "several answers where one is expected"),
    ],
)  # fmt: skip
def test_verdicts_say_why(gold, completion, status, reason):
    verdict = math(completion, gold)
    assert verdict.status == status
    assert reason in verdict.detail


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
            assert math(template % pair, gold, conflicts="reject").score == 0, template % pair
            assert math(template % pair, gold).score == (pair[1] == gold), template % pair
        assert math(template % (gold, gold), gold).score == 1, template


PARTS = [
    "$-{}$", "$= -{}$", r"$2 \cdot {}$", r"$\frac{{1}}{{ {} }}$", "${}^2$", r"$\sqrt{{ {} }}$", r"$x \neq {}$", "$x < {}$",
    "$10^{{ {} }}$", "$1{}$", "${}0$", "${} + 1$", "$x + {}$", "${}i$", r"${} \times 10$", "$n! / {}$",
]  # fmt: skip
DENIED = ["Not {}", "It is not ${}$.", "anything but {}", "half of {}", "{} (incorrect)", "{} is wrong"]
AROUND = [
    "{}", "- {}", "* {}", "> {}", "**{}**", "is _{}_", "=> {}", "<b>{}</b>", "${}$ cm", r"${}^\circ$", r"${}^{{\circ}}$",
    "$x = {}$", r"$84/2 = {}$", "1. {}", "so {}!", "x > 3, so {}", "If it does not, then {}", "{}, not 43", "So\n{}\n1 line",
]  # fmt: skip


def test_a_box_counts_unless_it_is_part_of_a_formula():
    for text in PARTS + DENIED:
        assert math(text.format(r"\boxed{42}"), "42").score == 0.0
    for text in AROUND:
        assert math(text.format(r"\boxed{42}"), "42").score == 1.0
