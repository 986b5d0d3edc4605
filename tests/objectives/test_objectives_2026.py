"""The objectives of 2026 against their formulas, written once more in plain Python, and against finite differences."""

import dataclasses
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_plus.objectives import Counts, TokenBatch, build_objective
from grpo_plus.objectives.compose import compose_objective
from grpo_plus.objectives.dppo import _log_rest
from grpo_plus.objectives.fipo import discounted_ahead
from tests.device import DEVICE
from tests.objectives.on_device import on_device


def tokens(new, old, advantages, **fields):
    """One completion of tokens of these probabilities."""
    new, old, advantages = (torch.tensor([each], dtype=torch.float64) for each in (new, old, advantages))
    counts = Counts(1.0, float(new.numel()), 1.0)
    return on_device(TokenBatch(new.log().requires_grad_(), old.log(), advantages, new > 0, counts, **fields))


def gradient_of(objective, batch):
    loss, unreduced = objective.loss(batch)
    return torch.autograd.grad(loss, batch.logps)[0], unreduced


def moved_too_far(kind, limit, old, new, advantage):
    if kind == "tv":
        distance = abs(new - old)
    else:
        distance = old * math.log(old / new) + (1 - old) * math.log((1 - old) / (1 - new))
    return distance > limit and (advantage > 0 if new > old else advantage < 0)


@pytest.mark.sample(1)
@pytest.mark.parametrize("kind", ["tv", "kl"])
@settings(max_examples=150, deadline=None)
@given(
    old=st.floats(1e-6, 1 - 1e-6), new=st.floats(1e-6, 1 - 1e-6), advantage=st.floats(-2, 2),
    bounds=st.tuples(st.sampled_from([0.01, 0.05, 0.2, 0.6]), st.sampled_from([0.5, 2.0, 20.0])),
)  # fmt: skip
def test_dppo_leaves_out_what_moved_too_far_and_weighs_the_rest(kind, old, new, advantage, bounds):
    limit, cap = bounds
    objective = build_objective(f"dppo_{kind}", {f"max_{kind}": limit, "ratio_max": cap}, beta=0.0)
    batch = tokens([new], [old], [advantage])
    gradient, unreduced = gradient_of(objective, batch)
    out = moved_too_far(kind, limit, old, new, advantage)
    weight = 0.0 if out else min(new / old, cap)
    assert -gradient.item() == pytest.approx(weight * advantage, rel=1e-9, abs=1e-12)
    assert -unreduced.values.item() == pytest.approx(weight * advantage * math.log(new), rel=1e-9, abs=1e-12)
    noted = [unreduced.metrics[f"clip_ratio/{name}_mean"].values.item() for name in ("region", "low")]
    assert [*noted, unreduced.terms.settled.item()] == [out, out and advantage < 0, out]


def test_a_token_that_moved_by_just_the_limit_is_within_it():
    batch = tokens([0.75], [0.5], [1.0])
    new, old = batch.logps.detach(), batch.old_logps
    kl = old.exp() * (old - new) + (1 - old.exp()) * (_log_rest(old) - _log_rest(new))
    for kind, limit in (("tv", (new.exp() - old.exp()).item()), ("kl", kl.item())):
        for bound, out in ((limit, False), (math.nextafter(limit, 0), True)):
            gradient, _ = gradient_of(build_objective(f"dppo_{kind}", {f"max_{kind}": bound}, beta=0.0), batch)
            assert (gradient.item() == 0) is out


@pytest.mark.parametrize("name", ["dppo_tv", "dppo_kl"])
def test_dppo_moves_a_rare_token_further_than_a_clip_and_a_likely_one_less(name):
    rare, likely = ([0.004], [0.002], [1.0]), ([0.6], [0.85], [-1.0])
    clip, dppo = build_objective("dapo", beta=0.0), build_objective(name, beta=0.0)
    assert gradient_of(clip, tokens(*rare))[0].item() == 0
    assert gradient_of(dppo, tokens(*rare))[0].item() == pytest.approx(-2.0)
    likely_clipped = tokens([0.7], [0.85], [-1.0])
    assert gradient_of(clip, likely_clipped)[0].item() > 0.8
    assert gradient_of(dppo, tokens(*likely))[0].item() == 0


