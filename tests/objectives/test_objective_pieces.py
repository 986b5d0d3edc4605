"""Numbers of the pure pieces: golden tables, brute force in float64, finite differences, masks that really mask."""

import dataclasses
import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_plus.objectives import Counts, TokenBatch, build_objective, objectives, piece_registries
from tests.device import DEVICE
from tests.objectives.on_device import on_device

NO_KL = ("grpo_clip", "target")
STOPPED = ("cispo", "dis", "dppo_tv", "dppo_kl", "fipo", "gspo_token", "vespo")
"""Their weights have no gradient, but would move under a finite difference."""
OF_GROUPS = ("real", "tpo")  # their gradient is that of a whole group's loss: test_groups.py
PRESETS = [entry.name for entry in objectives.entries() if entry.way == "built-in"]


def one_token(pi, pi_old, advantage, pi_ref=None, beta=0.0):
    numbers = (pi, pi_old, 1.0 if pi_ref is None else pi_ref)
    new, old, ref = (torch.tensor([[math.log(each)]], dtype=torch.float64) for each in numbers)
    given = (new.requires_grad_(), old, torch.tensor([[advantage]], dtype=torch.float64), torch.ones(1, 1) > 0)
    return on_device(TokenBatch(*given, Counts(1.0, 1.0, 1.0), ref_logps=None if pi_ref is None else ref, beta=beta))


@pytest.mark.parametrize(("pi_ref", "total"), [(0.5, 0.0144444444), (0.1, -0.0077777778), (1e-50, -0.0133333333)])
def test_gradient_of_clip_and_kl_at_the_boundary(pi_ref, total):
    pi = 0.6 * (1 - 1e-12)  # from below: at the boundary itself the clip is already felt
    batch = one_token(pi, 0.5, 0.01, pi_ref, beta=0.02)
    loss, _ = build_objective("grpo", {"kl": {"unbiased": False}}, beta=0.02).loss(batch)
    loss.backward()
    assert -batch.logps.grad.item() / pi == pytest.approx(total, abs=2e-9)


SMOOTH = [name for name in PRESETS if name not in (*STOPPED, *OF_GROUPS)]
PAIRS = set(itertools.product(SMOOTH, ("k1", "k2", "k3"))) - {("gmpo", "k1")}  # which never multiplies it by the ratio


@pytest.mark.slow
@pytest.mark.parametrize(("name", "estimator"), sorted(PAIRS))
def test_gradients_match_finite_differences(name, estimator, make_batch):
    beta = 0.0 if name in NO_KL else 0.3
    kwargs = {"kl": {"estimator": estimator}} if beta else {}
    objective = build_objective(name, kwargs, beta=beta)
    per_token = not objective.ratio.piece.per_completion and not objective.surrogate.piece.per_completion
    for seed in range(3):
        batch = make_batch(seed=seed, beta=beta, per_token=per_token)
        loss, _ = objective.loss(batch)
        (gradient,) = torch.autograd.grad(loss, batch.logps)
        numeric = torch.zeros_like(gradient)
        for index in range(batch.logps.numel()):
            step = torch.zeros_like(numeric)
            step.view(-1)[index] = 1e-6
            moved = (dataclasses.replace(batch, logps=batch.logps.detach() + sign * step) for sign in (1, -1))
            above, below = (objective.loss(each)[0] for each in moved)
            numeric.view(-1)[index] = (above - below) / 2e-6
        assert torch.allclose(gradient, numeric, atol=1e-8), (seed, (gradient - numeric).abs().max())


@pytest.mark.parametrize("name", [name for name in STOPPED if name != "fipo"])
def test_stopped_gradients_are_weights_of_the_log_probabilities(name, make_batch):
    """The gradient of sg[w]·A·lp is w·A, and that of gspo_token is s·A inside its clip."""
    batch = make_batch(seed=3, spread=0.01)
    loss, _ = build_objective(name, beta=0.0).loss(batch)
    (gradient,) = torch.autograd.grad(loss, batch.logps)
    log_ratio = torch.where(batch.mask, batch.logps.detach() - batch.old_logps, 0.0)
    lengths = batch.mask.sum(-1, keepdim=True).clamp(min=1)
    if name in ("cispo", "dis", "dppo_tv", "dppo_kl"):
        weight, share = log_ratio.exp(), 1 / batch.counts.tokens
    elif name == "vespo":
        s = log_ratio.sum(-1, keepdim=True).exp()
        k, lam = (torch.where(batch.advantages >= 0, *pair) for pair in ((2.0, 3.0), (3.0, 2.0)))
        weight, share = lam.exp() * s**k * torch.exp(-lam * s), 1 / batch.counts.tokens
    else:
        weight, share = (log_ratio.sum(-1, keepdim=True) / lengths).exp(), 1 / (lengths * batch.counts.completions)
    expected = torch.where(batch.mask, -weight * batch.advantages * share, 0.0)
    assert torch.allclose(gradient, expected, atol=1e-7)
    assert gradient.abs().max() > 1e-3


