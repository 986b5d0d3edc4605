"""The objectives of 2026 against their formulas, written once more in plain Python, and against finite differences."""

import dataclasses
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_plus.objectives import Counts, TokenBatch, build_objective


def tokens(new, old, advantages, **fields):
    """One completion of tokens of these probabilities."""
    logps = torch.tensor([new], dtype=torch.float64).log().requires_grad_()
    return TokenBatch(
        logps=logps,
        old_logps=torch.tensor([old], dtype=torch.float64).log(),
        advantages=torch.tensor([advantages], dtype=torch.float64),
        mask=torch.ones(1, len(new), dtype=torch.bool),
        counts=Counts(1.0, float(len(new)), 1.0),
        **fields,
    )


def gradient_of(objective, batch):
    loss, unreduced = objective.loss(batch)
    return torch.autograd.grad(loss, batch.logps)[0], unreduced


def moved_too_far(kind, limit, old, new, advantage):
    if kind == "tv":
        distance = abs(new - old)
    else:
        distance = old * math.log(old / new) + (1 - old) * math.log((1 - old) / (1 - new))
    return distance > limit and (new - old) * advantage > 0


@pytest.mark.sample(1)
@pytest.mark.parametrize("kind", ["tv", "kl"])
@settings(max_examples=150, deadline=None)
@given(
    old=st.floats(1e-6, 1 - 1e-6),
    new=st.floats(1e-6, 1 - 1e-6),
    advantage=st.floats(-2, 2),
    bounds=st.tuples(st.sampled_from([0.01, 0.05, 0.2, 0.6]), st.sampled_from([0.5, 2.0, 20.0])),
)
def test_dppo_leaves_out_what_moved_too_far_and_weighs_the_rest(kind, old, new, advantage, bounds):
    limit, cap = bounds
    objective = build_objective(f"dppo_{kind}", {f"max_{kind}": limit, "ratio_max": cap}, beta=0.0)
    batch = tokens([new], [old], [advantage])
    gradient, unreduced = gradient_of(objective, batch)
    out = moved_too_far(kind, limit, old, new, advantage)
    weight = 0.0 if out else min(new / old, cap)
    assert -gradient.item() == pytest.approx(weight * advantage, rel=1e-9, abs=1e-12)
    assert -unreduced.values.item() == pytest.approx(weight * advantage * math.log(new), rel=1e-9, abs=1e-12)
    assert unreduced.metrics["clip_ratio/region_mean"].values.item() == out
    assert unreduced.metrics["clip_ratio/low_mean"].values.item() == (out and advantage < 0)
    assert unreduced.terms.settled.item() == out


@pytest.mark.parametrize("name", ["dppo_tv", "dppo_kl"])
def test_dppo_moves_a_rare_token_further_than_a_clip_and_a_likely_one_less(name):
    rare, likely = ([0.004], [0.002], [1.0]), ([0.6], [0.85], [-1.0])
    clip, dppo = build_objective("dapo", beta=0.0), build_objective(name, beta=0.0)
    assert gradient_of(clip, tokens(*rare))[0].item() == 0
    assert gradient_of(dppo, tokens(*rare))[0].item() == pytest.approx(-2.0)
    likely_clipped = tokens([0.7], [0.85], [-1.0])
    assert gradient_of(clip, likely_clipped)[0].item() > 0.8
    assert gradient_of(dppo, tokens(*likely))[0].item() == 0


@pytest.mark.parametrize("name", ["dppo_tv", "dppo_kl"])
def test_dppo_measures_from_the_sampler_that_drew(name, make_batch):
    objective = build_objective(name, beta=0.0)
    batch = make_batch(seed=9, spread=0.4)
    weights = torch.rand(batch.mask.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1)) + 0.5
    shifted = dataclasses.replace(batch, old_logps=batch.old_logps - weights.log())
    inside = objective.values(dataclasses.replace(batch, weights=weights))
    assert torch.allclose(inside.values, objective.values(shifted).values)
    assert inside.terms.settled[batch.mask].any()
    outside = objective.values(dataclasses.replace(batch, weights=weights[:, :1])).values
    assert torch.allclose(outside, objective.values(batch).values * weights[:, :1])
    dropped = objective.values(dataclasses.replace(batch, weights=torch.zeros_like(weights))).values
    assert (dropped == 0).all()


@pytest.mark.parametrize("name", ["dppo_tv", "dppo_kl"])
@pytest.mark.parametrize("shift", [-1000.0, 1000.0])
def test_dppo_far_off_policy_is_finite(name, shift, make_batch):
    batch = make_batch(seed=3, dtype=torch.float32)
    gradient, unreduced = gradient_of(
        build_objective(name, beta=0.0), dataclasses.replace(batch, old_logps=batch.old_logps + shift)
    )
    assert gradient.isfinite().all()
    assert unreduced.values.isfinite().all()


@pytest.mark.parametrize(
    ("name", "keywords", "words"),
    [
        ("dppo_tv", {"max_tv": 1.5}, ["max_tv", "1.5", "at most 1"]),
        ("dppo_kl", {"max_kl": 0}, ["max_kl", "more than 0"]),
        ("dppo_tv", {"max_kl": 0.1}, ["max_kl", "Did you mean 'max_tv'"]),
        ("dppo_kl", {"ratio": "sequence"}, ["'dppo_kl'", "token ratio itself", "remove ratio"]),
        ("dppo_tv", {"ratio_max": -1}, ["ratio_max", "more than 0"]),
    ],
)
def test_keywords_that_make_no_sense_are_refused(name, keywords, words):
    from grpo_plus.objectives import check_objective

    (problem,) = check_objective(name, keywords, beta=0.0)
    assert all(word in problem for word in words), problem
