"""Each hazard of a 4-bit base, run for real: what goes wrong without the guard, and that it does not with it."""

import logging
import sys
import warnings

import pytest
import torch
from peft import get_peft_model, prepare_model_for_kbit_training
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, BitsAndBytesConfig
from trl import GRPOTrainer

from grpo_plus import GRPOPlusConfig, GRPOPlusTrainer
from grpo_plus.engine.dropout import without_dropout
from grpo_plus.memory.estimate import Settings, weights
from grpo_plus.memory.shape import shape_of
from grpo_plus.qlora.checks import Request, problems
from grpo_plus.qlora.model import keep_layout, linear_4bit
from grpo_plus.qlora.precision import float32_trainables
from grpo_plus.testing import make_tiny_model
from grpo_plus.training.hooks import Setup
from grpo_plus.training.update.quantised import QuantisedGuard
from grpo_verifiers.errors import ConfigError
from tests.qlora.runs import ROWS, RUN, base_bytes, digits, lora, nf4


def config(tmp_path, **changes):
    values = {**RUN, "max_completion_length": 4, "max_steps": 1, "learning_rate": 1e-4, "gradient_checkpointing": False}
    return GRPOPlusConfig(output_dir=str(tmp_path / "out"), **{**values, **changes})


def trainer(model, args, kind=GRPOPlusTrainer, **changes):
    if isinstance(model, str):
        changes = {"quantization_config": nf4(), "peft_config": lora(), **changes}
    return kind(model, digits, args, ROWS, **changes)


def loaded(folder, **changes):
    return AutoModelForCausalLM.from_pretrained(folder, quantization_config=nf4(), **changes)


def dtypes(model):
    return {parameter.dtype for parameter in model.parameters() if parameter.requires_grad}


def kept(model):
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


def assert_kept(model, before):
    for name, value in model.named_parameters():
        assert value.dtype == before[name].dtype
        assert torch.equal(value, before[name]), name


def moments(run):
    state = [v for s in run.optimizer.state.values() for k, v in s.items() if k.startswith("exp_avg")]
    return {value.dtype for value in state}


