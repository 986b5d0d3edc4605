"""The planner's arithmetic against tensors that exist, and the settings it finds against what was asked for."""

import json
import re

import pytest
import torch
import transformers
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from peft import get_peft_model
from transformers import AutoConfig, AutoModelForCausalLM, BitsAndBytesConfig, DynamicCache, Qwen3Config
from trl import ModelConfig

from grpo_plus import GRPOPlusConfig
from grpo_plus.cli import main
from grpo_plus.memory.estimate import GIB, Settings, cache, estimate, weights
from grpo_plus.memory.fit import SHORTEST, DoesNotFitError, fit
from grpo_plus.memory.shape import ModelShape, shape_of
from grpo_plus.qlora.model import linear_4bit
from grpo_plus.sampling.rollout import rows_that_fit
from grpo_plus.testing import make_tiny_model
from tests.memory.live import Live
from tests.qlora.runs import lora, nf4

QWEN3 = {"1.7B": (28, 2048, 6144, 16, 8, True), "8B": (36, 4096, 12288, 32, 8, False)}
QWEN3["14B"] = (40, 5120, 17408, 40, 8, False)
TABLES = 4 * (16 + 256) + 4  # of one matrix: the two code books and an offset


def qwen3(size):
    layers, hidden, intermediate, heads, kv_heads, tied = QWEN3[size]
    return Qwen3Config(
        vocab_size=151936, hidden_size=hidden, intermediate_size=intermediate, num_hidden_layers=layers,
        num_attention_heads=heads, num_key_value_heads=kv_heads, head_dim=128, tie_word_embeddings=tied,
    )  # fmt: skip


def stored_bytes(model):
    total = sum(parameter.nbytes for parameter in model.parameters())
    for layer in linear_4bit(model):
        state = layer.weight.quant_state
        total += state.absmax.nbytes + (state.state2.absmax.nbytes if state.nested else 0)
    return total


@pytest.mark.sample(1)
@pytest.mark.parametrize("architecture", ["llama", "qwen2", "gpt2", "gemma2", "phi3", "qwen3_moe"])
@pytest.mark.parametrize("double", [True, False])
def test_weights_are_those_that_bitsandbytes_stores(architecture, double, tmp_path):
    made, _ = make_tiny_model(tmp_path, architecture=architecture, hidden=128, layers=2)
    quantisation = nf4(torch.bfloat16, double=double)
    model = AutoModelForCausalLM.from_pretrained(tmp_path, quantization_config=quantisation, dtype=torch.bfloat16)
    planned, other = (weights(shape_of(made.config), Settings(double_quantisation=b)) for b in (double, not double))
    matrices = sum(1 for _ in linear_4bit(model))
    assert stored_bytes(model) == pytest.approx(planned, abs=4 * matrices)  # the last block of scales is padded
    assert stored_bytes(model) != pytest.approx(other)


def test_weights_of_an_8_bit_base(tmp_path):
    made, _ = make_tiny_model(tmp_path, architecture="llama", hidden=256, layers=2)
    eight = BitsAndBytesConfig(load_in_8bit=True)
    model = AutoModelForCausalLM.from_pretrained(tmp_path, quantization_config=eight, dtype=torch.float16)
    stored = sum(value.nbytes for value in model.state_dict().values())
    planned = weights(shape_of(made.config), Settings(four_bit=False, eight_bit=True))
    assert stored == pytest.approx(planned, rel=0.02)  # a row of 256 is short: its scale is 1.6% of it
    assert stored < 0.7 * weights(shape_of(made.config), Settings(four_bit=False))


@pytest.mark.sample(2)
@pytest.mark.parametrize("architecture", ["llama", "qwen3", "gpt2", "gemma2", "phi3", "qwen3_moe"])
def test_adapters_are_those_that_peft_makes(architecture):
    model, _ = make_tiny_model(architecture=architecture, hidden=64, layers=2)
    shape = shape_of(model.config)
    for targets in ("all-linear", sorted(set(shape.lora_units) - {"experts"})[:2]):
        model, _ = make_tiny_model(architecture=architecture, hidden=64, layers=2)
        adapted = get_peft_model(model, lora(r=8, target_modules=targets))
        made = sum(parameter.numel() for parameter in adapted.parameters() if parameter.requires_grad)
        assert shape.lora_weights(8, targets) == made


