"""Shares: the weight of each row, in every objective, in the counts, and in what a run measures."""

import dataclasses

import pytest
import torch

from grpo_plus.objectives import build_objective, objectives
from grpo_plus.objectives.batch import Metric
from grpo_plus.objectives.registry import register_objective
from grpo_plus.objectives.schedule import parse_schedule
from grpo_plus.testing import check_objective
from grpo_plus.training.update.loss import EntropyWindow, KLCoefficient
from grpo_plus.training.update.minibatch import add_counts, add_targets, reduce_metrics, window_counts
from tests.device import DEVICE

NO_KL = {"grpo_clip", "target"}
BUILT_IN = sorted(entry.name for entry in objectives.entries() if entry.way == "built-in")
SHARES = torch.tensor([2.0, 1.0, 0.0, 0.5, 3.0], dtype=torch.float64, device=DEVICE)


def gradient(name, batch, **keywords):
    objective = build_objective(name, keywords, beta=0.0 if name in NO_KL else 0.1)
    loss, unreduced = objective.loss(batch)
    return torch.autograd.grad(loss, batch.logps)[0], unreduced


@pytest.mark.parametrize("name", BUILT_IN)
def test_shares_of_one_are_no_shares_to_the_bit(name, make_batch):
    batch = make_batch(beta=0.0 if name in NO_KL else 0.1)
    plain, _ = gradient(name, batch)
    ones, _ = gradient(name, dataclasses.replace(batch, share=torch.ones_like(SHARES)))
    assert plain.any()
    assert torch.equal(plain, ones)


def largest(values, batch):
    return values.sum(-1).square().sum() / batch.counts.completions


def test_the_contract_finds_a_reduction_that_a_share_does_not_weigh():
    register_objective("kit_largest", kind="reduce")(largest)
    with pytest.raises(AssertionError, match="the gradient of rows with shares"):
        check_objective("grpo", reduce="kit_largest")


def generation_batch(**fields):
    """Two groups of the same prompt, two completions each, of 3, 1, 2 and 2 tokens."""
    mask = torch.tensor([[1, 1, 1], [1, 0, 0], [1, 1, 0], [1, 1, 0]])
    batch = {
        "prompt_ids": torch.full((4, 2), 7), "prompt_mask": torch.ones(4, 2, dtype=torch.long),
        "completion_ids": torch.tensor([[1, 2, 3], [1, 0, 0], [1, 2, 0], [4, 2, 0]]),
        "completion_mask": mask, "advantages": torch.tensor([1.0, -1.0, 1.0, -1.0]),
        "old_per_token_logps": torch.full((4, 3), -0.5), "num_items_in_batch": mask.sum(), **fields,
    }  # fmt: skip
    return {name: column.to(DEVICE) for name, column in batch.items()}


def counted(**fields):
    output = generation_batch(**fields)
    prompts_N = add_counts(output, torch.tensor([0, 0, 1, 1], device=DEVICE), rank=0, gather=lambda tensor: tensor)
    return output, prompts_N


def counts_of(output):
    counts = window_counts(output, rows=4, processes=1, training=True, accumulation=1, steps_per_generation=1)
    return [float(counts.completions), float(counts.tokens), float(counts.prompts)]


def test_token_divisors_count_shares_constant_ones_do_not_and_a_prompt_drawn_twice_counts_twice():
    assert counts_of(counted()[0]) == [4, 8, 1]
    shared, _ = counted(share=torch.tensor([2.0, 2.0, 0.25, 0.25]))
    assert counts_of(shared) == [4, 2 * 4 + 0.25 * 4, 2]
    assert shared["prompt_tokens"].tolist() == [4, 4, 4, 4]
    small, _ = counted(share=torch.full((4,), 0.05))
    assert counts_of(small)[1] == pytest.approx(0.4)  # a divisor below 1 is one
    stopped, _ = counted(share=torch.zeros(4))
    assert counts_of(stopped) == [4, 1, 2]
    assert counted()[1].tolist() == [0, 0, 0, 0]
    (first, _, second, _) = counted(share=torch.ones(4))[1].tolist()
    assert first != second


def test_the_divisor_of_target_counts_shares_of_its_nodes():
    def total(**fields):
        output, prompts_N = counted(**fields)
        add_targets(output, prompts_N, rank=0, gather=lambda tensor: tensor, keywords={})
        return output

    plain, apart = total(), total(share=torch.ones(4))
    assert plain["target_weight_sum"] == 5  # the nodes 1, 12, 123, 4, 42
    assert apart["target_weight_sum"] == 6  # 12 and 123 of the first group, where 1 nets out; 1, 12, 4, 42
    shared = total(share=torch.tensor([3.0, 3.0, 0.0, 0.0]))
    assert shared["target_weight_sum"] == 3 * apart["target_weights"][:2].sum()
    assert not shared["target_sign"][2:].any()


@pytest.mark.parametrize(("share", "said"), [
    (torch.tensor([1.0, float("nan"), 1, 1]), "a share ('share') of nan, expected 0 or more, finite"),
    (torch.tensor([1.0, -2.0, 1, 1]), "a share ('share') of -2, expected 0 or more"),
    (torch.tensor([1.0, float("inf"), 1, 1]), "a share ('share') of inf"),
    (torch.ones(3), "torch.float32 of shape (3,), expected floats (4,)"),
    (torch.ones(4, 1), "of shape (4, 1), expected floats (4,)"),
    (torch.ones(4, dtype=torch.long), "torch.int64 of shape (4,), expected floats"),
])  # fmt: skip
def test_shares_that_are_no_weights_are_refused(share, said):
    with pytest.raises(ValueError, match="share") as caught:
        counted(share=share)
    assert said in str(caught.value)


def test_what_steers_a_run_follows_shares_and_what_is_logged_leaves_out_rows_without_one(device):
    values = torch.tensor([[1.0, 2.0], [5.0, 0.0], [9.0, 9.0]], device=device)
    share = torch.tensor([2.0, 0.5, 0.0], device=device)
    mask = torch.tensor([[True, True], [True, False], [False, False]], device=device)
    window = EntropyWindow()
    window.observe(values, mask, share)
    assert window.close(lambda tensor: tensor) == pytest.approx((2 * 3 + 0.5 * 5) / (2 * 2 + 0.5))
    schedule, _ = parse_schedule({"name": "adaptive", "target": 0.1})
    coefficient = KLCoefficient(0.1, schedule, lambda tensor: tensor)
    coefficient.observe(values, mask, share)
    coefficient.move()
    assert coefficient.beta == schedule.after(0.1, 8.5 / 4.5)
    metrics = {"kl": Metric(values), "ratio": Metric(values[:, :1]), "low": Metric(-values[:, :1], "min")}
    found = reduce_metrics(metrics, mask, total=lambda t: t, gather=lambda t: t, share=share)
    assert found == {"kl": pytest.approx(8 / 3), "ratio": 3, "low": -5}
