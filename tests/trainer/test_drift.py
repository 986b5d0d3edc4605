"""How far two sets of log-probabilities are apart, and what is made of it."""

import math
from contextlib import nullcontext

import pytest
import torch
from peft import LoraConfig, get_peft_model

from grpo_plus.engine.dropout import has_dropout
from grpo_plus.testing import make_tiny_model
from grpo_plus.training.rollout import vllm_drift as module
from grpo_plus.training.rollout.vllm_drift import FOREIGN, MAX_GAP
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
        drift._refuse_another_model(2 * FOREIGN)


def test_only_the_first_batch_that_is_compared_can_end_the_run(build):
    trainer = build()
    drift = next(hook for hook in trainer.pipeline.stages if isinstance(hook, module.LogpDrift))
    drift._refuse_another_model(FOREIGN * 0.99)
    drift._refuse_another_model(FOREIGN * 5)