def test_optimizer_state_is_that_of_adam():
    model, _ = make_tiny_model(architecture="llama", hidden=64)
    adapted = get_peft_model(model, lora(r=8))
    trained = [parameter for parameter in adapted.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained)
    adapted(torch.arange(8)[None], labels=torch.arange(8)[None]).loss.backward()
    optimizer.step()
    values = [value for entry in optimizer.state.values() for value in entry.values()]
    state = sum(value.nbytes for value in values if value.dim() > 0)  # the step counter aside
    found = estimate(shape_of(model.config), Settings(rank=8, optimizer="adamw_torch"))
    assert found.optimizer == state
    assert found.adapters == sum(parameter.nbytes + parameter.grad.nbytes for parameter in trained)


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    ("architecture", "changes"), [("llama", {}), ("gpt2", {}), ("gemma2", {"sliding_window": 8}), ("mistral", {})]
)
def test_the_cache_is_the_one_that_grows(architecture, changes):
    model, _ = make_tiny_model(architecture=architecture, hidden=64, layers=4, **changes)
    rows, length = 3, 20
    kept = DynamicCache(config=model.config)
    with torch.no_grad():
        for _ in range(length):
            model(torch.zeros(rows, 1, dtype=torch.long), past_key_values=kept, use_cache=True)
    held = 0
    for layer in kept.layers:
        width = min(length, layer.sliding_window) if layer.is_sliding else length
        tokens = layer.keys.shape[-2]
        assert tokens in (width, width - 1)  # a window's layer drops the oldest before it adds one
        held += (layer.keys.nbytes + layer.values.nbytes) * width // tokens
    asked = Settings(rollout_rows=rows, prompt_length=12, completion_length=8, width=4)
    assert cache(shape_of(model.config), asked) == held


def test_a_model_whose_layers_differ_is_planned_by_its_largest():
    if "gemma4_text" not in transformers.CONFIG_MAPPING:
        pytest.skip("this release of transformers has one shape for all layers")
    config = AutoConfig.for_model(
        "gemma4_text", vocab_size=100, vocab_size_per_layer_input=100, hidden_size=32, hidden_size_per_layer_input=8,
        intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=1, head_dim=8,
        global_head_dim=16, num_global_key_value_heads=2, attention_k_eq_v=True, num_kv_shared_layers=0,
        layer_types=["sliding_attention", "full_attention"], sliding_window=14,
    )  # fmt: skip
    model = AutoModelForCausalLM.from_config(config)
    shape = shape_of(config)
    assert (shape.heads, shape.kv_heads, shape.head_dim, shape.windows) == (4, 2, 16, (14, None))
    assert rows_that_fit(model, 100, 2 * 2 * 2 * 16 * 4 * 100 * 3.9) == 3
    adapted = get_peft_model(model, lora(r=8))
    assert shape.lora_weights(8) == sum(one.numel() for one in adapted.parameters() if one.requires_grad)


def test_widths_by_layer_count_by_the_largest_and_a_model_without_attention_is_not_planned_for():
    config = AutoConfig.for_model(
        "gemma3n_text", vocab_size=100, vocab_size_per_layer_input=100, hidden_size=32, hidden_size_per_layer_input=8,
        intermediate_size=[64, 96], num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=8,
        laurel_rank=4, num_kv_shared_layers=0, activation_sparsity_pattern=[0.0, 0.0], altup_num_inputs=2,
    )  # fmt: skip
    shape = shape_of(config)
    assert (shape.heads, shape.kv_heads, shape.head_dim, shape.intermediate) == (4, 2, 8, 96)
    with pytest.raises(ValueError, match="it cannot be planned for: its config names no attention heads"):
        shape_of(transformers.MambaConfig(hidden_size=32, num_hidden_layers=2, vocab_size=100), "it")