class TestPrecision:
    @pytest.mark.slow
    def test_small_updates_arrive_that_bfloat16_would_have_lost(self, folder, tmp_path):
        args = {"learning_rate": 1e-5, "lr_scheduler_type": "constant", "max_steps": 2, "max_grad_norm": 0.0}
        args["per_device_train_batch_size"] = 16  # four groups, of which one at least has contrast
        moved = {}
        for kind in (GRPOTrainer, GRPOPlusTrainer):
            run = trainer(folder, config(tmp_path, **args), kind)
            assert dtypes(run.model) == {torch.float32 if kind is GRPOPlusTrainer else torch.bfloat16}
            before = {n: p.detach().clone() for n, p in run.model.named_parameters() if "lora_A" in n}
            run.train()
            after = dict(run.model.named_parameters())
            changed = torch.cat([(after[n] != p).flatten() for n, p in before.items()])
            moved[kind] = changed.float().mean().item()
        assert moved[GRPOPlusTrainer] > 0.9
        assert moved[GRPOTrainer] < 0.3

    def test_adapters_that_came_with_the_model_are_not_rounded_on_the_way(self, folder, tmp_path):
        model = get_peft_model(loaded(folder), lora())
        before = {n: p.detach().clone() for n, p in model.named_parameters() if p.requires_grad}
        run = trainer(model, config(tmp_path, beta=0.1))
        after = dict(run.model.named_parameters())
        assert before
        for name, value in before.items():
            assert torch.equal(after[name], value), name
            assert torch.equal(after[name.replace(".default.", ".ref.")], value), name

    @pytest.mark.slow
    def test_resumed_adapters_and_optimizer_are_float32_and_exact(self, folder, tmp_path):
        args = {"max_steps": 2, "save_strategy": "steps", "save_steps": 1, "lr_scheduler_type": "constant"}
        whole = trainer(folder, config(tmp_path, **args))
        whole.train()
        again = trainer(folder, config(tmp_path, **args))
        again.train(resume_from_checkpoint=str(tmp_path / "out" / "checkpoint-1"))
        assert dtypes(again.model) == moments(again) == {torch.float32}
        assert again.state.global_step == 2
        finals = dict(again.model.named_parameters())
        for name, value in whole.model.named_parameters():
            if value.requires_grad:
                torch.testing.assert_close(finals[name], value, rtol=1e-5, atol=1e-6)

    @pytest.mark.slow
    def test_a_checkpoint_of_the_host_in_bfloat16_is_resumed_in_float32(self, folder, tmp_path):
        args = {"max_steps": 2, "save_strategy": "steps", "save_steps": 1}
        trainer(folder, config(tmp_path, **args), GRPOTrainer).train()
        again = trainer(folder, config(tmp_path, **args))
        again.train(resume_from_checkpoint=str(tmp_path / "out" / "checkpoint-1"))
        assert dtypes(again.model) == moments(again) == {torch.float32}

    @pytest.mark.slow
    def test_every_kind_of_trained_weight_is_float32(self, folder, tmp_path):
        adapters = {"modules_to_save": lora(modules_to_save=["embed_tokens"]), "lora_A": lora(use_rslora=True)}
        for part, adapter in (*adapters.items(), ("lora_magnitude_vector", lora(use_dora=True))):
            run = trainer(folder, config(tmp_path), peft_config=adapter)
            assert any(part in n for n, p in run.model.named_parameters() if p.requires_grad)
            run.train()
            assert dtypes(run.model) == {torch.float32}

    def test_adapters_on_a_float16_base_are_float32(self, folder, tmp_path):
        """What a card without bfloat16 trains: loss scaling refuses gradients in float16."""
        run = trainer(folder, config(tmp_path), quantization_config=nf4(torch.float16))
        assert run.model.get_output_embeddings().weight.dtype == torch.float16
        assert dtypes(run.model) == {torch.float32}

    def test_a_model_given_by_name_loads_in_the_type_of_the_products(self, folder, tmp_path):
        stock = trainer(folder, config(tmp_path, bf16=True), GRPOTrainer)
        ours = trainer(folder, config(tmp_path, bf16=True))
        chosen = trainer(folder, config(tmp_path), quantization_config=nf4(torch.bfloat16))
        told = trainer(folder, config(tmp_path, bf16=True, model_init_kwargs={"dtype": "float32"}))
        head = [run.model.get_output_embeddings().weight.dtype for run in (stock, ours, chosen, told)]
        assert head == [torch.float32, torch.bfloat16, torch.bfloat16, torch.float32]

    def test_casts_while_sampling_are_undone_to_the_bit(self, folder, tmp_path):
        run = trainer(folder, config(tmp_path))
        before = kept(run.model)
        buffers = {n: b.detach().clone() for n, b in run.model.named_buffers()}
        with run.pipeline.quantised.sampling():
            torch.nn.Module.to(run.model, torch.bfloat16)
            assert dtypes(run.model) == {torch.bfloat16}
        assert_kept(run.model, before)
        assert all(torch.equal(value, buffers[name]) for name, value in run.model.named_buffers())

    @pytest.mark.slow
    def test_an_evaluation_in_16_bits_leaves_the_adapters_as_they_were(self, folder, tmp_path):
        rows = {"eval_dataset": ROWS.select(range(4))}
        run = trainer(folder, config(tmp_path, bf16_full_eval=True, per_device_eval_batch_size=4), **rows)
        run.train()
        before, packed, seen = kept(run.model), base_bytes(run.model), []
        next(linear_4bit(run.model)).register_forward_hook(lambda *_: seen.append(dtypes(run.model)))
        run.evaluate()
        assert {torch.bfloat16} in seen
        assert_kept(run.model, before)
        assert all(torch.equal(value, packed[key]) for key, value in base_bytes(run.model).items())


@pytest.mark.cpu
class TestRepacking:
    @pytest.fixture
    def model(self, folder):
        model = loaded(folder)
        if not any(layer.support_avx512bf16_for_cpu for layer in linear_4bit(model)):
            pytest.skip("this CPU has no AVX512-BF16, so bitsandbytes rearranges nothing")
        return model

    def gradient(self, model):
        model.get_input_embeddings().weight.grad = None
        model.train()
        model(torch.arange(8)[None], labels=torch.arange(8)[None]).loss.backward()
        return model.get_input_embeddings().weight.grad.clone()

    def test_an_evaluation_pass_leaves_gradients_alone(self, folder, model):
        honest = self.gradient(model)
        bytes_before = base_bytes(model)
        keep_layout(model)
        model.eval()
        with torch.no_grad():
            model(torch.arange(8)[None])
        assert torch.equal(self.gradient(model), honest)
        assert all(torch.equal(value, bytes_before[key]) for key, value in base_bytes(model).items())

        unguarded = loaded(folder).eval()
        with torch.no_grad():
            unguarded(torch.arange(8)[None])
        assert not torch.allclose(self.gradient(unguarded), honest, rtol=1e-2)

    def test_what_was_rearranged_before_is_put_back_and_said(self, model, caplog):
        honest = self.gradient(model)
        model.eval()
        with torch.no_grad():
            model(torch.arange(8)[None])
        with caplog.at_level(logging.WARNING):
            assert keep_layout(model) == 14
        assert "14 4-bit layers had been rearranged" in caplog.text
        torch.testing.assert_close(self.gradient(model), honest, rtol=0.05, atol=0.05 * honest.abs().max().item())

    def test_the_trainer_guards_its_model(self, folder, tmp_path):
        run = trainer(folder, config(tmp_path))
        assert not any(layer.support_avx512bf16_for_cpu for layer in linear_4bit(run.model))


