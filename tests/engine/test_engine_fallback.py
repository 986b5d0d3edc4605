"""What is not known to be exact runs as TRL runs it, said once; what was asked for by name and cannot be is refused."""

import dataclasses
import logging
import re

import peft
import pytest
import torch
from transformers import CONFIG_MAPPING, AutoConfig, AutoModelForCausalLM, AutoTokenizer, BloomConfig, BloomForCausalLM

from grpo_plus.engine import Engine, EngineError, Facts
from grpo_plus.engine.architecture import treatments_of
from grpo_plus.training.update import engine as training_engine
from grpo_verifiers.errors import ConfigError

SMALL = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8}  # fmt: skip
REFUSED = {
    "recurrent": ("mamba", {"state_size": 4}, "recurrent layers"),
    "linear attention": ("qwen3_next", {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "shared_expert_intermediate_size": 16, "linear_num_value_heads": 4, "linear_num_key_heads": 2, "linear_key_head_dim": 8, "linear_value_head_dim": 8, "pad_token_id": 0}, "recurrent layers|linear_attention"),
    "dynamic positions": ("qwen2", {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}}, "positions of type dynamic"),
    "chunks": ("llama4_text", {"num_local_experts": 2, "attention_chunk_size": 8, "intermediate_size_mlp": 64, "pad_token_id": 0, "no_rope_layers": [1, 1]}, "chunk"),
    "router logits": ("qwen3_moe", {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "output_router_logits": True}, "router logits"),
    "a window by place": ("gpt_neo", {"num_layers": 2, "num_heads": 4, "attention_types": [[["global", "local"], 1]], "window_size": 20}, "window_size"),
    "a choice by length": ("doge", {"keep_window_size": 20}, "keep_window_size"),
}  # fmt: skip


@pytest.fixture(autouse=True)
def warnings_are_kept(caplog):
    caplog.set_level(logging.WARNING, logger="grpo_plus.engine")


@pytest.mark.sample(1, 3)
@pytest.mark.parametrize("name", REFUSED)
def test_models_that_are_left_alone(name):
    kind, config, reason = REFUSED[name]
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **{**SMALL, **config}))
    support = treatments_of(model)
    assert support.refusal is not None
    assert re.search(reason, support.refusal)
    assert not support.packing


@pytest.mark.slow
def test_the_layers_of_a_model_may_differ_in_shape_and_window(bench, branches):
    if "gemma4_text" not in CONFIG_MAPPING:
        pytest.skip("this release of transformers has one shape for all layers")
    tokenizer = AutoTokenizer.from_pretrained(bench.model())
    own = {"global_head_dim": 16, "num_global_key_value_heads": 2, "hidden_size_per_layer_input": 8}
    words = {"vocab_size": len(tokenizer), "vocab_size_per_layer_input": len(tokenizer)}
    layers = {"layer_types": ["sliding_attention", "full_attention"], "num_kv_shared_layers": 0}
    for window in (14, 64):
        config = AutoConfig.for_model("gemma4_text", **{**SMALL, **own, **words, **layers, "sliding_window": window})
        model = AutoModelForCausalLM.from_config(config)
        assert treatments_of(model).window == window
        model.save_pretrained(bench.folder / f"gemma{window}")
        tokenizer.save_pretrained(bench.folder / f"gemma{window}")
        reports = bench.check(bench.batch(dead=()), model=str(bench.folder / f"gemma{window}"), old=0.3)
        assert all(report["engine/layout"] == 2.0 for report in reports)


@pytest.mark.slow
def test_adapters_over_whole_rows_are_left_alone(bench, caplog):
    adapters = [peft.LoraConfig(task_type="CAUSAL_LM", target_modules=["q_proj"], alora_invocation_tokens=[50])]
    if hasattr(peft, "ShadowConfig"):
        adapters.append(peft.ShadowConfig(task_type="CAUSAL_LM"))
    for adapter, reason in zip(adapters, ("invocation tokens", "of type SHADOW"), strict=False):
        with pytest.raises(EngineError, match=reason):
            bench.trainer("packed", peft_config=adapter)
        assert bench.check(bench.batch(), engine="auto", peft_config=adapter) == [{}] * 4
        assert reason in caplog.text


@pytest.mark.slow
def test_positions_from_the_mask_leave_rows_to_be_skipped_alone(bench):
    torch.manual_seed(0)
    tokenizer = AutoTokenizer.from_pretrained(bench.model())
    model = BloomForCausalLM(BloomConfig(vocab_size=len(tokenizer), hidden_size=32, n_head=4, n_layer=2))
    support = treatments_of(model)
    assert (support.packing, support.trimming) == (False, False)
    model.save_pretrained(bench.folder / "bloom")
    tokenizer.save_pretrained(bench.folder / "bloom")
    reports = bench.check(bench.batch(), engine="trimmed", model=str(bench.folder / "bloom"), old=0.3)
    assert [report["engine/tokens_saved"] > 0.9 for report in reports] == [False, False, True, True]