@pytest.mark.slow
@pytest.mark.parametrize(("layers", "intermediate", "recompute"), [(4, 768, True), (12, 256, True), (4, 768, False)])
def test_activations_are_within_a_fifth_of_what_a_step_holds(layers, intermediate, recompute):
    model, _ = make_tiny_model(
        architecture="llama", hidden=256, layers=layers, intermediate_size=intermediate, num_attention_heads=8,
        num_key_value_heads=2,
    )  # fmt: skip
    shape = shape_of(model.config)
    adapted = get_peft_model(model.to(torch.bfloat16), lora(r=8)).train()
    if recompute:
        adapted.gradient_checkpointing_enable({"use_reentrant": False})
    adapted.enable_input_require_grads()
    lengths = {"prompt_length": 128, "completion_length": 128}
    planned = estimate(shape, Settings(micro_batch=2, rank=8, checkpointing=recompute, four_bit=False, **lengths))
    ids = torch.zeros(2, 256, dtype=torch.long)
    with Live() as live, torch.autocast("cpu", torch.bfloat16):
        model.model(ids, use_cache=False).last_hidden_state.sum().backward()
    gradients = planned.adapters / 2
    assert live.peak - gradients == pytest.approx(planned.checkpoints + planned.activations, rel=0.2)


def test_the_known_sizes_fit_the_known_cards():
    for size, length, card in (("8B", 2048, 12), ("14B", 1024, 16), ("1.7B", 2048, 8)):
        asked = Settings(micro_batch=1, rollout_rows=8, completion_length=length)
        found = fit(shape_of(qwen3(size)), asked, card * GIB, generations=8)
        assert (found.settings, found.changes) == (asked, ())
    eight = shape_of(qwen3("8B"))
    assert eight.linear_weights + eight.other_weights == 8_190_735_360
    assert weights(eight, Settings()) / GIB == pytest.approx(5.656, abs=1e-3)
    stored = qwen3("8B")
    stored.quantization_config = {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}
    assert shape_of(stored) == eight


class TestFit:
    SHAPE = ModelShape(
        name="m", layers=36, hidden=4096, intermediate=12288, vocabulary=151936, heads=32, kv_heads=8, head_dim=128,
        windows=(None,) * 36, linear_weights=6_945_767_424, other_weights=1_245_270_016, lora_units={"all": 2_727_936},
    )  # fmt: skip

    @settings(max_examples=60, deadline=None)
    @given(st.floats(7.2, 40), st.integers(SHORTEST, 8192), st.integers(1, 8), st.integers(1, 64), st.booleans())
    def test_what_is_found_fits_and_gives_no_more_than_it_must(self, capacity, length, batch, rows, recompute):
        sizes = {"micro_batch": batch, "rollout_rows": rows, "completion_length": length}
        asked = Settings(**sizes, checkpointing=recompute, prompts=1)
        try:
            found = fit(self.SHAPE, asked, capacity * GIB, generations=8)
        except DoesNotFitError:
            sizes = {"micro_batch": 1, "rollout_rows": 1, "completion_length": min(SHORTEST, length)}
            assert estimate(self.SHAPE, asked.but(**sizes, rank=4, checkpointing=True)).peak > capacity * GIB
            return
        chosen = found.settings
        assert estimate(self.SHAPE, chosen).peak <= capacity * GIB
        assert 8 % chosen.micro_batch == 0
        assert chosen.rollout_rows <= rows
        assert chosen.completion_length <= length
        whole = asked.but(micro_batch=max(s for s in (1, 2, 4, 8) if s <= batch))
        assert (chosen == whole) == (estimate(self.SHAPE, whole).peak <= capacity * GIB)
        if chosen.rollout_rows < rows:
            more = chosen.but(rollout_rows=chosen.rollout_rows + 1)
            assert estimate(self.SHAPE, more).peak > capacity * GIB

    def test_each_part_grows_with_what_it_depends_on(self):
        base = estimate(self.SHAPE, Settings())
        for change, parts in (
            ({"micro_batch": 2}, {"checkpoints", "activations", "head"}),
            ({"completion_length": 2048}, {"checkpoints", "activations", "head", "cache"}),
            ({"rollout_rows": 16}, {"cache"}),
            ({"rank": 32}, {"adapters", "optimizer"}),
            ({"optimizer": "adamw_torch"}, {"optimizer"}),
            ({"double_quantisation": False}, {"weights"}),
        ):
            other = estimate(self.SHAPE, Settings(**change))
            grown = {name for name, size in other.parts().items() if size > base.parts()[name]}
            assert grown == parts, change

    def test_a_card_too_small_for_the_weights_is_told_so(self):
        with pytest.raises(DoesNotFitError, match=r"weights take 5\.7 GiB.*weights alone do not fit"):
            fit(self.SHAPE, Settings(), 4 * GIB, generations=8)
        with pytest.raises(DoesNotFitError, match=r"load_in_4bit: true"):
            fit(self.SHAPE, Settings(four_bit=False), 12 * GIB, generations=8)


