r"""Every policy is switched by one option, and only by it."""

import inspect

import pytest

from grpo_verifiers.math import fast, math
from grpo_verifiers.math.options import Options
from grpo_verifiers.options import option_problems

SWITCHED = [
    # option, value, gold, completion, verdict by default, verdict with the option
    ("conflicts", "last", "42", r"\boxed{41} \boxed{42}", 0, 1),
    ("conflicts", "last", "41", r"\boxed{41} \boxed{42}", 0, 0),
    ("conflicts", "last", "42", "Answer: 41\nAnswer: 42", 0, 1),
    ("conflicts", "last", "42", "the answer is 41. Yes: \\boxed{42}", 0, 1),
    ("conflicts", "last", "42", "\\boxed{42} wait, 41", 0, 1),
    ("last_number", True, "42", "it comes to 40 + 2 = 42", 0, 1),
    ("last_number", True, "40", "it comes to 40 + 2 = 42", 0, 0),
    ("last_number", True, "0.25", "that makes 25%", 0, 1),
    ("evaluated", False, "391", r"\boxed{17\times 23}", 0, 1),
    ("evaluated", False, "4", r"\boxed{\sqrt{16}}", 0, 1),
    ("evaluated", False, "252", r"\boxed{\binom{10}{5}}", 0, 1),
    ("evaluated", False, "392", r"\boxed{17\times 23}", 0, 0),
    ("reduced", False, r"\frac12", r"\boxed{\frac{2}{4}}", 0, 1),
    ("units", "ignore", r"5\text{ cm}", r"\boxed{5\text{ m}}", 0, 1),
    ("bases", "ignore", "204_5", r"\boxed{204}", 0, 1),
    ("bases", "ignore", "204_5", r"\boxed{204_6}", 0, 0),
    ("percent", "value", r"10\%", r"\boxed{10}", 1, 0),
    ("percent", "value", r"10\%", r"\boxed{0.1}", 1, 1),
    ("decimals", 0, r"\frac13", r"\boxed{0.3333}", 1, 0),
    ("decimals", 3, r"\frac13", r"\boxed{0.333}", 0, 1),
    ("decimals", 3, r"\frac13", r"\boxed{0.334}", 0, 0),
    ("decimals", 0, r"\frac12", r"\boxed{0.5}", 1, 1),
    ("decimals", 8, "3.1415926535", r"\boxed{3.1415926}", 1, 0),
    ("decimal_comma", False, "1000.99", r"\boxed{1000,99}", 1, 0),
    ("think", "plan", "42", r"<plan>\boxed{41}</plan>\boxed{42}", 0, 1),
    ("think", None, "42", r"<think>\boxed{42}", 0, 1),
]


@pytest.mark.parametrize(("option", "value", "gold", "completion", "before", "after"), SWITCHED)
def test_an_option_switches_its_policy(option, value, gold, completion, before, after):  # noqa: PLR0917 - one row
    assert math(completion, gold).score == before
    assert math(completion, gold, **{option: value}).score == after
    quick = fast(completion, gold, **{option: value})
    assert not hasattr(quick, "score") or quick.score == after


def test_every_option_is_switched_here_and_has_the_same_default_everywhere():
    parameters = inspect.signature(math).parameters.values()
    keywords = {each.name: each.default for each in parameters if each.kind is each.KEYWORD_ONLY}
    assert keywords == vars(Options())
    assert set(keywords) == {row[0] for row in SWITCHED}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"conflicts": "first"}, ["conflicts", "'first'", "'reject', 'last'"]),
        ({"units": True}, ["units", "True", "'match'"]),
        ({"decimals": -1}, ["decimals", "-1", "0"]),
        ({"decimals": True}, ["decimals", "True"]),
        ({"think": "<plan>"}, ["think", "'<plan>'", "without angle brackets"]),
        ({"reduced": "yes"}, ["reduced", "'yes'", "true or false"]),
        ({"last_numbers": True}, ["last_numbers", "Did you mean 'last_number'?"]),
    ],
)
def test_bad_options_are_named_with_what_is_allowed(options, words):
    with pytest.raises((ValueError, TypeError)) as raised:
        fast("", "42", **options)
    skip = ("completion", "answer")
    problems = option_problems("math", math, options, skip=skip, where="option", bare=True)
    assert problems == [str(raised.value)]
    assert all(word in problems[0] for word in words)
    assert option_problems("math", math, {}, skip=skip) == []