def test_ratios_and_reductions_by_hand(make_batch):
    batch = make_batch(seed=5)
    ratios = {name: piece_registries["ratio"].get(name).fn(batch).detach() for name in piece_registries["ratio"]}
    for row in range(len(batch.mask)):
        kept = batch.mask[row]
        steps = (batch.logps.detach() - batch.old_logps)[row][kept]
        mean = steps.mean() if kept.any() else steps.sum()
        assert torch.allclose(ratios["token"][row][kept], steps.exp())
        assert torch.allclose(ratios["sequence"][row], mean.exp())
        assert torch.allclose(ratios["sequence_token"][row], mean.exp().expand(len(kept)))
        assert torch.allclose(ratios["sequence_sum"][row], steps.sum().exp())
    batch = make_batch(seed=7)
    values = torch.where(batch.mask, torch.rand(batch.mask.shape, dtype=torch.float64).to(DEVICE), 0.0)
    rows = [values[row][batch.mask[row]] for row in range(len(values))]
    means = [row.mean().item() if len(row) else 0.0 for row in rows]
    per_prompt = [torch.cat(rows[0:2]), torch.cat(rows[2:4]), rows[4]]
    expected = {
        "sequence_mean": sum(means) / 5,
        "token_mean": torch.cat(rows).mean().item(),
        "constant": torch.cat(rows).sum().item() / (5 * 6),
        "sequence_sum": sum(row.sum().item() for row in rows) / 5,
        "prompt_mean": sum(tokens.mean().item() for tokens in per_prompt) / 3,
    }
    for name, value in expected.items():
        assert piece_registries["reduce"].get(name).fn(values, batch).item() == pytest.approx(value, abs=1e-12), name
    of_ten = piece_registries["reduce"].get("constant").fn(values, batch, length=10).item()
    assert of_ten == pytest.approx(torch.cat(rows).sum().item() / 50, abs=1e-12)


@pytest.mark.parametrize(
    ("name", "keywords", "cost"), [("ppo_clip", {}, 6.0), ("grpo", {"delta": 4.0}, 8.0)], ids=["dual clip", "delta"]
)
def test_a_cap_bounds_what_a_negative_advantage_can_cost(name, keywords, cost):
    batch = one_token(0.9, 0.1, -2.0)  # ratio 9: without a floor the objective would be -18
    objective = build_objective(name, keywords, beta=0.0)
    loss, unreduced = objective.loss(batch)
    assert loss.item() == pytest.approx(cost)
    assert unreduced.terms.settled.item()
    loss.backward()
    assert batch.logps.grad.item() == 0.0
    assert name == "ppo_clip" or objective.loss(one_token(0.9, 0.3, -2.0))[0].item() == pytest.approx(6)


@pytest.mark.parametrize("name", [name for name in PRESETS if name not in ("gmpo", *OF_GROUPS)])
def test_advantages_behind_the_mask_never_matter(name, make_batch):
    objective = build_objective(name, beta=0.0)
    if objective.ratio.piece.per_completion:
        pytest.skip("one advantage a completion")
    batch = make_batch(seed=11, beta=0.0, per_token=True)
    soiled = dataclasses.replace(batch, advantages=batch.advantages.masked_fill(~batch.mask, float("nan")))
    clean, dirty = (torch.autograd.grad(objective.loss(each)[0], batch.logps)[0] for each in (batch, soiled))
    assert torch.equal(clean, dirty)


@pytest.mark.parametrize("name", PRESETS)
def test_zero_advantage_means_zero_gradient_is_promised_just_where_it_holds(name):
    """That it holds where it is promised is a check of the contract."""
    promised = build_objective(name, beta=0.0).zero_advantage_means_zero_gradient
    assert promised == (name not in ("target", *OF_GROUPS))
    if name not in NO_KL:
        assert not build_objective(name, beta=0.1).zero_advantage_means_zero_gradient
        in_reward = build_objective(name, {"kl": {"placement": "reward"}}, beta=0.1)
        assert in_reward.zero_advantage_means_zero_gradient == promised


def test_gmpo_leaves_unfocused_tokens_out_of_its_mean(make_batch):
    batch = make_batch(seed=23, rows=2, width=4)
    focus = torch.tensor([[True, False, True, False]], device=DEVICE).expand(2, 4)
    values = build_objective("gmpo", beta=0.0).values(dataclasses.replace(batch, focus=focus)).values
    log_ratio = (batch.logps - batch.old_logps).detach()[0]
    clipped = log_ratio.clamp(max=0.4) if batch.advantages[0] > 0 else log_ratio.clamp(min=-0.4)
    expected = -(clipped[[0, 2]].mean().exp() * batch.advantages[0])
    assert torch.allclose(values[0].detach(), expected.expand(4))


@pytest.mark.sample(1)
@settings(max_examples=100, deadline=None)
@given(st.floats(-3, 3), st.floats(-2, 2), st.sampled_from([0.0, 0.3, 0.8, 1.0]), st.sampled_from([0.0, 3.0, 5.0]))
def test_outside_of_its_trust_region_dis_leaves_a_token_out_whatever_its_sign(log_ratio, advantage, low, high):
    batch = one_token(0.4, 0.4 * math.exp(-log_ratio), advantage)
    loss, found = build_objective("dis", {"epsilon_low": low, "epsilon_high": high}, beta=0.0).loss(batch)
    loss.backward()
    ratio = math.exp(batch.log_ratio.item())
    inside = 1 - low <= ratio <= 1 + high
    assert -batch.logps.grad.item() == pytest.approx(ratio * advantage if inside else 0.0, abs=1e-12)
    assert -loss.item() == pytest.approx(ratio * advantage * math.log(0.4) if inside else 0.0, abs=1e-12)
    noted = [found.metrics[f"clip_ratio/{name}_mean"].values.item() for name in ("region", "low", "high")]
    assert noted == [not inside, ratio < 1 - low, ratio > 1 + high]
