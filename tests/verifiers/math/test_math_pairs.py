r"""Labelled pairs, both ways: notations of plain values, structures, and solved relations, which answers must not restate."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_verifiers import Verdict
from grpo_verifiers.math import check_gold, fast, math
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
    assert check_gold(gold) is None


def late(tables, places):
    """Pairs that are not decided at once, without an algebra system or a worker."""
    every = [pair for place in places for pair in pairs(place, tables)]
    return [pair for pair in every if not isinstance(fast("\\boxed{" + pair[1] + "}", pair[0]), Verdict)]


def test_nearly_all_of_these_are_decided_at_once():
    assert late([LABELLED["notations"], LABELLED["quantities"]], (0, 1)) + late([LABELLED["solved"]], (1,)) == []
    others = ("notations", "quantities", "remarks", "solved", "equivalent")
    structures = [table for name, table in LABELLED.items() if name not in others]
    found = late(structures, (0, 1))
    assert len(found) <= len(pairs(0, structures) + pairs(1, structures)) // 50, found


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