CHANCE, SIZE = st.floats(1e-4, 1), st.floats(-2, 2)
LOW, DUAL = st.sampled_from([0.0, 0.2, 0.9]), st.sampled_from([None, 1.5, 4.0])


@pytest.mark.parametrize("name", ["dppo_tv", "dppo_kl", "dis"])
def test_the_distance_moved_is_measured_from_the_sampler_that_drew(name, make_batch):
    """Weights of tokens go into the ratio, those of completions stay outside."""
    objective = build_objective(name, {"epsilon_low": 0.3, "epsilon_high": 0.4} if name == "dis" else {}, beta=0.0)
    batch = make_batch(seed=9, spread=0.4)
    weights = torch.rand(batch.mask.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1)) + 0.5
    weights = weights.to(DEVICE)
    shifted = dataclasses.replace(batch, old_logps=batch.old_logps - weights.log())
    inside = objective.values(dataclasses.replace(batch, weights=weights))
    assert torch.allclose(inside.values, objective.values(shifted).values)
    assert not torch.allclose(inside.values, objective.values(batch).values * weights)
    assert name == "dis" or inside.terms.settled[batch.mask].any()
    outside = objective.values(dataclasses.replace(batch, weights=weights[:, :1])).values
    assert torch.allclose(outside, objective.values(batch).values * weights[:, :1])
    dropped = objective.values(dataclasses.replace(batch, weights=torch.zeros_like(weights))).values
    assert name == "dis" or (dropped == 0).all()


