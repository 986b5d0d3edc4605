"""How much work a check is, counted in calls: a trainer waits for thousands of them between two steps."""

import gc
import sys
from collections.abc import Iterator
from itertools import count
from types import FrameType

import pytest

from grpo_verifiers.math import math

_FRESH: Iterator[int] = count(1_000_003, 2)  # numbers that no cache has seen
THOUGHTS = "Let $x_{%d}$ be \\(y^2 - 4y + 3 = 0\\), then \\[\\sum_{k=1}^{9} a_k = 3 \\cdot \\sqrt{5}\\] and 3 + 4 = 7. "
REPEATED, PLAIN, EXPRESSION = 160, 270, 2900
"""Calls of a check whose answer was seen, of one of a new number, and of one of a new expression: measured and a sixth."""


def calls(answer: str, gold: str) -> int:
    """How many functions of Python and C a check of a long completion calls."""
    thoughts = "".join(THOUGHTS % number for number in range(100))
    completion = f"{thoughts}Therefore the final answer is $\\boxed{{{answer}}}$."
    found = 0

    def look(_frame: FrameType, event: str, _argument: object) -> None:
        nonlocal found
        found += event in {"call", "c_call"}

    before = sys.getprofile()
    gc.disable()  # what a collection calls is no work of the check
    sys.setprofile(look)
    try:
        math(completion, gold)
    finally:
        sys.setprofile(before)
        gc.enable()
    return found


@pytest.fixture(autouse=True)
def loaded() -> None:
    for gold in ("7", "x^2+1", "3\\sqrt{2}"):
        math("\\boxed{8}", gold)
        math("\\boxed{1+x}", gold)
        math(f"\\boxed{{{gold}}}", gold)


def test_an_answer_that_was_seen_costs_its_extraction() -> None:
    number = next(_FRESH)
    calls(f"{number}", f"{number + 1}")
    assert calls(f"{number}", f"{number + 1}") <= REPEATED


@pytest.mark.parametrize("form", ["{}", "-{}", "\\frac{{{}}}{{4}}", "{}/4", "0.{}"])
def test_a_plain_number_costs_no_grammar(form: str) -> None:
    gold, wrong = (form.format(next(_FRESH)) for _ in range(2))
    assert calls(gold, gold) <= PLAIN
    assert calls(wrong, gold) <= (EXPRESSION if "." in form else PLAIN)


@pytest.mark.parametrize("form", ["{}x^2+3x-7", "{}\\sqrt{{7}}", "({},\\infty)", "y = {}x + 3", "{}+4i", "{}\\pi"])
def test_an_expression_costs_a_few_walks_over_its_tree(form: str) -> None:
    gold, wrong = (form.format(next(_FRESH)) for _ in range(2))
    assert calls(wrong, gold) <= EXPRESSION
