"""Golden numbers of estimators beside those of docs/formulas.md, ties, and what TRL's own settings give."""

import math

import pytest
import torch

from grpo_plus.advantages import RewardTable, StepScores, advantages
from tests.advantages.on_device import compute_advantages

ONE_WRONG = [1, 1, 1, 0]
SPREAD = [0, 0.4, 0.5, 0.6, 1]

GOLDEN = [
    *[(ONE_WRONG, "best_of_n", {}, [1, 1, 1, 0]), (ONE_WRONG, "passk", {}, [0, 0, 0, 0])],
    (ONE_WRONG, "gpg", {}, [0.25] * 3 + [-0.75]),
    (ONE_WRONG, "batch_whiten", {}, [0.499900] * 3 + [-1.499700]),
    (ONE_WRONG, "reinforce_pp", {"ddof": 0, "eps": 0}, [[1 / math.sqrt(3)]] * 3 + [[-math.sqrt(3)]]),
    (ONE_WRONG, "gdpo", {"ddof": 0, "eps": 0}, [1 / math.sqrt(3)] * 3 + [-math.sqrt(3)]),
    (SPREAD, "sign", {}, [-1, -1, 0, 1, 1]),
    (SPREAD, "passk", {"k": 1}, [-0.625, -0.125, 0, 0.125, 0.625]),
    ([1] + [0] * 7, "passk", {}, [1] + [-1 / 7] * 7),
    *[([0.6, 0.9, 0.8, 0.9], "sign", {}, [-1, 1, 0, 1]), ([0.3, 0.6, 0.9], "sign", {}, [-1, 0, 1])],
    *[([2, 2, 0], "passk", {}, [0, 0, 0]), ([2, 2, 0], "passk", {"k": 1}, [1, 1, -2])],
    ([1e25, 3e25, 2e25], "zscore", {}, [-1, 1, 0]),  # squares do not overflow
    *[([-1, -1, 0], "maxrl", {}, [0, 0, 0]), ([0.1, 0.2, -0.3], "maxrl", {}, [0, 0, 0])],
]


@pytest.mark.parametrize(("rewards", "name", "keywords", "expected"), GOLDEN)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_one_group(rewards, name, keywords, expected, dtype):
    table = RewardTable.of(torch.tensor(rewards, dtype=dtype))
    got = compute_advantages(name, table, **keywords)
    assert got.dtype is dtype
    torch.testing.assert_close(got, torch.tensor(expected, dtype=dtype), atol=1e-6, rtol=0)


def test_opo_counts_trained_tokens_and_falls_back_to_the_mean_and_gpg_counts_scorable_completions():
    """The second completion is mostly what a tool said; the last one is left out of training altogether."""
    trainable = torch.ones(4, 40, dtype=torch.bool)
    trainable[1, 5:15] = False
    trainable[3] = False
    table = RewardTable.of(ONE_WRONG, lengths=[10, 20, 30, 40], extras={"trainable": trainable})
    same = RewardTable.of(ONE_WRONG, lengths=[10, 10, 30, 0])
    assert compute_advantages("opo", table).tolist() == compute_advantages("opo", same).tolist() == [0, 0, 0, -1]
    got = compute_advantages("opo", RewardTable.of(ONE_WRONG, lengths=[0, 0, 0, 0]))
    torch.testing.assert_close(got, torch.tensor([0.25, 0.25, 0.25, -0.75]))
    table = RewardTable.of([1, 0, None, 1, 1, None], groups=[0, 0, 0, 1, 1, 2])
    assert compute_advantages("gpg", table).tolist() == [1.0, -1.0, 0, 0, 0, 0]