class TestSampling:
    @pytest.mark.slow
    def test_dropout_is_off_while_completions_are_drawn(self, folder, tmp_path):
        seen = {}
        for kind in (GRPOTrainer, GRPOPlusTrainer):
            run = trainer(folder, config(tmp_path), kind, peft_config=lora(lora_dropout=0.5))
            drops = [m for n, m in run.model.named_modules() if "lora_dropout" in n and isinstance(m, torch.nn.Dropout)]
            modes = []
            layer = next(iter(linear_4bit(run.model)))
            layer.register_forward_hook(lambda *_, drops=drops, modes=modes: modes.append([m.training for m in drops]))
            run.train()
            assert drops
            seen[kind] = modes
        assert all(all(step) for step in seen[GRPOTrainer])
        assert not any(any(step) for step in seen[GRPOPlusTrainer][:-1])
        assert all(seen[GRPOPlusTrainer][-1])  # the update keeps it

    def test_each_module_gets_its_own_mode_back(self):
        model = torch.nn.Sequential(torch.nn.Dropout(0.5), torch.nn.Sequential(torch.nn.Dropout(0.5)))
        model[1].eval()

        def interrupted():
            with without_dropout(model):
                assert torch.equal(model(torch.ones(50)), torch.ones(50))
                model.train()
                raise KeyError

        with pytest.raises(KeyError):
            interrupted()
        assert [m.training for m in model.modules()] == [True, True, False, False]


class TestRefusals:
    def refusal(self, *arguments, **keywords):
        with pytest.raises(ConfigError) as caught:
            trainer(*arguments, **keywords)
        return str(caught.value)

    def test_what_vllm_could_take_only_merged_into_the_base_is_refused(self, folder, tmp_path):
        text = self.refusal(folder, config(tmp_path, use_vllm=True), peft_config=lora(use_dora=True))
        assert "vLLM cannot serve adapters with use_dora" in text
        assert "use_vllm: false" in text
        model = get_peft_model(loaded(folder), lora(r=513))
        assert "up to rank 512" in self.refusal(model, config(tmp_path, use_vllm=True), peft_config=None)
        asleep = config(tmp_path, use_vllm=True, vllm_enable_sleep_mode=True)
        assert "vllm_enable_sleep_mode is true" in self.refusal(folder, asleep)
        eight = BitsAndBytesConfig(load_in_8bit=True)
        text = self.refusal(folder, config(tmp_path, use_vllm=True), quantization_config=eight)
        assert "the base is 8-bit, which vLLM in the same process cannot hold" in text

    @pytest.mark.parametrize("targets", [["q_proj", "lm_head"], r".*(q_proj|lm_head)", ["model.lm_head"]])
    def test_an_adapter_on_the_head_is_refused_before_loading(self, targets, tmp_path):
        missing = str(tmp_path / "no_such_model")
        assert "lm_head" in self.refusal(missing, config(tmp_path), peft_config=lora(target_modules=targets))

    @pytest.mark.parametrize("method", ["gptq", "awq"])
    def test_another_quantisation_is_refused(self, method, folder, tmp_path):
        model, tokenizer = make_tiny_model(architecture="llama", hidden=64)
        model.config.quantization_config = {"quant_method": method, "bits": 4, "group_size": 128}
        model.config.save_pretrained(tmp_path / method)
        tokenizer.save_pretrained(tmp_path / method)
        for quantization in (nf4(), None):
            text = self.refusal(str(tmp_path / method), config(tmp_path), quantization_config=quantization)
            assert f"already quantised with {method}" in text
            assert "16-bit checkpoint" in text

    def test_an_unknown_4_bit_format_is_refused_before_loading_with_all_else_that_is_wrong(self, tmp_path):
        missing, quantization = str(tmp_path / "no_such_model"), nf4()
        quantization.bnb_4bit_quant_type = "nf8"
        lost = lora(target_modules=["lm_head"])
        text = self.refusal(missing, config(tmp_path), quantization_config=quantization, peft_config=lost)
        assert "bnb_4bit_quant_type is 'nf8', expected nf4 or fp4" in text
        assert "the config has 2 problems" in text

    def test_a_base_without_adapters_is_refused(self, folder, tmp_path):
        assert "use_peft: true" in self.refusal(folder, config(tmp_path), peft_config=None)
        assert "peft_config" in self.refusal(loaded(folder), config(tmp_path))

    def test_preparing_twice_freezes_everything_and_is_found(self, folder, tmp_path):
        model = get_peft_model(prepare_model_for_kbit_training(loaded(folder)), lora())
        fine = trainer(model, config(tmp_path))
        assert dtypes(fine.model) == {torch.float32}
        frozen = prepare_model_for_kbit_training(get_peft_model(loaded(folder), lora()))
        assert "freezes all parameters" in self.refusal(frozen, config(tmp_path))

    def test_a_missing_bitsandbytes_is_named(self, folder, tmp_path, monkeypatch):
        quantization = nf4()
        monkeypatch.setitem(sys.modules, "bitsandbytes", None)
        text = self.refusal(folder, config(tmp_path), quantization_config=quantization)
        assert "pip install 'bitsandbytes" in text


