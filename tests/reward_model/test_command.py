import json
import os
import shutil
import sys
from pathlib import Path

import pytest
import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

from grpo_plus.cli import _reward_model_train
from grpo_plus.reward_model.saved import write_whole
from grpo_verifiers import get_verifier
from tests import started
from tests.reward_model.conftest import pairs, steps, write

KEY = "hf_" + "aB3dE5gH7jK9mN1pQ3sT5vW7yZ" * 2


def train(cli, base, data, out, *flags):
    usual = {"--model": base, "--data": data, "--output_dir": out, "--device": "cpu"}
    usual |= {"--learning_rate": "5e-3", "--per_device_train_batch_size": "16"}
    beside = [word for name, value in usual.items() if name not in flags for word in (name, value)]
    return cli("reward-model", "train", *beside, *flags)


def refused(found, *told):
    code, _, err = found
    assert code == 2
    for words in told:
        assert words in err


def made_by(found):
    code, out, err = found
    assert code == 0, err
    return out


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def lines_of(path):
    return [json.loads(line) for line in Path(path).read_text().splitlines()]


def stock_trainer(folder, policy, tmp_path):
    settings = {"use_cpu": True, "bf16": False, "report_to": "none"}
    settings |= {"num_generations": 2, "per_device_train_batch_size": 2}
    args = GRPOConfig(output_dir=str(tmp_path / "stock"), **settings)
    rows = Dataset.from_list([{"prompt": "a"}])
    return GRPOTrainer(model=str(policy), reward_funcs=str(folder), args=args, train_dataset=rows)


