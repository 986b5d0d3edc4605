"""What is about to be loaded is said before the download, and refused where no card could train it."""

import json
from types import SimpleNamespace

import pytest
from transformers import AutoModelForCausalLM

from grpo_plus.cli._notes import downloads, load_notes, parameters, slow_here

EIGHT = {"model_name_or_path": "Qwen/Qwen3-8B", "load_in_4bit": True}


def test_a_name_tells_the_size_where_no_config_is_here():
    names = {"Qwen/Qwen3-8B": 8e9, "Qwen/Qwen3-30B-A3B": 3e10, "HuggingFaceTB/SmolLM2-360M": 3.6e8}
    names |= {"unsloth/Qwen3-14B-bnb-4bit": 1.4e10, "org/model-v2": 0}
    for name, count in names.items():
        assert parameters(name) == count
        assert downloads(name)


def test_a_folder_is_counted_by_its_config_and_what_is_in_the_cache_is_not_downloaded(
    tiny_model, tmp_path, monkeypatch
):
    assert not downloads(tiny_model)
    assert parameters(tiny_model) == sum(
        p.numel() for p in AutoModelForCausalLM.from_pretrained(tiny_model).parameters()
    )
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    place = tmp_path / "models--a--b-7B" / "snapshots" / "0"
    place.mkdir(parents=True)
    (place / "config.json").write_text(json.dumps({"model_type": "x"}))
    assert downloads("a/b-7B")
    (place / "model.safetensors").touch()
    assert not downloads("a/b-7B")


@pytest.fixture
def no_card(monkeypatch):
    monkeypatch.setattr("torch.accelerator.is_available", lambda: False)


@pytest.mark.slow
@pytest.mark.usefixtures("no_card")
def test_a_large_model_without_a_card_is_refused_before_any_download_and_a_small_one_goes_on(cli, config):
    err = cli.refused("train", config(**EIGHT, use_cpu=None))
    text = " ".join(err.split())
    assert "there is no CUDA device here" in text
    assert "Qwen/Qwen3-8B has about 8 billion parameters, 16 GB in 16 bits, in 4 bits" in text
    assert "after the download" in text
    assert "--use_cpu true" in text
    assert "loading" not in err
    assert "downloaded" not in cli.done("train", config(use_cpu=None, max_steps=1))


@pytest.mark.slow
@pytest.mark.usefixtures("no_card")
def test_who_asks_for_the_cpu_is_told_what_comes_first_and_explain_says_it_too(cli, config, monkeypatch):
    told = " ".join(cli.done("check", "--only=config", config(**EIGHT)).split())
    assert "Qwen/Qwen3-8B (about 8 billion parameters, 16 GB in 16 bits) is not on this machine" in told
    monkeypatch.delenv("HF_HUB_OFFLINE")
    code, out, err = cli("train", config(**EIGHT, prompt={"column": "prompt"}))
    assert code == 2
    assert "Qwen/Qwen3-8B is not on this machine and is downloaded from the hub: about 8 billion parameters" in out
    assert "there is no CUDA" not in err


def test_a_large_folder_counts_as_its_config_says(tmp_path, monkeypatch, no_card):
    values = {"model_type": "qwen2", "hidden_size": 2048, "num_hidden_layers": 24, "num_attention_heads": 16}
    values |= {"num_key_value_heads": 16, "intermediate_size": 8192, "vocab_size": 1000}
    (tmp_path / "config.json").write_text(json.dumps(values))
    model, training = SimpleNamespace(model_name_or_path=str(tmp_path)), SimpleNamespace(use_cpu=False)
    parsed = SimpleNamespace(model=model, training=training)
    assert "has about 1.6" in (slow := slow_here(parsed))
    assert "after the download" not in slow
    assert load_notes(parsed) == []
    training.use_cpu = True
    assert not slow_here(parsed)
