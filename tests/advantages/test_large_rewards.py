"""Rewards and weights over the whole range of float32: statistics never overflow, and scale where they should."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_plus.advantages import RewardTable, advantage_metrics, advantages, get_advantage
from grpo_plus.training.batch.reward_table import per_completion
from tests.advantages.on_device import compute_advantages
from tests.advantages.test_advantage_references import PLAIN, SCALED, reference

LARGEST = torch.finfo(torch.float32).max
EVERY = [name for name in advantages if name != "mix"]
KEYWORDS = {"process": {"outcome_weight": 1.0}}
NUMBERS = st.floats(-LARGEST, LARGEST, width=32)


@st.composite
def tables(draw):
    count, kinds = draw(st.integers(2, 8)), draw(st.integers(1, 3))
    sizes = st.sampled_from([LARGEST, -LARGEST, 1e38, 0.0, 1.0, 1e-38])
    cell = st.one_of(NUMBERS, sizes, st.just(math.nan))
    scores = [draw(st.one_of(NUMBERS, sizes)) for _ in range(2 * count)]
    return RewardTable.of(
        torch.tensor([[draw(cell) for _ in range(kinds)] for _ in range(count)]),
        weights=torch.tensor([draw(st.one_of(NUMBERS, sizes)) for _ in range(kinds)]),
        groups=[draw(st.integers(0, 1)) for _ in range(count)],
        steps=[[(scores[2 * row], 0, 2, 0), (scores[2 * row + 1], 2, 5, row % 2)] for row in range(count)],
        values=[[draw(st.one_of(NUMBERS, sizes)) for _ in range(5)] for _ in range(count)],
    )


def cells(table):
    columns = {name: getattr(table, name) for name in ("rewards", "weights", "groups", "lengths")}
    return {name: (each.double() if each.is_floating_point() else each).tolist() for name, each in columns.items()}


@pytest.mark.sample(1, 6)
@pytest.mark.parametrize("name", EVERY)
@settings(max_examples=60, deadline=None)
@given(table=tables())
def test_every_estimator_is_finite_over_the_whole_range_of_float32(name, table):
    got = compute_advantages(name, table, **KEYWORDS.get(name, {}))
    assert got.dtype is torch.float32
    assert got.isfinite().all()
    assert per_completion(got, table).isfinite().all()
    assert all(map(math.isfinite, advantage_metrics(get_advantage(name), table, got).values()))
    mixed = compute_advantages("mix", table, parts={name: 1e6, "raw": -1.0}, **{name: KEYWORDS.get(name, {})})
    assert mixed.isfinite().all()


@pytest.mark.sample(1, 6)
@pytest.mark.parametrize("name", SCALED + PLAIN)
@settings(max_examples=60, deadline=None)
@given(table=tables())
def test_every_estimator_is_that_of_exact_numbers_over_the_whole_range_of_float32(name, table):
    drawn = cells(table)
    expected = torch.tensor(reference(name, **drawn), dtype=torch.float64).clamp(-LARGEST, LARGEST)
    got = compute_advantages(name, table).double()
    if name == "sign":  # within rounding of the mean there is no right answer
        assert ((got - expected).abs() <= 1).all()
        return
    largest = max(1.0, float((table.rewards.double().nan_to_num() * table.weights).abs().sum(dim=1).max()))
    slack = 1e-5 if name in (*SCALED, "maxrl", "best_of_n") else 1e-9 * largest
    torch.testing.assert_close(got, expected, atol=slack, rtol=1e-5)


FREE_OF_SCALE = [(name, {"eps": 0.0}) for name in ("zscore", "gdpo", "batch_whiten", "reinforce_pp")]
FREE_OF_SCALE += [("zscore", {"eps": 0.0, "scale": "batch"}), ("process", {"eps": 0.0, "outcome_weight": 0.5})]
FREE_OF_SCALE += [("sign", {"band": 0.25}), ("best_of_n", {}), ("maxrl", {})]


@pytest.mark.sample(3, 8)
@pytest.mark.parametrize(("name", "keywords"), FREE_OF_SCALE)
@pytest.mark.parametrize("exponent", [1, 60, 125])
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_what_has_no_scale_gives_the_same_bits_at_every_scale(name, keywords, exponent, data):
    values = [data.draw(st.sampled_from([0.0, 0.5, 1.0, 2.0, 3.5, -1.0])) for _ in range(7)] + [3.0]
    steps = [[(value, 0, 1), (value / 2, 1, 2)] for value in values]
    groups = [0, 0, 0, 0, 1, 1, 1, 0]
    plain = RewardTable.of([[value, 3 - value] for value in values], groups=groups, weights=[1.0, 0.5], steps=steps)
    grown = [[(score * 2.0**exponent, *span) for score, *span in row] for row in steps]
    large = RewardTable.of(plain.rewards * 2.0**exponent, groups=groups, weights=[1.0, 0.5], steps=grown)
    assert torch.equal(compute_advantages(name, large, **keywords), compute_advantages(name, plain, **keywords))


def test_what_no_float32_holds_is_the_largest_one_and_two_rewards_that_cancel_do_so_exactly():
    got = compute_advantages("rloo", RewardTable.of([LARGEST, -LARGEST]))
    assert got.tolist() == [LARGEST, -LARGEST]
    assert compute_advantages("raw", RewardTable.of([[LARGEST, LARGEST]])).tolist() == [LARGEST]
    exact = compute_advantages("rloo", RewardTable.of(torch.tensor([LARGEST, -LARGEST], dtype=torch.float64)))
    assert exact.tolist() == [2 * LARGEST, -2 * LARGEST]
    table = RewardTable.of([[3e38, 3e38], [3e38, 0.0], [0.0, 0.0]], weights=[2.0, -2.0])
    assert compute_advantages("sign", table).tolist() == [-1, 1, -1]


def test_estimators_of_ones_own_get_float64_and_may_answer_in_float32():
    seen = []

    def mine(table):
        seen.append(table.rewards.dtype)
        out = torch.zeros(len(table.rewards), device=table.rewards.device)
        out[0] = 1.0
        return out

    got = compute_advantages(mine, RewardTable.of([3e38, -3e38]))
    assert seen == [torch.float64]
    assert got.dtype is torch.float32
    assert got.tolist() == [1.0, 0.0]