def scores_of(trainer, rows):
    """What stock TRL makes of both sides of all rows in one batch."""
    prompts = [row["prompt"] for row in rows] * 2
    completions = [row[side] for side in ("chosen", "rejected") for row in rows]
    inputs = [{"prompt": prompt} for prompt in prompts]
    found = trainer._calculate_rewards(inputs, prompts, completions, [[]] * len(prompts))
    first, second = found[:, 0].chunk(2)
    return list(zip(first.tolist(), second.tolist(), strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("way", ["text", "chat", "lora"])
def test_the_saved_folder_gives_in_stock_trl_the_scores_that_eval_writes_bit_for_bit(
    way, cli, base, tmp_path, monkeypatch
):
    rows = pairs(48, chat=way != "text")
    data = write(tmp_path / "pairs.jsonl", rows)
    flags = ("--use_peft", "true", "--lora_r", "4") if way == "lora" else ()
    out = made_by(train(cli, os.path.relpath(base), data, tmp_path / "made", "--max_steps", "6", *flags))
    assert f"reward_model_name_or_path: {tmp_path / 'made'}" in out
    (tmp_path / "some/where").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "some/where")  # the base is found from any folder
    made_by(cli("reward-model", "eval", tmp_path / "made", "--data", data, "--batch", "48", "--device", "cpu"))
    ours = [(line["chosen"], line["rejected"]) for line in lines_of(tmp_path / "pairs.scores.jsonl")]
    theirs = scores_of(stock_trainer(tmp_path / "made", base, tmp_path), rows)
    assert ours == theirs
    assert len(set(ours)) > 24
    assert (tmp_path / "made/adapter_config.json").exists() == (way == "lora")


@pytest.mark.slow
def test_a_model_of_steps_scores_them_as_the_verifier_does(cli, base, data):
    out = made_by(train(cli, base, data / "steps.jsonl", data / "prm", "--use_peft", "--max_steps", "6"))
    assert f"{{name: prm, kwargs: {{model: {data / 'prm'}, style: concat, positive: 0}}}}" in out
    made_by(cli("reward-model", "eval", data / "prm", "--data", data / "steps.jsonl", "--device", "cpu"))
    verifier = get_verifier("prm", model=str(data / "prm"), style="concat", positive=0, steps="newline", device="cpu")
    rows = steps(96)
    for row, line in list(zip(rows, lines_of(data / "steps.scores.jsonl"), strict=True))[:12]:
        verdict = verifier.verify("\n".join(row["completions"]), prompt=row["prompt"])
        assert [step.score for step in verdict.steps] == pytest.approx(line["steps"], rel=1e-5)


@pytest.mark.slow
def test_the_command_learns_a_rule_says_how_well_and_cannot_learn_a_coin(cli, base, tmp_path):
    said = {}
    for name, shuffled in (("ruled", False), ("tossed", True)):
        data = write(tmp_path / f"{name}.jsonl", pairs(240, shuffled=shuffled))
        out = made_by(train(cli, base, data, tmp_path / name, "--num_train_epochs", "2", "--held_out", "0.25"))
        assert "180 pairs to train on, 60 of 60 prompts held out." in out
        assert "The head is new and starts at 0." in out
        assert "step 10/24 | loss" in out
        said[name] = json.loads((tmp_path / name / "grpo_plus_reward_model.json").read_text())["held_out"]
    assert said["ruled"]["rows"] == 60
    assert said["ruled"]["accuracy"] > 0.95
    assert 0.35 < said["tossed"]["accuracy"] < 0.65
    data = write(tmp_path / "more.jsonl", pairs(60, seed=9))
    flags = ("--data", data, "--by", "kind", "--out", tmp_path / "s.jsonl")
    out = made_by(cli("reward-model", "eval", tmp_path / "ruled", *flags))
    for name in ("all of train", "kind: even", "kind: odd"):
        assert name in out
    assert out.count("(8") + out.count("(9") == 3  # low ends of intervals
    found = [line["chosen"] > line["rejected"] for line in lines_of(tmp_path / "s.jsonl")]
    assert sum(found) > 0.95 * len(found) == 57


@pytest.mark.slow
def test_each_value_of_a_column_has_the_accuracy_of_its_own_rows(cli, base, tmp_path):
    torch.manual_seed(0)
    AutoModelForSequenceClassification.from_pretrained(base, num_labels=1).save_pretrained(tmp_path / "rm")
    AutoTokenizer.from_pretrained(base).save_pretrained(tmp_path / "rm")
    rows = [{**row, "kind": "abbccccccb"[at % 10]} for at, row in enumerate(pairs(40))]
    rows[0]["chosen"] = "4" * 90  # is left out: the rows behind it keep their own values
    data = write(tmp_path / "rows.jsonl", rows)
    flags = ("--by", "kind", "--max-length", "40", "--device", "cpu")
    out = made_by(cli("reward-model", "eval", tmp_path / "rm", "--data", data, *flags))
    right = {}
    for line in lines_of(tmp_path / "rows.scores.jsonl"):
        right.setdefault(rows[line["row"]]["kind"], []).append(line["chosen"] > line["rejected"])
    assert {kind: len(found) for kind, found in right.items()} == {"a": 3, "b": 12, "c": 24}
    for kind, found in right.items():
        cells = next(line for line in out.splitlines() if f"kind: {kind}" in line).split("│")
        assert int(cells[2]) == len(found)
        assert cells[4].split()[0] == f"{sum(found) / len(found):.1%}"
    assert len({sum(found) / len(found) for found in right.values()}) == 3


@pytest.mark.slow
def test_a_model_whose_place_another_command_has_taken_is_written_beside_it_without_secrets(
    cli, base, data, monkeypatch
):
    fitting = _reward_model_train.fit

    def fit(*given):
        (data / "made").mkdir()
        (data / "made/grpo_plus_reward_model.json").write_text("{}")
        return fitting(*given)

    monkeypatch.setattr(_reward_model_train, "fit", fit)
    out = made_by(train(cli, base, data / "pairs.jsonl", data / "made", "--max_steps", "1", "--revision", KEY))
    assert "made holds a reward model already" in out
    assert f"The model is in {data / 'made-1'}." in out
    assert names(data / "made") == ["grpo_plus_reward_model.json"]
    assert "model.safetensors" in names(data / "made-1")
    assert KEY not in (data / "made-1/grpo_plus_reward_model.json").read_text()


@pytest.mark.slow
def test_two_runs_from_a_file_in_processes_of_their_own_are_equal_byte_for_byte(base, data, clean_environment):
    """The file's paths are taken from its folder, and the last word is the flag's."""
    text = f"model: {base}\ndata: ./pairs.jsonl\nlearning_rate: 5e-3\nmax_steps: 3\neval_steps: 2\npatience: 2\nuse_peft: true\noutput_dir: none\n"
    (data / "config.yaml").write_text(text)
    (data / "elsewhere").mkdir()
    made = []
    for name in ("one", "two"):
        command = [sys.executable, "-m", "grpo_plus.cli", "reward-model", "train", data / "config.yaml"]
        command += ["--output-dir", name, "--load-in-4bit"]
        where = {"cwd": data / "elsewhere", "env": clean_environment}
        done = started.run(command, **where, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr
        assert "step 2/3 | loss" in done.stdout
        made.append({path.name: path.read_bytes() for path in (data / "elsewhere" / name).iterdir()})
    for files in made:
        files.pop("grpo_plus_reward_model.json")  # names the folder
    assert made[0] == made[1]
    assert "adapter_model.safetensors" in made[0]


@pytest.mark.slow
def test_a_reward_model_is_trained_on_and_replaced_whole(cli, base, data):
    (data / "base").mkdir()
    for file in base.iterdir():  # a config that names no padding token, as of many models
        text = file.read_bytes().replace(b'"pad_token_id": 0', b'"pad_token_id": null')
        (data / "base" / file.name).write_bytes(text)
    flags = ("--max_steps", "8", "--logging_steps", "1", "--held_out", "0")
    out = made_by(train(cli, data / "base", data / "pairs.jsonl", data / "made", *flags))
    assert "step 1/8 | loss 0.6931" in out  # a new head starts at 0
    assert json.loads((data / "made/config.json").read_text())["pad_token_id"] == 0
    found = train(cli, base, data / "pairs.jsonl", data / "made", "--max_steps", "1")
    refused(found, "holds a reward model already: set overwrite_output_dir")
    flags = ("--max_steps", "1", "--overwrite_output_dir")
    out = made_by(train(cli, data / "made", data / "pairs.jsonl", data / "made", *flags))
    assert "The head is new" not in out
    first = float(out.split("step 1/1 | loss ")[1].split()[0])
    assert first < 0.6  # it goes on from what it knew
    assert not [path.name for path in data.iterdir() if path.name.startswith(".")]


def test_a_folder_with_other_files_is_never_replaced(cli, base, data):
    (data / "mine").mkdir()
    (data / "mine/thesis.txt").write_text("years")
    found = train(cli, base, data / "pairs.jsonl", data / "mine", "--overwrite_output_dir")
    refused(found, "holds other files and no reward model of ours")
    assert (data / "mine/thesis.txt").read_text() == "years"


@pytest.mark.parametrize("swaps", [True, False])
def test_a_write_that_fails_leaves_what_was_there(tmp_path, monkeypatch, swaps):
    folder = tmp_path / "made"
    write_whole(folder, lambda draft: (draft / "model").write_text("old"), {"kind": "pairs"}, overwrite=False)

    def fail(draft):
        (draft / "model").write_text("half")
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        write_whole(folder, fail, {}, overwrite=True)
    assert ((folder / "model").read_text(), names(tmp_path)) == ("old", ["made"])

    rename = Path.rename

    def stale(path, target):
        if path.name == ".made.new":
            raise OSError(116, "Stale file handle")
        return rename(path, target)

    if not swaps:
        with monkeypatch.context() as patched:
            patched.setattr("grpo_verifiers.files._swapped", lambda *_: False)
            patched.setattr(Path, "rename", stale)
            with pytest.raises(OSError, match="Stale"):
                write_whole(folder, lambda draft: (draft / "other").write_text("new"), {}, overwrite=True)
        assert ((folder / "model").read_text(), names(tmp_path)) == ("old", ["made"])
    write_whole(folder, lambda draft: (draft / "other").write_text("new"), {"kind": "pairs"}, overwrite=True)
    assert (names(folder), names(tmp_path)) == (["grpo_plus_reward_model.json", "other"], ["made"])


BAD = [
    (("--learning_rat", "1"), "unknown option --learning_rat, did you mean --learning-rate?"),
    (("--learning_rate", "0"), "learning_rate is 0, expected a number of more than 0"),
    (("--max_steps", "0"), "max_steps is 0, expected an integer of at least 1"),
    (("--held_out", "1"), "held_out is 1"),
    (("--held_out", "0.1", "--eval_split", "test"), "eval_split and held_out are both set"),
    (("--eval_split", "train"), "eval_split is 'train', which is trained on"),
    (("--held_out", "0", "--eval_steps", "2"), "eval_steps is set, but held_out is 0"),
    (("--patience", "2"), "patience is set, but eval_steps is not"),
    (("--load_in_4bit",), "load_in_4bit is set, but use_peft is not"),
    (("--lora_r", "4"), "lora_r is set, but use_peft is not"),
    (("--dtype", "bfloat16"), "dtype is 'bfloat16', but a whole model is trained in float32"),
    (("--dtype", "float8", "--use_peft"), "dtype"),
    (("--model", "./nowhere"), "model: the folder './nowhere' does not exist"),
    (("--data", "./nowhere.jsonl"), "the dataset file './nowhere.jsonl' does not exist"),
    (("--split", "trian"), "Did you mean 'train'?"),
]


@pytest.mark.parametrize(("flags", "told"), BAD, ids=lambda value: " ".join(value) if isinstance(value, tuple) else "")
def test_bad_options_end_before_a_model_loads(cli, data, flags, told):
    code, out, err = train(cli, data / "no_model", data / "pairs.jsonl", data / "out", *flags)
    assert code == 2
    assert told in err
    assert not (data / "out").exists()
    assert out == ""


ROWS = [
    ([{"prompt": "a", "chosen": "b", "rejected": "b"}], "row 0: chosen and rejected are equal"),
    ([*pairs(3), {"prompt": "a", "chosen": "b", "rejected": " ", "kind": ""}], "row 3: rejected is empty"),
    ([{"text": "a"}], "has the columns text. A reward model is trained on pairs"),
    ([{"prompt": "a", "completions": ["b"], "labels": [1]}] * 3, "labels are of one class only (all 3 are 1)"),
]


@pytest.mark.parametrize(("rows", "told"), ROWS, ids=[told for _, told in ROWS])
@pytest.mark.parametrize("command", ["train", "eval"])
def test_bad_rows_end_before_a_model_loads(cli, tmp_path, command, rows, told):
    data = write(tmp_path / "rows.jsonl", rows)
    (tmp_path / "made").mkdir()
    if command == "train":
        refused(train(cli, tmp_path / "no_model", data, tmp_path / "out"), told)
    else:
        refused(cli("reward-model", "eval", tmp_path / "made", "--data", data), told)


def test_what_neither_template_nor_tokenizer_takes_and_places_that_are_none_are_said(cli, base, tmp_path):
    shutil.copytree(base, tmp_path / "strict")
    (tmp_path / "strict/chat_template.jinja").write_text("{{ raise_exception('no such role') }}")
    chats = write(tmp_path / "chats.jsonl", pairs(12, chat=True))
    found = train(cli, tmp_path / "strict", chats, tmp_path / "out")
    refused(found, "row 0: the chat template of the model takes no such messages: no such role.")
    refused(train(cli, base, chats, tmp_path / "out", "--device", "cude"), "device is 'cude'")
    (tmp_path / "made").mkdir()
    where = ("--data", chats, "--out", tmp_path / "none/scores.jsonl")
    refused(cli("reward-model", "eval", tmp_path / "made", *where), "none does not exist")
    data = write(tmp_path / "rows.jsonl", [{"prompt": "a", "chosen": "é", "rejected": "ü"}] * 2)
    refused(train(cli, base, data, tmp_path / "out"), "row 0: chosen and rejected are equal to the model's tokenizer")
    data = write(tmp_path / "rows.jsonl", pairs(12))
    found = train(cli, base, data, tmp_path / "out", "--max_length", "6")
    refused(found, "all 12 rows are longer than max_length (6 tokens)")


@pytest.mark.slow
def test_long_rows_are_left_out_and_counted_and_a_broken_model_is_named(cli, base, tmp_path):
    data = write(tmp_path / "rows.jsonl", [*pairs(12), {**pairs(1)[0], "chosen": "is " + "4" * 60}])
    out = made_by(train(cli, base, data, tmp_path / "out", "--max_length", "20", "--max_steps", "1"))
    assert "1 of 13 rows are longer than max_length and left out." in out

    model = AutoModelForCausalLM.from_pretrained(base)
    with torch.no_grad():
        model.model.norm.weight[0] = float("nan")
    model.save_pretrained(tmp_path / "broken")
    AutoTokenizer.from_pretrained(base).save_pretrained(tmp_path / "broken")
    found = train(cli, tmp_path / "broken", data, tmp_path / "none", "--max_steps", "4")
    refused(found, "the loss is nan at step 1 of 4")
    assert not (tmp_path / "none").exists()


def test_a_model_without_a_head_is_no_reward_model_and_kinds_do_not_mix(cli, base, data):
    found = cli("reward-model", "eval", base, "--data", data / "pairs.jsonl")
    refused(found, "has no weights for score.weight, which would be random")
    (data / "made").mkdir()
    (data / "made/grpo_plus_reward_model.json").write_text('{"kind": "steps"}')
    found = cli("reward-model", "eval", data / "made", "--data", data / "pairs.jsonl")
    refused(found, "was trained on steps, and the data has pairs")
    wrong = {("--by", "kin"): "Did you mean 'kind'?", ("--by", "prompt"): "has 160 different values, expected at most"}
    wrong |= {("--batch", "0"): "--batch is 0, expected at least 1", ("--dtype", "float8"): "--dtype"}
    for flags, told in wrong.items():
        refused(cli("reward-model", "eval", base, "--data", data / "pairs.jsonl", *flags), told)


def test_keys_of_a_file_are_checked_like_flags(cli, data):
    (data / "config.yaml").write_text("data: pairs.jsonl\nlearning_rte: 1e-3\nmax_steps: 2.5\nuse_peft: maybe\n")
    told = ("'learning_rte'", "Did you mean 'learning_rate'?", "'max_steps' is 2.5", "'model' is required", "use_peft")
    refused(cli("reward-model", "train", data / "config.yaml"), *told)
    refused(cli("reward-model", "train", data / "none.yaml"), "none.yaml cannot be read")


def test_help_says_what_there_is(cli, capsys):
    code, out, _ = cli("reward-model")
    assert code == 2
    assert "reward-model eval FOLDER" in out
    refused(cli("reward-model", "trian"), "Did you mean 'train'?")
    for way, word in (("train", "--held-out"), ("eval", "--by COLUMN")):
        with pytest.raises(SystemExit) as end:
            cli("reward-model", way, "--help")
        assert end.value.code == 0
        assert word in capsys.readouterr().out
