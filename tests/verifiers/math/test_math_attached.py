"""A box that is a part of a formula, or that the text denies, states nothing."""

import pytest

from grpo_verifiers.math import math

PARTS = [
    "$-{}$", "$= -{}$", r"$2 \cdot {}$", r"$\frac{{1}}{{ {} }}$", "${}^2$", r"$\sqrt{{ {} }}$", r"$x \neq {}$", "$x < {}$",
    "$10^{{ {} }}$", "$1{}$", "${}0$", "${} + 1$", "$x + {}$", "${}i$", r"${} \times 10$", "$n! / {}$",
]  # fmt: skip
DENIED = ["Not {}", "It is not ${}$.", "anything but {}", "half of {}", "{} (incorrect)", "{} is wrong"]
AROUND = [
    "{}", "- {}", "* {}", "> {}", "**{}**", "is _{}_", "=> {}", "<b>{}</b>", "${}$ cm", r"${}^\circ$", r"${}^{{\circ}}$",
    "$x = {}$", r"$84/2 = {}$", "1. {}", "so {}!", "x > 3, so {}", "If it does not, then {}", "{}, not 43", "So\n{}\n1 line",
]  # fmt: skip


@pytest.mark.parametrize("text", PARTS + DENIED)
def test_a_part_of_a_formula_is_no_answer(text):
    assert math(text.format(r"\boxed{42}"), "42").score == 0.0


@pytest.mark.parametrize("text", AROUND)
def test_what_only_surrounds_a_box_does_not_count(text):
    assert math(text.format(r"\boxed{42}"), "42").score == 1.0
