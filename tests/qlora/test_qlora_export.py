"""Exports are loaded back by plain transformers and PEFT, and say what the trained model says."""

import json

import pytest
import torch
from peft import AutoPeftModelForCausalLM, LoraConfig, PeftModel, PromptTuningConfig, get_peft_model
from transformers import AutoModelForCausalLM, AutoTokenizer, BitsAndBytesConfig

from grpo_plus.cli import main
from grpo_plus.testing import make_tiny_model

TEXT = "a sum: 1+2=3"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """An adapter on a 4-bit base, saved as a trainer saves it."""
    folder = tmp_path_factory.mktemp("run")
    base = folder / "base"
    make_tiny_model(base, architecture="llama", hidden=64)
    model = AutoModelForCausalLM.from_pretrained(
        base, quantization_config=BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4")
    )
    adapted = get_peft_model(model, LoraConfig(r=4, target_modules="all-linear", task_type="CAUSAL_LM"))
    torch.manual_seed(0)
    for name, parameter in adapted.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.3)
    tokenizer = AutoTokenizer.from_pretrained(base)
    for checkpoint in ("checkpoint-9", "checkpoint-10"):
        adapted.save_pretrained(folder / "out" / checkpoint)
        tokenizer.save_pretrained(folder / "out" / checkpoint)
    return folder


def logits(model, folder):
    ids = AutoTokenizer.from_pretrained(folder)(TEXT, return_tensors="pt").input_ids
    with torch.no_grad():
        return model.eval()(ids).logits.float()


def test_the_merged_model_is_the_16_bit_base_with_its_adapter(run, tmp_path, capsys):
    out = tmp_path / "merged"
    assert main(["export", str(run / "out"), "--out", str(out), "--merge", "--dtype", "float32"]) == 0
    text = capsys.readouterr().out
    said = ["checkpoint-10 merged onto", f"vllm serve {out}", "(not run here)"]
    assert [words for words in said if words not in text] == []
    merged = AutoModelForCausalLM.from_pretrained(out)
    assert getattr(merged.config, "quantization_config", None) is None
    base = AutoModelForCausalLM.from_pretrained(run / "base")
    plain = logits(base, out)
    beside = logits(PeftModel.from_pretrained(base, run / "out" / "checkpoint-10"), out)
    torch.testing.assert_close(logits(merged, out), beside, rtol=1e-4, atol=1e-4)
    assert (beside - plain).abs().max() > 0.5


def test_the_adapter_alone_loads_by_itself_and_16_bits_are_the_default(run, tmp_path, capsys):
    out = tmp_path / "adapter"
    assert main(["export", str(run / "out"), "--out", str(out)]) == 0
    names = {path.name for path in out.iterdir()}
    assert {"adapter_config.json", "adapter_model.safetensors", "tokenizer.json"} <= names
    loaded = logits(AutoPeftModelForCausalLM.from_pretrained(out), out)
    base = AutoModelForCausalLM.from_pretrained(run / "base")
    assert torch.equal(loaded, logits(PeftModel.from_pretrained(base, run / "out" / "checkpoint-10"), out))
    out = tmp_path / "merged"
    assert main(["export", str(run / "out" / "checkpoint-9"), "--out", str(out), "--merge"]) == 0
    assert {p.dtype for p in AutoModelForCausalLM.from_pretrained(out, dtype="auto").parameters()} == {torch.bfloat16}


def test_what_cannot_be_exported_says_what_can(run, tmp_path, capsys):
    def error(*arguments):
        assert main(["export", *map(str, arguments)]) == 2
        return capsys.readouterr().err

    out = tmp_path / "out"
    for folder, words in (("nothing", "no folder"), ("base", "holds a full model"), (".", "holds no adapter")):
        assert words in error(run / folder, "--out", out)
    assert "exists and is not an empty folder" in error(run / "out", "--out", run)
    assert "--dtype only matters with --merge" in error(run / "out", "--out", out, "--dtype", "float16")
    stored = json.loads((run / "base" / "config.json").read_text())
    stored["quantization_config"] = {"quant_method": "bitsandbytes", "load_in_4bit": True}
    (tmp_path / "four").mkdir()
    (tmp_path / "four" / "config.json").write_text(json.dumps(stored))
    assert "stored quantised (bitsandbytes)" in error(run / "out", "--out", out, "--merge", "--base", tmp_path / "four")
    make_tiny_model(tmp_path / "wider", architecture="llama", hidden=128)
    assert "does not belong on" in error(run / "out", "--out", out, "--merge", "--base", tmp_path / "wider")
    model = AutoModelForCausalLM.from_pretrained(run / "base")
    prompts = PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=2)
    get_peft_model(model, prompts).save_pretrained(tmp_path / "prompt")
    text = error(tmp_path / "prompt", "--out", out, "--merge")
    assert "is PROMPT_TUNING: it adds to the prompt, not to the weights" in text
    (tmp_path / "torn").mkdir()
    (tmp_path / "torn" / "adapter_config.json").write_text('{"r": 4')
    assert "adapter_config.json cannot be read" in error(tmp_path / "torn", "--out", out, "--merge")
    assert not out.exists()
