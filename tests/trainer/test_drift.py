"""How far two sets of log-probabilities are apart, and what is made of it."""

import math
from contextlib import nullcontext

import pytest
import torch
from peft import LoraConfig, get_peft_model

from grpo_plus.engine.dropout import has_dropout
from grpo_plus.testing import make_tiny_model
from grpo_plus.training.rollout import vllm_drift as module
from grpo_plus.training.rollout.vllm_drift import FLOOR, FOREIGN, GROWTH, LARGE, MAX_GAP, classify_drift
from tests.device import DEVICE


def of(sampled, scored, compared):
    return module.gaps(*(torch.tensor([given], device=DEVICE) for given in (sampled, scored, compared)))


def test_the_sum_and_the_worst_are_over_what_is_compared():
    assert of([-1.0, -2.0, -3.0, -4.0], [-1.5, -2.0, -1.0, -40.0], [1, 1, 1, 0]) == (2.5, 3, 2.0)
    assert of([math.nan, -2.0], [-1.0, -2.5], [1, 1]) == (0.5, 1, 0.5)  # the sampler has no number for it
    assert of([math.nan], [-1.0], [1]) == (0.0, 0, 0.0)


@pytest.mark.parametrize("scored", [-math.inf, math.nan])
def test_an_impossible_token_counts_but_does_not_drown_the_others(scored):
    assert of([-1.0, -1.0], [scored, -1.0], [1, 1]) == (MAX_GAP, 2, MAX_GAP)


def test_the_first_batch_is_judged_by_its_size():
    assert classify_drift([], LARGE * 0.99) is None
    assert (classify_drift([], LARGE * 1.01), classify_drift([], FOREIGN)) == ("large", "foreign")


def test_a_later_batch_is_judged_by_its_growth_and_never_ends_the_run():
    exact, rounded = [1e-6], [0.03]
    assert classify_drift(exact, FLOOR * 0.99) is None
    assert classify_drift(exact, FLOOR * 1.01) == "grown"
    assert classify_drift(rounded, 0.03 * GROWTH * 0.99) is None
    assert (classify_drift(rounded, 0.03 * GROWTH * 1.01), classify_drift(exact, FOREIGN * 5)) == ("grown", "grown")
    assert classify_drift([0.3], 0.3) == "large"


def course(*means):
    first = []
    return [classify_drift(first, mean) for mean in means]


def test_one_odd_batch_at_the_start_does_not_hide_later_growth():
    for odd in ([0.19, 0.004, 0.005, 0.004], [0.004, 0.19, 0.005, 0.004], [0.004, 0.005, 0.015, 0.004]):
        assert course(*odd, 0.08)[-1] == "grown"
    assert course(0.02, 0.03, 0.02, 0.07, 0.05)[-1] is None


def test_what_has_grown_never_becomes_usual_and_slow_growth_is_seen():
    assert course(1e-6, *[0.1] * 20) == [None, *["grown"] * 20]
    assert course(*[0.004 * step for step in range(12)])[-1] == "grown"


@pytest.mark.parametrize(("where", "found"), [(None, False), ("attention", True), ("adapter", True)])
def test_dropout_is_found_in_attention_and_in_adapters(where, found):
    model, _ = make_tiny_model()
    if where == "attention":
        model.model.layers[0].self_attn.attention_dropout = 0.1
    rate = 0.1 if where == "adapter" else 0.0
    model = get_peft_model(model, LoraConfig(r=2, target_modules="all-linear", lora_dropout=rate))
    assert has_dropout(model.train()) is found
    assert has_dropout(model.eval()) is False


@pytest.mark.parametrize("architecture", ["gpt2", "qwen2"])
def test_a_difference_of_positions_is_not_taken_for_another_model(build, tmp_path, architecture):
    make_tiny_model(tmp_path / architecture, architecture=architecture)
    trainer = build(trainer={"model": str(tmp_path / architecture)})
    drift = next(hook for hook in trainer.pipeline.stages if isinstance(hook, module.LogpDrift))
    with nullcontext() if architecture == "gpt2" else pytest.raises(module.DriftError, match="another model"):
        drift._report(2 * FOREIGN)
