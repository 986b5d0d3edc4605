"""How far two sets of log-probabilities are apart, and what is made of it."""

import math

import pytest
import torch

from grpo_plus.qlora.dropout import has_dropout
from grpo_plus.training.drift import APART, FLOOR, FOREIGN, GROWN, LARGE, MOST, Gap, judged, likely


def gap(mean):
    return Gap(total=mean * 10, tokens=10)


def of(sampled, scored, compared):
    ids = torch.arange(100, 100 + len(sampled))[None]
    return Gap.of(torch.tensor([sampled]), torch.tensor([scored]), ids, torch.tensor([compared]))


def test_the_mean_is_over_what_is_compared_and_the_worst_is_named():
    found = of([-1.0, -2.0, -3.0, -4.0], [-1.5, -2.0, -1.0, -40.0], [1, 1, 1, 0])
    assert found.mean == pytest.approx(2.5 / 3)
    assert (found.token, found.place, found.sampled, found.scored, found.worst) == (102, 2, -3.0, -1.0, 2.0)


def test_what_the_sampler_has_no_number_for_is_passed_over():
    assert of([math.nan, -2.0], [-1.0, -2.5], [1, 1]).mean == pytest.approx(0.5)
    assert of([math.nan], [-1.0], [1]).tokens == 0


@pytest.mark.parametrize("scored", [-math.inf, math.nan])
def test_an_impossible_token_counts_but_does_not_drown_the_others(scored):
    found = of([-1.0, -1.0], [scored, -1.0], [1, 1])
    assert (found.worst, found.mean, found.token) == (MOST, MOST / 2, 100)


def test_ranks_are_put_together():
    found = Gap.over([Gap(1.0, 10, 0.5, 7, 0, -1.0, -1.5), Gap(4.0, 30, 2.0, 8, 3, -1.0, -3.0), Gap()])
    assert (found.mean, found.worst, found.token) == (5 / 40, 2.0, 8)


def test_the_first_batch_is_judged_by_its_size():
    for mean, verdict in [(LARGE * 0.99, None), (LARGE * 1.01, "large"), (FOREIGN, "foreign")]:
        first = gap(mean)
        assert judged(first, first) == verdict


def test_a_base_that_vllm_loaded_by_itself_is_compared_more_closely_with_an_object():
    for mean, verdict in [(APART * 0.99, None), (APART * 1.01, "apart"), (FOREIGN, "foreign")]:
        first = gap(mean)
        assert judged(first, first, apart=True) == verdict
    assert judged(gap(0.04), gap(APART * 1.01), apart=True) is None
    assert "handed over as an object" in likely("apart", "")


def test_a_later_batch_is_judged_by_its_growth_and_never_ends_the_run():
    exact, rounded = gap(1e-6), gap(0.03)
    assert judged(exact, gap(FLOOR * 0.99)) is None
    assert judged(exact, gap(FLOOR * 1.01)) == "grown"
    assert judged(rounded, gap(0.03 * GROWN * 0.99)) is None
    assert judged(rounded, gap(0.03 * GROWN * 1.01)) == "grown"
    assert judged(exact, gap(FOREIGN * 5)) == "grown"
    assert judged(gap(0.3), gap(0.3)) == "large"


def test_settings_by_which_raw_log_probabilities_differ_are_named():
    assert "temperature (0.7)" in likely("large", "temperature (0.7)")
    assert "processed_logprobs" not in likely("large", "")


@pytest.mark.parametrize(("where", "found"), [(None, False), ("attention", True), ("adapter", True)])
def test_dropout_is_found_in_attention_and_in_adapters(where, found):
    from peft import LoraConfig, get_peft_model

    from grpo_plus.testing import make_tiny_model

    model, _ = make_tiny_model()
    if where == "attention":
        model.model.layers[0].self_attn.attention_dropout = 0.1
    rate = 0.1 if where == "adapter" else 0.0
    model = get_peft_model(model, LoraConfig(r=2, target_modules="all-linear", lora_dropout=rate))
    assert has_dropout(model.train()) is found
    assert has_dropout(model.eval()) is False