class TestCommand:
    @pytest.fixture
    def config(self, tmp_path):
        path = tmp_path / "config.json"
        path.write_text(json.dumps(qwen3("8B").to_dict()))
        return str(path)

    @pytest.fixture
    def plan(self, config, capsys):
        """Plan a run without a file; gives the exit code and what is printed."""

        def plan(*words, name=config):
            code = main(["check", "--only", "memory", "--model_name_or_path", name, *words])
            printed = capsys.readouterr()
            return code, printed.err + re.sub(r"\s*\n {12}", " ", printed.out)

        return plan

    def test_the_table_and_yaml_that_trl_can_read(self, plan):
        code, text = plan("--load_in_4bit", "--vram", "12", "--max_completion_length", "2048")
        assert code == 0
        assert "8.19e9 weights" in text
        assert "5.656 GiB" in text
        values = yaml.safe_load("\n".join(re.findall(r"^ {4}(\w+: .*)$", text, re.MULTILINE)))
        assert values["max_completion_length"] == 2048
        assert values["per_device_train_batch_size"] * values["gradient_accumulation_steps"] == 8
        known = {*GRPOPlusConfig.__dataclass_fields__, *ModelConfig.__dataclass_fields__}
        assert set(values) <= known
        assert "linear layers in 8 bits" in plan("--load_in_8bit", "--vram", "12")[1]

    def test_impossible_numbers_are_named_and_what_cannot_fit_with_its_way_out(self, plan):
        for words, said in (
            (["--load_in_4bit", "--vram", "4"], "take a smaller model or a larger card"),
            (["--load_in_8bit", "--vram", "8"], "load_in_4bit: true, which takes half of the 8-bit weights"),
            (["--vram", "0"], "--vram is 0"),
            (["--vram", "nan"], "--vram is nan"),
            (["--model", "m"], "unknown option --model. Did you mean --model_name_or_path?"),
        ):
            code, text = plan(*words)
            assert (code, said in text) == (2, True), text

    def test_a_model_that_is_quantised_another_way_is_refused_here_already(self, plan, tmp_path):
        values = {**qwen3("1.7B").to_dict(), "quantization_config": {"quant_method": "gptq", "bits": 4}}
        (tmp_path / "gptq.json").write_text(json.dumps(values))
        code, text = plan("--use_peft", name=str(tmp_path / "gptq.json"))
        assert code == 2
        assert "is already quantised with gptq" in text

    @pytest.mark.slow
    @pytest.mark.parametrize(("text", "said"), [
        (None, "strange.json"),
        ('{"model_type": "t5", "d_model": 8, "num_heads": 2}', "no causal language model"),
        ('{"model_type": "llama", "hidden_size": "x"}', "strange.json"),
        ('{"model_type": "llama", "quantization_config": "abc"}', "strange.json"),
        ('{"model_type": "llama", "num_hidden_layers": -1}', "strange.json"),
        ("[]", "strange.json"), ("{}", "names no model_type"),
    ])  # fmt: skip
    def test_a_missing_or_strange_config_is_named(self, plan, tmp_path, text, said):
        path = tmp_path / "strange.json"
        if text is not None:
            path.write_text(text)
        code, told = plan("--load_in_4bit", name=str(path))
        assert code == 2
        assert said in told