@pytest.mark.sample(1)
@settings(max_examples=150, deadline=None)
@given(old=CHANCE, new=CHANCE, advantage=SIZE, low=LOW, dual=DUAL)
def test_up_pulls_good_tokens_without_a_ratio_and_clips_the_others(old, new, advantage, low, dual):
    batch = tokens([new], [old], [advantage])
    gradient, unreduced = gradient_of(build_objective("up", {"epsilon_low": low, "dual": dual}, beta=0.0), batch)
    ratio = batch.log_ratio.exp().item()
    if advantage > 0:
        value, slope = advantage * math.log(new), advantage
    else:
        value, slope = max(ratio, 1 - low) * advantage, ratio * advantage * (ratio >= 1 - low)
        if dual is not None and ratio > dual:
            value, slope = dual * advantage, 0.0
    assert -unreduced.values.item() == pytest.approx(value, rel=1e-9, abs=1e-12)
    if abs(ratio - (1 - low)) > 1e-9:
        assert -gradient.item() == pytest.approx(slope, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize(("name", "other"), [("up", "grpo"), ("fipo", "dapo")])
def test_on_policy_the_gradient_is_that_of_the_objective_it_changes(name, other, make_batch):
    batch = make_batch(seed=4, beta=0.0)
    batch = dataclasses.replace(batch, old_logps=batch.logps.detach())
    ours, theirs = (gradient_of(build_objective(each, beta=0.0), batch)[0] for each in (name, other))
    assert torch.allclose(ours, theirs, atol=1e-15)
    assert ours.abs().sum() > 0


def influence_of(moved, keywords):
    """f_t of each token of a completion, in plain Python."""
    gamma = 2 ** (-1 / keywords.get("half_life", 32.0))
    dual, safety = keywords.get("dual", 10.0), keywords.get("safety", 4.0)
    low, high = 1 - keywords.get("influence_low", 0.0), 1 + keywords.get("influence", 0.2)
    counted = [0.0 if dual is not None and math.exp(x) > dual else x for x in moved]
    weights = []
    for t in range(len(moved)):
        future = sum(gamma ** (k - t) * counted[k] for k in range(t, len(moved)))
        weights.append(min(max(math.exp(future), low), high))
    return weights, safety


FIPO = [{}, {"half_life": 1.5, "influence": 0.7}, {"influence_low": 0.3, "dual": None}, {"dual": 1.2, "safety": 1.1},
        {"dual": 1.2, "dual_most": 0}, {"dual": 1.2, "dual_most": None}]  # fmt: skip


@pytest.mark.parametrize("keywords", [*FIPO, {"influence": 0.0}])
def test_fipo_weighs_tokens_by_their_future_and_does_not_learn_through_the_weight(keywords, make_batch):
    objective = build_objective("fipo", keywords, beta=0.0)
    seen = left_out = 0
    for seed in range(4):
        batch = make_batch(seed=seed, beta=0.0, width=9)
        gradient, unreduced = gradient_of(objective, batch)

        def value(row, token, logp, weight, batch=batch):
            advantage = batch.advantages[row, 0].item() * weight
            ratio = math.exp(logp - batch.old_logps[row, token].item())
            clipped = min(max(ratio, 0.8), 1.28)
            value = min(ratio * advantage, clipped * advantage)
            dual = keywords.get("dual", 10.0)
            return max(value, dual * advantage) if dual is not None and advantage < 0 else value

        for row in range(len(batch.mask)):
            length = int(batch.mask[row].sum())
            moved = batch.log_ratio[row, :length].tolist()
            weights, safety = influence_of(moved, keywords)
            dual, most = keywords.get("dual", 10.0), keywords.get("dual_most", 1)
            runaways = sum(math.exp(one) > (dual or math.inf) for one in moved) if batch.advantages[row, 0] < 0 else 0
            out = most is not None and runaways > most
            left_out += out
            for token in range(length):
                weight = weights[token]
                if batch.advantages[row, 0] < 0 and math.exp(moved[token]) > safety:
                    weight = min(weight, 1.0)
                logp = batch.logps[row, token].item()
                there = value(row, token, logp, weight)
                assert -unreduced.values[row, token].item() == pytest.approx(0 if out else there, abs=1e-12)
                slope = (
                    0
                    if out
                    else (value(row, token, logp + 1e-6, weight) - value(row, token, logp - 1e-6, weight)) / 2e-6
                )
                assert -gradient[row, token].item() * batch.counts.tokens == pytest.approx(slope, abs=1e-7)
                assert unreduced.metrics["fipo/influence"].values[row, token].item() == pytest.approx(weight)
                seen += weight != 1
    assert (seen > 0) == (keywords.get("influence", 1) > 0)
    assert (left_out > 0) == (keywords.get("dual") == 1.2 and keywords.get("dual_most", 1) is not None)


@pytest.mark.parametrize("width", [1, 2, 7, 8, 100])
def test_the_discounted_sum_ahead_is_that_of_a_loop(width):
    values = torch.randn(2, width, dtype=torch.float64, generator=torch.Generator().manual_seed(width)).to(DEVICE)
    for discount in (0.0, 0.5, 2 ** (-1 / 32), 1.0):
        ahead = [sum(discount ** (k - t) * values[:, k] for k in range(t, width)) for t in range(width)]
        assert torch.allclose(discounted_ahead(values, discount), torch.stack(ahead, dim=1), atol=1e-12)


@pytest.mark.parametrize(("name", "keywords", "words"), [
    ("dppo_tv", {"max_tv": 1.5}, ["max_tv", "1.5", "at most 1"]),
    ("dppo_kl", {"max_kl": 0}, ["max_kl", "more than 0"]),
    ("dppo_tv", {"max_kl": 0.1}, ["max_kl", "Did you mean 'max_tv'"]),
    ("dppo_kl", {"ratio": "sequence"}, ["'dppo_kl'", "token ratio itself", "Remove ratio"]),
    ("dppo_tv", {"ratio_max": -1}, ["ratio_max", "more than 0"]),
    ("up", {"epsilon_high": 0.3}, ["epsilon_high", "Did you mean 'epsilon_low'"]),
    ("up", {"dual": 1.0}, ["dual", "more than 1"]), ("fipo", {"half_life": 0}, ["half_life", "more than 0"]),
    ("fipo", {"influence_low": 1.0}, ["influence_low", "less than 1"]),
    ("fipo", {"ratio": "sequence"}, ["'fipo'", "token ratio itself"]),
])  # fmt: skip
def test_keywords_that_make_no_sense_are_refused(name, keywords, words):
    (problem,) = compose_objective(name, keywords, beta=0.0)[1]
    assert all(word in problem for word in words), problem
