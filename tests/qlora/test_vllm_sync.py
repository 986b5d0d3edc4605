"""Which way weights go to a vLLM server, and what is refused."""

import json

import pytest

from grpo_plus import GRPOPlusConfig
from grpo_plus.cli import main
from grpo_plus.sampling.vllm_sync import WAYS, SyncConditions, choose, sync_problems
from grpo_plus.testing import make_tiny_model
from tests.device import FLOAT32


def means(words):
    """What there is, in words; a minus before what there is not."""
    return SyncConditions(**{word.removeprefix("-"): not word.startswith("-") for word in words.split()})


FILES = ["", "accelerator", "vllm"]  # TRL's own path needs vLLM beside the trainer
NCCL = ["accelerator vllm", *(f"adapters accelerator vllm {more}" for more in ("-takes_adapters", "-servable"))]
NCCL += ["adapters as_object accelerator vllm takes_adapters"]
# Without the group of NCCL, or over a quantised base, there is no other way: it is refused then, with the command.
ADAPTER = ["adapters", "adapters accelerator vllm takes_adapters", "adapters -takes_adapters"]
ADAPTER += [f"adapters quantised accelerator vllm {more}" for more in ("-takes_adapters", "as_object", "-servable")]


@pytest.mark.parametrize(("way", "those"), [("files", FILES), ("nccl", NCCL), ("adapter", ADAPTER)])
def test_what_there_is_decides(way, those):
    for words in those:
        assert choose(None, means(words)).name == way, words
        assert {choose(asked, means(words)).name for asked in WAYS} == set(WAYS)


def test_a_way_that_cannot_be_gone_is_refused_with_the_way_out():
    for asked, there, words in (
        ("files", "quantised adapters", "loses most of the adapter in the rounding"),
        ("nccl", "quantised adapters accelerator vllm", "loses most of the adapter in the rounding"),
        ("files", "adapters", "round the trained base again"),
        ("adapter", "", "no adapters are trained"),
        ("nccl", "", "training runs on a CPU"),
    ):
        (problem,) = sync_problems(asked, means(there))
        assert problem.startswith(f"rollout vllm_sync is {asked!r}, ")
        assert words in problem
        assert any(word in problem for word in ("Set rollout: {vllm_sync", "set rollout: {vllm_sync", "leave it unset"))


def test_an_adapter_alone_goes_unasked_over_no_base_that_nobody_can_compare_and_what_works_is_let_through():
    there = means("adapters as_object")
    (problem,) = sync_problems(None, there)
    assert "handed over as an object" in problem
    assert "Pass the name or folder of the model; or, if" in problem
    assert sync_problems("adapter", there) == []
    assert not there._replace(accelerator=True, vllm=True).doubtful
    group = "accelerator vllm"
    unasked = [f"adapters as_object {group}", "adapters as_object quantised", "as_object", "quantised adapters"]
    asked = {"adapter": ["quantised adapters", "adapters"], "files": [group], "nccl": [group, f"adapters {group}"]}
    for way, those in (asked | {None: unasked}).items():
        assert [words for words in those if sync_problems(way, means(words))] == []


def test_the_recipe_has_it_and_a_word_that_is_none_is_refused(tmp_path):
    settings = {"output_dir": str(tmp_path), "use_vllm": True, "vllm_mode": "server", **FLOAT32}
    assert GRPOPlusConfig(**settings, rollout={"vllm_sync": "files"}).recipe.rollout.vllm_sync == "files"
    assert GRPOPlusConfig(**settings).recipe.rollout.vllm_sync is None
    with pytest.raises(
        ValueError, match="rollout: key 'vllm_sync' is 'file', expected one of 'files', 'nccl', 'adapter'"
    ):
        GRPOPlusConfig(**settings, rollout={"vllm_sync": "file"})


def test_explain_knows_a_checkpoint_that_is_stored_in_4_bits(tmp_path, capsys):
    make_tiny_model(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "bitsandbytes", "load_in_4bit": True}
    (tmp_path / "config.json").write_text(json.dumps(config))
    command = [
        "check",
        "--only=config",
        "examples/quickstart.yaml",
        "--model_name_or_path",
        str(tmp_path),
        "--use_vllm",
        "true",
    ]
    command += ["--vllm_mode", "server"]
    assert main(command) == 0
    assert "vLLM (server), weights by adapter (the base is quantised, and a merge into it" in capsys.readouterr().out
    assert main([*command, "--rollout.vllm_sync", "files"]) == 2
    assert "vllm_sync is 'files', but the base is quantised" in capsys.readouterr().err


def test_explain_says_which_and_why(capsys):
    for settings, said in (
        ([], "weights by files (all weights are trained, and there is no accelerator for NCCL)"),
        (["--use_peft", "true"], "weights by adapter (adapters are trained, and the server takes them)"),
        (["--load_in_4bit", "true"], "weights by adapter (the base is quantised, and a merge into it would be lost"),
        (["--rollout.vllm_sync", "files"], "weights by files (rollout says so)"),
    ):
        server = ["--use_vllm", "true", "--vllm_mode", "server"]
        assert main(["check", "--only=config", "examples/quickstart.yaml", *server, *settings]) == 0
        assert f"sampled by: vLLM (server), {said}" in capsys.readouterr().out
