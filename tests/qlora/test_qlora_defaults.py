"""Defaults of a 4-bit command line: for what was left unset only, and through TRL's own parser."""

import json

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, BitsAndBytesConfig
from trl import ModelConfig, TrlParser, get_peft_config, get_quantization_config

from grpo_plus import GRPOPlusConfig
from grpo_plus.cli import main
from grpo_plus.qlora.defaults import Device, fill_parser, quantised_defaults
from grpo_plus.qlora.model import requested_bits
from grpo_plus.testing import make_tiny_model
from tests.device import ON_CPU
from tests.qlora.runs import nf4

AMPERE, TURING, CPU = Device("cuda", bf16=True), Device("cuda", bf16=False), Device("cpu", bf16=False)
UNSET = {
    "load_in_4bit": True, "use_peft": False, "dtype": "float32", "bf16": None, "fp16": False, "optim": "adamw_torch_fused",
    "learning_rate": 1e-6, "lora_target_modules": None, "lora_dropout": 0.05, "use_bnb_nested_quant": False,
    "gradient_checkpointing": True, "gradient_checkpointing_kwargs": None,
}  # fmt: skip


def chosen(device, given=(), **values):
    return {d.name: d.value for d in quantised_defaults({**UNSET, **values}, given, device)}


def test_precision_and_optimizer_follow_the_device():
    for device, bf16, fp16, dtype, optim in (
        (AMPERE, True, None, "bfloat16", "paged_adamw_8bit"),
        (TURING, False, True, "float16", "paged_adamw_8bit"),
        (CPU, False, None, "float32", "adamw_torch"),
    ):
        found = chosen(device)
        assert (found["bf16"], found.get("fp16"), found["dtype"], found["optim"]) == (bf16, fp16, dtype, optim)
        assert found["learning_rate"] == pytest.approx(2e-5)
        assert (found["use_peft"], found["lora_target_modules"]) == (True, ["all-linear"])
        assert found["gradient_checkpointing_kwargs"] == {"use_reentrant": False}


def test_nothing_that_was_set_is_touched_and_the_rest_follows_it():
    assert chosen(AMPERE, UNSET) == {}
    assert chosen(AMPERE, (), load_in_4bit=False) == {}
    found = chosen(AMPERE, ("fp16",), fp16=True)
    assert (found["dtype"], found["bf16"]) == ("float16", False)
    assert chosen(TURING, ("bf16",), bf16=True)["dtype"] == "bfloat16"
    assert "fp16" not in chosen(TURING, ("bf16",), bf16=True)
    assert chosen(AMPERE, ("bf16",), bf16=False)["dtype"] == "float32"
    assert not {"use_peft", "learning_rate", "optim"} & set(chosen(AMPERE, ("use_peft",), use_peft=False))
    set_off = {"gradient_checkpointing": False}
    assert "gradient_checkpointing_kwargs" not in chosen(AMPERE, set_off, **set_off)


def test_an_8_bit_base_gets_all_but_the_second_quantisation_and_bits_are_read_from_a_config_or_a_mapping():
    four, eight = chosen(AMPERE), chosen(AMPERE, load_in_4bit=False, load_in_8bit=True)
    assert set(four) - set(eight) == {"use_bnb_nested_quant"}
    assert eight == {name: value for name, value in four.items() if name in eight}
    assert {"use_peft", "learning_rate", "optim", "dtype", "bf16"} <= set(eight)
    asked = [{"load_in_4bit": True}, BitsAndBytesConfig(load_in_8bit=True), {"load_in_4bit": False}, None]
    assert [requested_bits(one) for one in asked] == [4, 8, None, None]