@pytest.mark.slow
def test_a_checkpoint_that_is_stored_in_4_bits_loads_and_trains(folder, tmp_path):
    loaded(folder).save_pretrained(tmp_path / "stored")
    AutoTokenizer.from_pretrained(folder).save_pretrained(tmp_path / "stored")
    run = trainer(str(tmp_path / "stored"), config(tmp_path), quantization_config=None)
    before = base_bytes(run.model)
    run.train()
    assert len(before) > 14
    assert dtypes(run.model) == {torch.float32}
    after = base_bytes(run.model)
    assert all(torch.equal(after[key], value) for key, value in before.items())


def guard(capacity, model, args, quantisation):
    """The guard's checks before anything loads, on a card of this size."""
    further = {"quantization_config": quantisation, "peft_config": lora()}
    QuantisedGuard(capacity).before_loading(Setup(model, None, args, None, None, further))


def test_a_run_that_will_not_fit_is_warned_of_before_it_loads(folder, tmp_path, caplog):
    def check(capacity, **changes):
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            guard(capacity, folder, config(tmp_path, **changes), nf4())
        return caplog.text

    assert check(2**31) == ""
    text = check(1.05 * 2**30, max_completion_length=2**14, per_device_train_batch_size=32)
    assert "is estimated to need" in text
    assert "grpo-plus check config.yaml --vram GIB prints settings that fit a card" in text
    with pytest.raises(ConfigError, match=r"its weights alone do not fit: take a smaller model"):
        check(2**10)


def test_scales_that_are_not_quantised_count_in_the_warning(folder, tmp_path):
    """On a card between the two sizes of the weights, only the smaller ones are let through."""
    shape = shape_of(AutoConfig.from_pretrained(folder))
    sizes = [weights(shape, Settings(width=4, double_quantisation=double)) for double in (True, False)]
    capacity = sum(sizes) / 2

    def check(double):
        quantisation = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_use_double_quant=double)
        guard(capacity, folder, config(tmp_path), quantisation)

    check(double=True)
    with pytest.raises(ConfigError, match="weights alone do not fit"):
        check(double=False)


def test_a_16_bit_base_is_left_alone(folder, tmp_path):
    model = AutoModelForCausalLM.from_pretrained(folder)
    run = trainer(get_peft_model(model, lora(lora_dropout=0.1)), config(tmp_path, learning_rate=1e-6))
    assert run.pipeline.quantised.active is False
    with run.pipeline.quantised.sampling():
        assert run.model.training


def test_a_gradient_in_the_old_type_is_carried_over(device):
    layer = torch.nn.Linear(2, 2, device=device, dtype=torch.bfloat16)
    layer(torch.ones(1, 2, device=device, dtype=torch.bfloat16)).sum().backward()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert float32_trainables(layer) == 2
    assert layer.weight.grad.dtype == torch.float32
    assert float32_trainables(layer) == 0


class TestRules:
    """Machines that are not here: the rules on their own."""

    def test_each_names_its_way_out(self):
        for changes, words in (
            ({"zero_stage": 3}, "ZeRO-3 cannot shard a 4-bit base"),
            ({"sharded": True}, "FSDP with a 4-bit base"),
            ({"adapters": False}, "peft_config"),
        ):
            (text,) = problems(Request("m", 4, **changes))
            assert words in text
            assert "drop load_in_4bit" in text or "use_peft: true" in text

    def test_what_works_is_let_through(self):
        assert problems(Request("m", 4, stored_as="bitsandbytes", requested=True, zero_stage=2)) == []
        everything = Request("m", None, zero_stage=3, sharded=True, targets=["lm_head"], adapters=False)
        assert problems(everything) == []
        assert problems(Request("m", None, stored_as="mxfp4")) == []
