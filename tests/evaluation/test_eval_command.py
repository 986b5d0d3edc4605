"""`grpo-plus eval` from its arguments to its table and files."""

import json
import re

import pytest
from peft import LoraConfig, get_peft_model

from grpo_plus.testing import make_tiny_model

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


def rows_of(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_table_file_and_a_second_call_that_has_nothing_to_do(cli, data, tiny_model, tmp_path):
    out = tmp_path / "samples.jsonl"
    command = ("eval", tiny_model, "--dataset", data, "--split", "train", "--verifier", "numeric")
    command += ("--option", "source=last", "-n", "4", "-k", "1,2,4", "--out", out, *FAST)
    code, text, err = cli(*command)
    assert code == 0, err
    for k in (1, 2, 4):
        assert re.search(rf"numeric: pass@{k} .*\d+\.\d% \(\d+\.\d to \d+\.\d\)", text), text
    assert "numeric: majority@4" in text
    assert "24 of 24 samples" in err
    samples = rows_of(out)
    assert len(samples) == 24
    first = out.read_text()
    assert sum(int(n) for n in re.findall(r"numeric: (?:correct|wrong|unparsable|error)\s+│ (\d+)", text)) == 24
    code, again, err = cli(*command)
    assert code == 0
    assert "24 of 24 samples are in" in err
    assert out.read_text() == first
    assert again == text
    code, _, err = cli(*command, "--temperature", "0.5")
    assert code == 2
    assert "temperature was 1.0, now 0.5" in err
    assert cli(*command, "--temperature", "0.5", "--overwrite")[0] == 0
    assert out.read_text() != first


def test_prompts_are_made_as_for_training(cli, data, tiny_model, tmp_path):
    out = tmp_path / "samples.jsonl"
    code, _, err = cli(
        "eval", tiny_model, "--dataset", data, "--split", "train", "--verifier", "exact", "--prompt_column", "question",
        "--system", "Add.", "--limit", "2", "--out", out, *FAST,
    )  # fmt: skip
    assert code == 0, err
    prompts = [row["prompt"] for row in rows_of(out)]
    assert prompts[1] == [{"role": "system", "content": "Add."}, {"role": "user", "content": "1?"}]
    assert len(prompts) == 2


def test_an_adapter_brings_its_base_along(cli, data, tiny_model, adapter, tmp_path):
    common = ("--dataset", data, "--split", "train", "--verifier", "exact", "--temperature", "0", *FAST)
    found = {}
    for name, model in {
        "alone": (adapter,), "beside": (tiny_model, "--adapter", adapter), "base": (tiny_model,),
        "4 bits": (tiny_model, "--adapter", adapter, "--load-in-4bit"),
    }.items():  # fmt: skip
        out = tmp_path / f"{name}.jsonl"
        code, _, err = cli("eval", *model, *common, "--out", out)
        assert code == 0, err
        found[name] = [row["completion"] for row in rows_of(out)]
    assert found["alone"] == found["beside"] != found["base"]


WRONG = {
    "no such model": (("./nowhere",), (), "does not exist or holds no config.json"),
    "no such split": ((), ("--split", "tset"), "--split: "),
    "no such file": ((), ("--dataset", "./rows.jsonl"), "does not exist"),
    "no such verifier": ((), ("--verifier", "mth"), "Did you mean 'math'?"),
    "a column that the verifier needs": ((), ("--column", "answer=anwser"), "Did you mean 'answer'?"),
    "a column of the prompt": ((), ("--prompt-column", "qestion"), "Did you mean 'question'?"),
    "a k beyond n": ((), ("-n", "2", "-k", "1,8"), "k is 8, but it must be a whole number from 1 to n (2)"),
    "a k that is no number": ((), ("-k", "a"), "-k is 'a'"),
    "an unknown option": ((), ("--verifierr", "x"), "unknown option --verifierr, did you mean --verifier?"),
    "an option of the verifier": ((), ("--option", "tga=a"), "tga"),
    "an adapter that is none": ((), ("--adapter", "."), "no adapter_config.json in it"),
    "a type": ((), ("--dtype", "half"), "--dtype: "),
    "a temperature": ((), ("--temperature", "-1"), "temperature is -1.0"),
    "no rows": ((), ("--limit", "0"), "--limit is 0"),
    "a file to write": ((), ("--out", "samples.csv"), "must end in .jsonl"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_input_is_one_message(cli, data, tiny_model, name):
    model, more, expected = WRONG[name]
    base = {"--dataset": str(data), "--split": "train", "--verifier": "exact"} | dict(FAST_PAIRS)
    given = dict(zip(more[::2], more[1::2], strict=True))
    flags = [word for pair in (base | given).items() for word in pair]
    code, _, err = cli("eval", *(model or (tiny_model,)), *flags)
    assert code == 2
    assert expected in err
    assert "Traceback" not in err


FAST_PAIRS = list(zip(FAST[::2], FAST[1::2], strict=True))


def test_an_adapter_on_an_adapter_is_refused(cli, data, adapter):
    code, _, err = cli(
        "eval", adapter, "--adapter", adapter, "--dataset", data, "--split", "train", "--verifier", "exact"
    )
    assert code == 2
    assert "is an adapter itself" in err