def test_a_checkpoint_that_is_stored_quantised_gets_them_too(tmp_path):
    made, _ = make_tiny_model(tmp_path / "plain", architecture="llama", hidden=64, layers=1)
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "plain", quantization_config=nf4())
    model.save_pretrained(tmp_path / "stored")
    flags = ["--output_dir", str(tmp_path), "--use_cpu", "--model_name_or_path"]
    training, model, notes = parsed([*flags, str(tmp_path / "stored")])
    assert model.use_peft
    assert training.learning_rate == 2e-5
    assert "use_bnb_nested_quant" not in {note.name for note in notes}  # the checkpoint says how it is quantised
    assert parsed([*flags, str(tmp_path / "plain")])[2] == []
    made.config.quantization_config = {"quant_method": "gptq", "bits": 4, "group_size": 128}
    made.config.save_pretrained(tmp_path / "gptq")
    assert parsed([*flags, str(tmp_path / "gptq")])[2] == []


def parsed(flags, device=CPU, **file):
    parser = TrlParser((GRPOPlusConfig, ModelConfig))
    parser.set_defaults_with_config(**file)
    notes = fill_parser(parser, flags, file, device)
    training, model = parser.parse_args_into_dataclasses(flags, look_for_args_file=False)
    return training, model, notes


def test_through_the_parser(tmp_path):
    flags = f"--output_dir {tmp_path} --learning_rate 3e-4 --use_cpu --lora_r=8 --logging-steps 3".split()
    training, model, notes = parsed(flags, load_in_4bit=True, lora_dropout=0.1)
    assert (training.learning_rate, training.optim, training.bf16) == (3e-4, "adamw_torch", False)
    assert training.gradient_checkpointing_kwargs == {"use_reentrant": False}
    adapters = get_peft_config(model)
    assert (adapters.target_modules, adapters.r, adapters.lora_dropout) == ("all-linear", 8, 0.1)
    quantisation = get_quantization_config(model)
    assert quantisation.load_in_4bit is quantisation.bnb_4bit_use_double_quant is True
    assert {note.name for note in notes} >= {"use_peft", "dtype", "optim", "bf16"}
    assert "use_peft: true  (a 4-bit base cannot be trained itself" in "\n".join(map(str, notes))
    training, model, notes = parsed(["--output_dir", str(tmp_path), "--use_cpu", "--use_peft"])  # not in 4 bits
    assert (notes, training.learning_rate, model.lora_target_modules, model.dtype) == ([], 1e-6, None, "float32")


@pytest.mark.slow
@pytest.mark.parametrize("bits", [4, 8])
def test_a_quantised_run_from_the_command_line(bits, tmp_path, capsys):
    make_tiny_model(tmp_path / "model", architecture="llama", hidden=64, layers=1)
    (tmp_path / "data.jsonl").write_text('{"prompt": "1+1="}\n{"prompt": "2+2="}\n')
    (tmp_path / "reward.py").write_text("def size(completions, **_):\n    return [float(len(c)) for c in completions]")
    (tmp_path / "run.yaml").write_text(
        f"model_name_or_path: {tmp_path / 'model'}\ndataset_name: {tmp_path / 'data.jsonl'}\n"
        f"output_dir: {tmp_path / 'out'}\nreward_funcs: [./reward.py:size]\nload_in_{bits}bit: true\nuse_cpu: {ON_CPU}\n"
        "max_steps: 1\nnum_generations: 2\nper_device_train_batch_size: 2\nmax_completion_length: 4\nreport_to: none\n"
        "logging_steps: 1\nlearning_rate: 3e-4\n"
    )
    assert main(["train", str(tmp_path / "run.yaml"), "--lora_r", "4"]) == 0
    text = capsys.readouterr().out
    notes = ("For a quantised base, options that were left unset:", "use_peft: true", "rollout: auto")
    assert all(note in text for note in notes)
    assert "learning_rate: " not in text
    state = json.loads((tmp_path / "out" / "checkpoint-1" / "trainer_state.json").read_text())
    assert any("rollout/row_steps_saved" in entry for entry in state["log_history"])
    adapter = load_file(tmp_path / "out" / "adapter_model.safetensors")
    assert {value.dtype for value in adapter.values()} == {torch.float32}
    assert ({min(value.shape) for value in adapter.values()}, len(adapter)) == ({4}, 14)