@pytest.mark.parametrize("beta", [0.0, 0.1])
def test_reinforce_pp_is_that_of_verl_and_its_baseline_variant_too(beta):
    """masked_whiten of verl over returns to go of R and -beta·k1, token by token; 54 tokens."""
    lengths, rewards = torch.tensor([2, 4, 40, 8]), torch.tensor([1.0, 0.0, 0.0, 1.0], dtype=torch.float64)
    mask = torch.arange(40) < lengths[:, None]
    penalty = beta * torch.randn(4, 40, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * mask
    scores = -penalty
    scores[range(4), lengths - 1] += rewards

    def white(values):
        return torch.where(mask, (values - values[mask].mean()) * torch.rsqrt(values[mask].var() + 1e-8), 0.0)

    columns = torch.stack([rewards, -penalty.sum(1)], dim=1)
    table = RewardTable.of(columns, lengths=lengths, groups=[0, 0, 1, 1], extras={"penalty": penalty})
    got = compute_advantages("reinforce_pp", table, eps=0.0)
    torch.testing.assert_close(got, white(scores.flip(1).cumsum(1).flip(1)), atol=1e-6, rtol=0)
    if not beta:
        assert got[:, 0].tolist() == pytest.approx([2.08, -0.47, -0.47, 2.08], abs=0.01)
    total = columns.sum(1).view(2, 2)
    baseline = white((total - total.mean(1, keepdim=True)).view(4, 1).expand(4, 40))[:, 0]
    torch.testing.assert_close(compute_advantages("batch_whiten", table, eps=0.0), baseline, atol=1e-6, rtol=0)


RELATIVE = [name for name in advantages if name not in ("raw", "reinforce_pp", "gae", "gigpo", "process", "mix")]


@pytest.mark.parametrize("name", RELATIVE)
@pytest.mark.parametrize(("value", "size"), [(0.1, 7), (1 / 3, 2), (12345.678, 7)])
def test_equal_rewards_are_exactly_zero(name, value, size):
    """Float means of equal rewards are not equal to them; dividing that residue by eps would be an advantage."""
    table = RewardTable.of([value] * size + [0.0, 1.0, 0.5], groups=[1] * size + [2, 2, 2])
    got = compute_advantages(name, table)
    assert got[:size].tolist() == [0.0] * size
    assert got[size:].abs().sum() > 0.5


@pytest.mark.parametrize("name", RELATIVE)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_equal_means_within_a_millionth(name, dtype):
    """Relative to the largest reward of the group, or to 1 where all are smaller."""
    for alike in ([0.0, 5e-7, 1e-7], [1000.0, 1000.0005, 1000.0], [-1000.0, -1000.0005, -1000.0]):
        table = RewardTable.of(torch.tensor(alike, dtype=dtype))
        assert compute_advantages(name, table).tolist() == [0, 0, 0]
    for apart in ([0.0, 2e-6, 1e-7], [1000.0, 1000.01, 1000.0]):
        table = RewardTable.of(torch.tensor(apart, dtype=dtype))
        assert name == "maxrl" or compute_advantages(name, table)[1] > 0


@pytest.mark.parametrize("name", RELATIVE)
def test_rewards_that_sum_to_the_same_are_equal(name):
    """.1 + .2 is .3 only up to rounding. gdpo alone looks at each column, where these differ."""
    got = compute_advantages(name, RewardTable.of([[0.1, 0.2, 0], [0.3, 0, 0], [0.1, 0.1, 0.1]]))
    if name == "gdpo":
        assert got.abs().max() > 0.5
    else:
        assert got.tolist() == [0, 0, 0]


STEPS = StepScores(
    rows=torch.tensor([0, 0, 1, 1, 1]),
    scores=torch.tensor([1.0, 0, 1, 1, 0]),
    spans=torch.tensor([[0, 2], [2, 5], [0, 1], [1, 3], [3, 4]]),
)


def test_mix_adds_up_spreads_completions_onto_tokens_and_discounts_its_step_part():
    table = RewardTable.of([1, 0], lengths=[5, 3], steps=STEPS.select(torch.tensor([1, 1, 1, 1, 0]).bool()))
    flat = compute_advantages("mix", table, parts={"sign": 2.0, "center": -1}, sign={"band": 0.5})
    assert flat.tolist() == [1.5, -1.5]
    got = compute_advantages("mix", table, parts={"sign": 2.0, "process": 0.5}, process={"credit": "return"})
    process = compute_advantages("process", table, credit="return")
    sign = torch.tensor([[2.0] * 5, [-2.0, -2, -2, 0, 0]])
    torch.testing.assert_close(got, sign + 0.5 * process)
    table = RewardTable.of([0, 0], lengths=[5, 5], steps=STEPS)
    part = {"credit": "return", "gamma": 0.5, "ddof": 0, "eps": 0.0}
    got = compute_advantages("mix", table, parts={"sign": 1.0, "process": 2.0}, process=part)
    expected = [[0.4082, 0.4082, -2.4495, -2.4495, -2.4495], [1.8371, 0.4082, 0.4082, -2.4495, 0]]
    torch.testing.assert_close(got, torch.tensor(expected), atol=5e-5, rtol=0)


@pytest.mark.parametrize("offset", [1e4, 1e6])
def test_no_cancellation_far_from_zero(offset):
    """The square of the mean is no substitute for a second pass."""
    rewards = torch.tensor([0.0, 1, 2, 5]) + offset
    expected = compute_advantages("zscore", RewardTable.of(rewards.double() - offset))
    found = compute_advantages("zscore", RewardTable.of(rewards)).double()
    torch.testing.assert_close(found, expected, atol=1e-3, rtol=0)


def trl_default(rewards, weights, size, *, mode):
    """What TRL 1.16 documents for groups of one size, NaN-aware, written out on a (prompt, completion) grid."""

    def deviation(values, dim):
        count = (~values.isnan()).sum(dim, keepdim=True)
        centred = values - values.nanmean(dim, keepdim=True)
        return (centred.square().nansum(dim, keepdim=True) / (count - 1)).sqrt()

    gone = rewards.isnan().all(1)
    if mode == "normalize_then_sum":
        grid = rewards.view(-1, size, rewards.shape[1])
        scaled = (grid - grid.nanmean(1, keepdim=True)) / (deviation(grid, 1) + 1e-4)
        total = (scaled.view_as(rewards) * weights).nansum(1).masked_fill(gone, torch.nan)
        values = (total - total.nanmean()) / (deviation(total, 0) + 1e-4)
    else:
        total = (rewards * weights).nansum(1).masked_fill(gone, torch.nan)
        grid = total.view(-1, size)
        scale = {"group": deviation(grid, 1), "batch": deviation(total, 0)}.get(mode)
        centred = grid - grid.nanmean(1, keepdim=True)
        values = (centred if scale is None else centred / (scale + 1e-4)).flatten()
    return values.nan_to_num(nan=0.0)


OF_TRL = [("group", "zscore"), ("batch", "zscore"), ("none", "center"), ("normalize_then_sum", "gdpo")]


@pytest.mark.parametrize(("mode", "name"), OF_TRL)
@pytest.mark.parametrize("seed", range(5))
def test_defaults_are_trls_numbers(mode, name, seed):
    keywords = {"scale": "batch"} if mode == "batch" else {}
    random = torch.Generator().manual_seed(seed)
    rewards = torch.rand(24, 3, generator=random)
    rewards[torch.rand(24, 3, generator=random) < 0.15] = torch.nan
    rewards[5] = torch.nan
    weights = torch.tensor([1.0, 0.5, 0.0])
    table = RewardTable.of(rewards, weights=weights, groups=torch.arange(24) // 6)
    expected = trl_default(rewards, weights, 6, mode=mode)
    torch.testing.assert_close(compute_advantages(name, table, **keywords), expected, atol=2e-6, rtol=2e-6)
