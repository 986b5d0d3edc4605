"""Which way weights go to a vLLM server, and what is refused."""

import json
from types import SimpleNamespace

import pytest
from datasets import Dataset

from grpo_plus import GRPOPlusConfig
from grpo_plus.cli import UserError
from grpo_plus.cli.explain import run as explain
from grpo_plus.sampling.vllm_sync import WAYS, Means, choose, sync_problems
from grpo_plus.testing import make_tiny_model
from grpo_plus.training.serving import _longest_prompt
from tests.device import FLOAT32

GROUP = {"accelerator": True, "vllm": True}


@pytest.mark.parametrize(
    ("means", "way"),
    [
        ({}, "files"),
        (GROUP, "nccl"),
        ({"accelerator": True}, "files"),  # TRL's own path needs vLLM beside the trainer
        ({"vllm": True}, "files"),
        ({"adapters": True}, "adapter"),
        ({"adapters": True, **GROUP, "takes_adapters": True}, "adapter"),
        ({"adapters": True, **GROUP, "takes_adapters": False}, "nccl"),
        ({"adapters": True, "takes_adapters": False}, "adapter"),  # and then refused, with the command
        ({"adapters": True, **GROUP, "servable": False}, "nccl"),
        ({"adapters": True, "quantised": True, **GROUP, "takes_adapters": False}, "adapter"),
        ({"adapters": True, "as_object": True, **GROUP, "takes_adapters": True}, "nccl"),
        ({"adapters": True, "as_object": True, "quantised": True, **GROUP}, "adapter"),  # there is no other way
        ({"adapters": True, "quantised": True, **GROUP, "servable": False}, "adapter"),
    ],
    ids=str,
)
def test_what_there_is_decides(means, way):
    assert choose(None, Means(**means)).name == way
    assert {choose(asked, Means(**means)).name for asked in WAYS} == set(WAYS)


@pytest.mark.parametrize(
    ("asked", "means", "words"),
    [
        ("files", {"quantised": True, "adapters": True}, "loses most of the adapter in the rounding"),
        ("nccl", {"quantised": True, "adapters": True, **GROUP}, "loses most of the adapter in the rounding"),
        ("files", {"adapters": True}, "would wear them away"),
        ("adapter", {}, "no adapters are trained"),
        ("nccl", {}, "training runs on a CPU"),
    ],
)
def test_a_way_that_cannot_be_gone_is_refused_with_the_way_out(asked, means, words):
    (problem,) = sync_problems(asked, Means(**means))
    assert problem.startswith(f"vllm_sync is {asked!r}, ")
    assert words in problem
    assert any(word in problem for word in ("Set vllm_sync", "set vllm_sync", "leave it unset"))


def test_an_adapter_alone_does_not_go_unasked_over_a_base_that_nobody_can_compare():
    means = Means(adapters=True, as_object=True)
    (problem,) = sync_problems(None, means)
    assert "handed over as an object" in problem
    assert "Hand over the name or folder of the model; or, where" in problem
    assert sync_problems("adapter", means) == []
    assert not means._replace(**GROUP).doubtful


@pytest.mark.parametrize(
    ("asked", "means"),
    [
        (None, {"adapters": True, "as_object": True, **GROUP}),
        (None, {"adapters": True, "as_object": True, "quantised": True}),
        (None, {"as_object": True}),
        (None, {"quantised": True, "adapters": True}),
        ("adapter", {"quantised": True, "adapters": True}),
        ("adapter", {"adapters": True}),
        ("files", GROUP),
        ("nccl", GROUP),
        ("nccl", {"adapters": True, **GROUP}),
    ],
    ids=str,
)
def test_what_works_is_let_through(asked, means):
    assert sync_problems(asked, Means(**means)) == []


def test_the_recipe_has_it_and_a_word_that_is_none_is_refused(tmp_path):
    settings = {"output_dir": str(tmp_path), "use_vllm": True, "vllm_mode": "server", **FLOAT32}
    assert GRPOPlusConfig(**settings, vllm_sync="files").recipe.vllm_sync == "files"
    assert GRPOPlusConfig(**settings).recipe.vllm_sync is None
    with pytest.raises(ValueError, match="vllm_sync is 'file', expected one of 'files', 'nccl', 'adapter'"):
        GRPOPlusConfig(**settings, vllm_sync="file")


def test_the_longest_prompt_is_found_whatever_columns_a_transform_of_the_data_reads():
    rows = Dataset.from_list([{"prompt": "a" * (number % 7), "question": "b"} for number in range(20)])
    rows = rows.with_transform(lambda batch: {"prompt": batch["prompt"], "question": batch["question"]})
    host = SimpleNamespace(train_dataset=rows, _tokenizer=lambda text: {"input_ids": list(text.encode())})
    assert _longest_prompt(host) == 6


def test_explain_knows_a_checkpoint_that_is_stored_in_4_bits(tmp_path, capsys):
    make_tiny_model(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "bitsandbytes", "load_in_4bit": True}
    (tmp_path / "config.json").write_text(json.dumps(config))
    command = ["examples/quickstart.yaml", "--model_name_or_path", str(tmp_path), "--use_vllm", "true"]
    command += ["--vllm_mode", "server"]
    assert explain(command) == 0
    assert "vLLM (server), weights by adapter (the base is quantised, and a merge into it" in capsys.readouterr().out
    with pytest.raises(UserError, match=r"vllm_sync is 'files', but the base is quantised"):
        explain([*command, "--vllm_sync", "files"])


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ([], "weights by files (all weights are trained, and there is no accelerator for NCCL)"),
        (["--use_peft", "true"], "weights by adapter (adapters are trained, and the server takes them)"),
        (["--load_in_4bit", "true"], "weights by adapter (the base is quantised, and a merge into it would be lost"),
        (["--vllm_sync", "files"], "weights by files (vllm_sync says so)"),
    ],
    ids=str,
)
def test_explain_says_which_and_why(settings, said, capsys):
    assert explain(["examples/quickstart.yaml", "--use_vllm", "true", "--vllm_mode", "server", *settings]) == 0
    assert f"drawn by: vLLM (server), {said}" in capsys.readouterr().out