@pytest.mark.slow
def test_attention_of_variable_length_joins_rows_and_shares_nothing(bench, monkeypatch):
    model = AutoModelForCausalLM.from_pretrained(bench.model())
    model.config._attn_implementation = "flash_attention_2"
    support = treatments_of(model)
    assert (support.refusal, support.packing, support.sharing, support.joining) == (None, True, False, True)
    assert "flash_attention_2" in support.note
    # The kernels need a GPU; transformers tells joined rows apart by their positions for other attention too.
    monkeypatch.setattr("grpo_plus.engine.models.treatments_of", lambda _: support)
    for engine, more in (("packed", {}), ("auto", {}), ("packed", {"tokens_per_pass": 40})):
        reports = bench.check(bench.batch(width=60), engine=engine, old=0.3, **more)
        assert all(report.get("engine/layout", 2.0) == 2.0 for report in reports)
        assert sum(report["engine/tokens_saved"] for report in reports) / len(reports) > 0.85


@pytest.mark.slow
def test_a_model_that_lies_about_itself_is_found_out(bench, caplog):
    class Nosy(torch.nn.Module):
        """Attention's input mixed with its neighbour's: no mask and no position shows it."""

        def forward(self, hidden):
            return hidden + hidden.roll(1, dims=1)

    def gradient(engine):
        model = AutoModelForCausalLM.from_pretrained(bench.model())
        model.model.norm = torch.nn.Sequential(model.model.norm, Nosy())
        return bench.gradient(bench.trainer(engine, model=model), bench.batch(dead=()))[0]

    gradients = [gradient(None), gradient("auto")]
    assert bench.distance(gradients[1], gradients[0]) < 1e-2  # trimming moves the neighbour of the first column
    assert "when packed" in caplog.text
    with pytest.raises(EngineError, match=r"engine='packed' is not possible here: .* when packed"):
        gradient("packed")


def test_reasons_are_said_once(bench, caplog):
    trainer = bench.trainer("auto", loss_type="bnpo", entropy_coef=0.1)
    bench.gradient(trainer, bench.batch())
    bench.gradient(trainer, bench.batch(seed=1))
    said = [record.getMessage() for record in caplog.records if record.name == "grpo_plus.engine"]
    assert len(said) == len(set(said)) == 2
    assert any("loss_type='bnpo'" in text for text in said)
    assert any("entropy bonus" in text for text in said)


def test_the_balance_loss_of_experts(bench, caplog):
    model = bench.model("qwen3_moe")
    assert bench.check(bench.batch(), engine="auto", model=model, loss_type="grpo") == [{}] * 4
    assert "load-balancing" in caplog.text
    with pytest.raises(EngineError, match="load-balancing"):
        bench.trainer("packed", model=model)


def made(layout="auto", tokens=None, facts=None):
    facts = facts or Facts()
    return Engine(layout, tokens, facts=lambda: facts, autocast=lambda: None, unwrap=lambda model: model)


def test_inputs_beyond_text_go_to_trl_untouched():
    calls = []

    def stock(*arguments, **keywords):
        calls.append((arguments, keywords))
        return "as it was"

    engine = made()
    ids = torch.ones(2, 5, dtype=torch.long)
    pixels = torch.ones(2, 3)
    model = torch.nn.Linear(1, 1)
    assert engine.score(stock, model, ids, ids, 2, pixel_values=pixels) == "as it was"
    assert calls[0][1] == {"batch_size": None, "compute_entropy": False, "pixel_values": pixels}
    assert calls[0][0][1] is ids


def test_noise_on_embeddings_refuses_a_forced_layout(bench):
    with pytest.raises(ConfigError, match="neftune_noise_alpha"):
        bench.trainer("packed", neftune_noise_alpha=5.0)
    bench.trainer("auto", neftune_noise_alpha=5.0)


def test_an_unknown_head_is_trimmed_and_skipped_but_not_packed(bench, monkeypatch, caplog):
    facts = training_engine.facts_of
    monkeypatch.setattr(training_engine, "facts_of", lambda *run: dataclasses.replace(facts(*run), head=None))
    reports = bench.check(bench.batch(width=60), engine="auto", old=0.3)
    assert {report["engine/layout"] for report in reports if "engine/layout" in report} == {1.0}
    assert "use_liger_kernel" in caplog.text


def test_a_row_longer_than_the_ceiling_runs_alone_and_says_so(bench, caplog):
    bench.check(bench.batch(completions=(8, 12)), engine="auto", tokens_per_pass=4, old=0.3)
    assert "runs in one pass although tokens_per_pass is 4" in caplog.text


def test_a_row_that_cannot_be_read_goes_to_trl(bench, caplog):
    model = AutoModelForCausalLM.from_pretrained(bench.model())
    engine = made(tokens=50)
    ids = torch.ones(2, 6, dtype=torch.long)
    for mask in ([[1, 1, 1, 1, 1, 1], [0, 0, 0, 1, 1, 1]], [[1, 1, 1, 1, 0, 1], [1, 1, 1, 1, 1, 1]]):
        assert engine.score(lambda *_, **__: "TRL's", model, ids, torch.tensor(mask), 3) == "TRL's"
    assert caplog.text.count("tokens_per_pass does not bind it: a row has no prompt, or padding inside") == 1
