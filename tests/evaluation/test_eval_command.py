"""`grpo-plus eval` from its arguments to its table and files."""

import re

import pytest
from peft import LoraConfig, get_peft_model

from grpo_plus.testing import make_tiny_model

from .conftest import samples_of

FAST = ("--max-completion-length", "6", "--device", "cpu")


@pytest.fixture(scope="module")
def adapter(tmp_path_factory, tiny_model):
    folder = tmp_path_factory.mktemp("adapter")
    network, _ = make_tiny_model(seed=1)
    network.name_or_path = network.config._name_or_path = tiny_model
    wrapped = get_peft_model(network, LoraConfig(target_modules="all-linear", init_lora_weights=False))
    wrapped.peft_config["default"].base_model_name_or_path = tiny_model
    wrapped.save_pretrained(folder)
    return str(folder)


def test_table_file_and_a_second_call_that_has_nothing_to_do(cli, data, tiny_model, tmp_path):
    out = tmp_path / "samples.jsonl"
    command = ("eval", tiny_model, "--dataset", data, "--split", "train", "--verifier", "numeric")
    command += ("--option", "source=last", "-n", "4", "-k", "1,2,4", "--out", out, *FAST)
    code, text, err = cli(*command)
    assert code == 0, err
    for k in (1, 2, 4):
        assert re.search(rf"numeric: pass@{k} .*\d+\.\d% \(\d+\.\d to \d+\.\d\)", text), text
    assert "numeric: majority@4" in text
    assert "24/24" in err
    samples = samples_of(out)
    assert len(samples) == 24
    first = out.read_text()
    assert sum(int(n) for n in re.findall(r"numeric: (?:correct|wrong|unparsable|error)\s+│ (\d+)", text)) == 24
    code, again, err = cli(*command)
    assert code == 0
    assert "24 of 24 samples are in" in err
    assert out.read_text() == first
    assert again == text
    assert "temperature was 1.0, now 0.5" in cli.refused(*command, "--temperature", "0.5")
    assert cli(*command, "--temperature", "0.5", "--overwrite")[0] == 0
    assert out.read_text() != first


def test_prompts_are_made_as_for_training(cli, data, tiny_model, tmp_path):
    out = tmp_path / "samples.jsonl"
    cli.done(
        "eval", tiny_model, "--dataset", data, "--split", "train", "--verifier", "exact", "--prompt_column", "question",
        "--system", "Add.", "--limit", "2", "--out", out, *FAST,
    )  # fmt: skip
    prompts = [row["prompt"] for row in samples_of(out)]
    assert prompts[1] == [{"role": "system", "content": "Add."}, {"role": "user", "content": "1?"}]
    assert len(prompts) == 2


@pytest.mark.slow
def test_an_adapter_brings_its_base_along_and_is_none_on_an_adapter(cli, data, tiny_model, adapter, tmp_path):
    common = ("--dataset", data, "--split", "train", "--verifier", "exact", "--temperature", "0", *FAST)
    found = {}
    for name, model in {
        "alone": (adapter,), "beside": (tiny_model, "--adapter", adapter), "base": (tiny_model,),
        "4 bits": (tiny_model, "--adapter", adapter, "--load-in-4bit"),
    }.items():  # fmt: skip
        out = tmp_path / f"{name}.jsonl"
        cli.done("eval", *model, *common, "--out", out)
        found[name] = [row["completion"] for row in samples_of(out)]
    assert found["alone"] == found["beside"] != found["base"]
    assert "is an adapter itself" in cli.refused("eval", adapter, "--adapter", adapter, *common)
