import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from grpo_plus.heads.losses import bradley_terry, process_losses
from grpo_plus.heads.reward_scores import ranked_right, separation

SCORES = st.floats(-30, 30, allow_subnormal=False)
PAIRS = st.lists(st.tuples(SCORES, SCORES), min_size=1, max_size=8)


def doubles(values):
    return torch.tensor(values, dtype=torch.float64)


@given(PAIRS)
def test_the_preference_loss_is_the_logarithm_of_a_sigmoid(pairs):
    chosen, rejected = (doubles(column) for column in zip(*pairs, strict=True))
    expected = [-math.log(1 / (1 + math.exp(-(c - r)))) for c, r in pairs]
    assert bradley_terry(chosen, rejected).tolist() == pytest.approx(expected, rel=1e-9, abs=1e-12)


@given(PAIRS)
def test_the_gradient_pulls_both_sides_apart_by_the_chance_of_the_wrong_order(pairs):
    chosen, rejected = (doubles(column).requires_grad_() for column in zip(*pairs, strict=True))
    bradley_terry(chosen, rejected).sum().backward()
    wrong = torch.sigmoid(rejected - chosen).detach()
    assert torch.allclose(chosen.grad, -wrong, rtol=1e-9, atol=1e-12)
    assert torch.allclose(rejected.grad, wrong, rtol=1e-9, atol=1e-12)


def test_scores_far_apart_give_finite_losses_and_gradients():
    chosen = torch.tensor([1e30, -1e30, 1e4, -1e4], requires_grad=True)
    losses = bradley_terry(chosen, torch.zeros(4))
    losses.sum().backward()
    assert losses.tolist() == pytest.approx([0, 1e30, 0, 1e4])
    assert chosen.grad.tolist() == [0, -1, 0, -1]


def test_scores_of_other_shapes_are_refused():
    with pytest.raises(ValueError, match=r"one shape, got \(2,\), \(1,\)"):
        bradley_terry(torch.zeros(2), torch.zeros(1))


def test_ties_count_half_and_what_is_no_number_orders_nothing():
    nan = math.nan
    found = ranked_right(doubles([1, 0, 2, nan, 1]), doubles([0, 0, 3, 0, nan]))
    assert found.tolist() == [1, 0.5, 0, 0, 0]


@given(st.lists(st.tuples(st.integers(0, 4), st.sampled_from([0.0, 1.0, math.nan])), min_size=2, max_size=12))
def test_separation_is_the_ranking_accuracy_of_all_good_and_bad_pairs(rows):
    scores, labels = doubles([score for score, _ in rows]), doubles([label for _, label in rows])
    good, bad = scores[labels == 1], scores[labels == 0]
    if not len(good) or not len(bad):
        return
    left, right = good[:, None].expand(-1, len(bad)), bad[None].expand(len(good), -1)
    assert separation(scores, labels) == pytest.approx(ranked_right(left, right).mean().item())


@given(st.lists(st.tuples(st.floats(-20, 20), st.sampled_from([0.0, 1.0, math.nan])), min_size=1, max_size=8))
def test_the_process_loss_is_the_cross_entropy_of_judged_steps_only(rows):
    logits = doubles([logit for logit, _ in rows]).requires_grad_()
    labels = doubles([label for _, label in rows])
    losses = process_losses(logits, labels)
    losses.sum().backward()
    for at, (logit, label) in enumerate(rows):
        good = 1 / (1 + math.exp(-logit))
        if math.isnan(label):
            assert (losses[at], logits.grad[at]) == (0, 0)
        else:
            assert losses[at].item() == pytest.approx(-math.log(good if label else 1 - good), rel=1e-6, abs=1e-9)
            assert logits.grad[at].item() == pytest.approx(good - label, abs=1e-9)


def test_what_stands_at_a_token_without_a_label_cannot_spoil_the_loss():
    logits = torch.tensor([math.nan, math.inf, 1.0], requires_grad=True)
    losses = process_losses(logits, torch.tensor([math.nan, math.nan, 1.0]))
    losses.sum().backward()
    assert (losses[:2].tolist(), logits.grad[:2].tolist()) == ([0, 0], [0, 0])
    assert losses[2].item() == pytest.approx(math.log1p(math.exp(-1)))
