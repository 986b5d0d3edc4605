"""The contract of selections: what keeps it, and that each check finds what breaks it."""

import pytest
import torch

from grpo_plus.selection import selections
from grpo_plus.testing import check_selection, parametrize_with_checks
from grpo_plus.testing.selections import KIT

ALL = [
    *[name for name in selections if name != "curriculum"],
    ("contrast", {"power": 0.5, "explore": 0.3, "weighted": False}),
    ("contrast", {"power": 0}),
    ("curriculum", {"column": "difficulty"}),
    ("curriculum", {"column": "difficulty", "start": 1.0}),
]


@parametrize_with_checks(ALL, kind="selection")
def test_built_ins_keep_the_contract(check):
    check()


def nan_before_anything_is_seen(history):
    return history.pass_rates().nan_to_num(1.0) if bool(history.seen.any()) else history.pass_rates()


def changing(history):
    history.counts.add_(1)
    return torch.ones(len(history))


BREAK = {
    "weights": lambda history: torch.ones(len(history)) / (history.num_generations - 2), "empty_history": nan_before_anything_is_seen,
    "leaves_history_alone": changing, "permutes": lambda history: torch.arange(len(history)) + 1.0,
    "deterministic": lambda history: torch.rand(len(history)), "pickles": lambda history: torch.ones(len(history)),
    "unknown_keyword_raises": lambda history, **_: torch.ones(len(history)),
}  # fmt: skip


@pytest.mark.parametrize("name", [check.name for check in KIT.checks])
def test_each_check_finds_what_breaks_it(name):
    with pytest.raises(AssertionError, match=rf"(?m)^{name}: "):
        check_selection(BREAK[name])


def test_a_selection_of_the_wrong_kind_is_refused():
    with pytest.raises(TypeError, match="'dict' is <class 'dict'>, expected a function"):
        check_selection(dict)
