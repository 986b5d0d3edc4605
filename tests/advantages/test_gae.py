"""Generalised advantages against a plain double loop, and what must hold of them."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_plus.advantages import RewardTable, get_advantage, register_advantage
from grpo_plus.advantages import advantages as registry
from grpo_plus.testing import check_advantage
from tests.advantages.on_device import compute_advantages

NAN = float("nan")


def by_hand(reward, values, trained, gamma, lam):
    """One completion, term by term: every token sums its own and all later discounted errors."""
    places = [t for t, on in enumerate(trained) if on]
    errors = []
    for i, t in enumerate(places):
        last = i == len(places) - 1
        errors.append((reward if last else 0.0) + gamma * (0.0 if last else values[places[i + 1]]) - values[t])
    got = [0.0] * len(values)
    for i, t in enumerate(places):
        got[t] = sum((gamma * lam) ** (j - i) * errors[j] for j in range(i, len(places)))
    return got


@st.composite
def batches(draw):
    rows, width = draw(st.integers(1, 4)), draw(st.integers(1, 9))
    number = st.floats(-3, 3, allow_nan=False, width=32)
    return {
        "rewards": [draw(st.one_of(st.none(), number)) for _ in range(rows)],
        "values": [[draw(number) for _ in range(width)] for _ in range(rows)],
        "trained": [[draw(st.booleans()) for _ in range(width)] for _ in range(rows)],
        "lengths": [draw(st.integers(0, width)) for _ in range(rows)],
    }


def as_table(drawn):
    return RewardTable(
        rewards=torch.tensor([[NAN if r is None else r] for r in drawn["rewards"]], dtype=torch.float64),
        weights=torch.ones(1, dtype=torch.float64),
        groups=torch.zeros(len(drawn["rewards"]), dtype=torch.long),
        lengths=torch.tensor(drawn["lengths"]),
        extras={"trainable": torch.tensor(drawn["trained"])},
        values=torch.tensor(drawn["values"], dtype=torch.float64),
    )


def expected(drawn, gamma, lam):
    rows = []
    for reward, values, trained, length in zip(*drawn.values(), strict=True):
        on = [t and place < length for place, t in enumerate(trained)]
        rows.append([0.0] * len(values) if reward is None else by_hand(reward, values, on, gamma, lam(sum(on))))
    width = max(drawn["lengths"])
    return torch.tensor([row[:width] for row in rows], dtype=torch.float64).reshape(len(rows), width)


@pytest.mark.sample(1)
@settings(max_examples=150, deadline=None)
@given(drawn=batches(), gamma=st.sampled_from([0.0, 0.5, 0.99, 1.0]), lam=st.sampled_from([0.0, 0.3, 0.95, 1.0]))
def test_every_token_is_that_of_the_double_loop(drawn, gamma, lam):
    keywords = {} if gamma == lam == 1 else {"gamma": gamma, "lam": lam}  # one is the default
    got = compute_advantages("gae", as_table(drawn), **keywords)
    torch.testing.assert_close(got, expected(drawn, gamma, lambda _: lam), atol=1e-12, rtol=1e-12)


@settings(max_examples=80, deadline=None)
@given(drawn=batches(), alpha=st.sampled_from([0.1, 0.5, 2.0]))
def test_a_length_adaptive_lambda_follows_the_trained_tokens_of_each_completion(drawn, alpha):
    got = compute_advantages("gae", as_table(drawn), length_alpha=alpha)
    lam = expected(drawn, 1.0, lambda tokens: min(1.0, max(0.0, 1 - 1 / (alpha * max(tokens, 1)))))
    torch.testing.assert_close(got, lam, atol=1e-12, rtol=1e-12)


def test_whitening_is_over_the_trained_tokens_of_completions_with_a_reward():
    table = RewardTable.of(
        [1, None, 0], values=[[0.5, 0.6, 0.8], [9.0, 9.0], [0.1, 0.2]], extras={"trainable": torch.ones(3, 3) > 0}
    )
    got = compute_advantages("gae", table, lam=0.5, whiten=True)
    live = torch.tensor([[True, True, True], [False, False, False], [True, True, False]])
    assert (got[~live].tolist(), float(got[live].mean())) == ([0, 0, 0, 0], pytest.approx(0, abs=1e-6))
    assert float(got[live].std()) == pytest.approx(1, abs=1e-6)
    plain = compute_advantages("gae", table, lam=0.5)[live]
    torch.testing.assert_close(got[live], (plain - plain.mean()) / plain.std(), atol=1e-6, rtol=1e-6)
    alone = RewardTable.of([None], values=[[9.0, 9.0]])
    assert compute_advantages("gae", alone, whiten=True).tolist() == [[0, 0]]


def test_in_a_mix_it_adds_to_what_a_completion_gets_and_without_values_says_where_they_come_from():
    table = RewardTable.of([1, 0], values=[[0.5, 0.6], [0.5]])
    got = compute_advantages("mix", table, parts={"gae": 1.0, "center": 2.0}, gae={"lam": 0.0})
    torch.testing.assert_close(got, torch.tensor([[1.1, 1.4], [-1.5, 0.0]]))
    with pytest.raises(ValueError, match=r"table\.values is None: set critic"):
        compute_advantages("gae", RewardTable.of([1, 0]))
    with pytest.raises(ValueError, match=r"table\.values is None: set critic"):
        compute_advantages("mix", RewardTable.of([1, 0]), parts={"center": 1.0, "gae": 1.0})


@pytest.mark.parametrize("keywords", [{}, {"lam": 0.5, "gamma": 0.9}, {"length_alpha": 0.5}, {"whiten": True}])
def test_the_contract_holds(keywords):
    check_advantage("gae", **keywords)


@pytest.mark.parametrize(("values", "words"), [
    (torch.zeros(1, 2), r"2 rows of at least 2 tokens, got \(1, 2\)"),
    (torch.zeros(2, 1), r"2 rows of at least 2 tokens, got \(2, 1\)"),
    (torch.zeros(2), "2 dimensions"),
    (torch.tensor([[0.0, NAN], [0.0, 0.0]]), "finite numbers, got nan for token 1 of completion 0"),
    (torch.tensor([[0.0, 0.0], [float("inf"), 0.0]]), "finite numbers, got inf for token 0 of completion 1"),
])  # fmt: skip
def test_values_that_fit_no_table_are_refused(values, words):
    with pytest.raises(ValueError, match=words):
        RewardTable.of([1, 0], lengths=[2, 1], values=values)
    with pytest.raises(ValueError, match="a list of numbers a completion"):
        RewardTable.of([1, 0], values=[0.5, 0.5])


def test_values_where_nothing_trains_may_be_anything_and_an_estimator_of_ones_own_reads_values():
    values = torch.tensor([[0.5, NAN, NAN], [NAN, 0.25, NAN]])
    trained = torch.tensor([[True, False, False], [False, True, False]])
    table = RewardTable.of([1, 0], lengths=[2, 2], values=values, extras={"trainable": trained})
    assert compute_advantages("gae", table).tolist() == [[0.5, 0], [0, -0.25]]
    assert table.to(dtype=torch.float64).values.dtype is torch.float64
    register_advantage("test_below_value", per="token", group_relative=False, reads_values=True)(below_value)
    try:
        assert get_advantage("test_below_value").reads_values
        assert not get_advantage("raw").reads_values
        check_advantage("test_below_value")
        table = RewardTable.of([1, 0], values=[[0.5], [0.25]])
        assert compute_advantages("test_below_value", table).tolist() == [[0], [-0.25]]
    finally:
        registry.unregister("test_below_value")


def below_value(table):
    return (table.totals()[:, None] - table.values[:, : table.width]).clamp(max=0)
