"""A run killed between its last checkpoint and the end of its final model: the same command finishes it."""

import os
import re
import shutil

import pytest

from grpo_plus.checkpoints.folder import MODEL_FILE, is_model_of

pytestmark = pytest.mark.slow
SAVING = {"save_strategy": "steps", "save_steps": 1, "disable_tqdm": False, "max_steps": 2, "report": True}


def parts(out):
    names = ("model.safetensors", "config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json")
    return {name: (out / name).read_bytes() for name in names}


def without_model(out):
    for name in (*parts(out), "README.md", "report.html", MODEL_FILE):
        (out / name).unlink(missing_ok=True)


KILLED = {
    "before the model": without_model,
    "in the model": lambda out: (os.truncate(out / "model.safetensors", 999), (out / MODEL_FILE).unlink()),
    "behind the model": lambda out: ((out / "README.md").unlink(), (out / MODEL_FILE).unlink()),
    "and changed later": lambda out: os.truncate(out / "tokenizer.json", 5),
}


def test_a_run_that_was_killed_before_its_model_was_whole_is_finished_without_a_step(cli, config, folder):
    path, out = config(**SAVING), folder / "out"
    assert cli("train", path)[0] == 0
    expected, kept = parts(out), folder / "kept"
    shutil.copytree(out, kept)
    for number, (name, kill) in enumerate(KILLED.items()):
        kill(out)
        told = cli.done("train", path, "--resume_from_checkpoint", ("last", "auto")[number % 2])
        assert "checkpoint-2 is at the end of this run, but the model in" in told, name
        assert not re.findall(r"^step \d+/2", told, re.MULTILINE), (name, told)
        assert parts(out) == expected, name
        assert {"README.md", "report.html", MODEL_FILE} <= {path.name for path in out.iterdir()}, name
        assert is_model_of(out / "checkpoint-2"), name
        code, told, _ = cli("train", path, "--resume_from_checkpoint", "auto")
        assert (code, "nothing is left to train" in told) == (0, True), name
        code, _, err = cli("train", path, "--resume_from_checkpoint", "last")
        assert (code, "nothing is left to train" in err) == (2, True), name


def test_the_model_of_another_run_is_not_taken_for_the_one_that_is_missing(cli, config, folder):
    path, out = config(**SAVING), folder / "out"
    assert cli("train", path)[0] == 0
    shutil.copytree(out, folder / "kept")
    assert cli("train", path, "--overwrite_output_dir", "--learning_rate", "0.5")[0] == 0
    other = parts(out)
    for name in parts(out):  # as if it had been killed before its model
        shutil.copy2(folder / "kept" / name, out / name)
    shutil.copy2(folder / "kept" / MODEL_FILE, out / MODEL_FILE)
    assert parts(out) != other
    assert cli("train", path, "--resume_from_checkpoint", "auto", "--learning_rate", "0.5")[0] == 0
    assert parts(out) == other


def test_with_torn_checkpoints_only_auto_begins_anew_and_last_says_why_not(cli, config, folder):
    path, out = config(**SAVING | {"max_steps": 3}), folder / "out"
    assert cli("train", path, "--max_steps", "1")[0] == 0
    os.truncate(out / "checkpoint-1" / "optimizer.pt", 0)
    err = cli.refused("train", path, "--resume_from_checkpoint", "last")
    assert re.search(r"holds no complete checkpoint\..*\n  checkpoint-1 is passed over: optimizer.pt has 0 of ", err)
    assert "None is complete: checkpoint-1 is passed over: optimizer.pt" in cli.refused("train", path)
    told = cli.done("train", path, "--resume_from_checkpoint", "auto")
    assert "checkpoint-1 is passed over: optimizer.pt has 0 of" in told
    assert "The run starts from the beginning." in told
    assert re.findall(r"^step (\d+)/3", told, re.MULTILINE) == ["1", "2", "3"]
    os.truncate(out / "checkpoint-3" / "model.safetensors", 7)
    told = cli.done("train", path, "--resume_from_checkpoint", "last")
    assert "checkpoint-3 is passed over: model.safetensors has 7 of" in told
    assert f"Resuming from {out / 'checkpoint-2'}." in told
    assert re.findall(r"^step (\d+)/3", told, re.MULTILINE) == ["3"]
    os.truncate(out / "checkpoint-2" / "rng_state.pth", 0)
    err = cli.refused("train", path, "--resume_from_checkpoint", out / "checkpoint-2")
    assert "checkpoint-2 is no complete checkpoint: rng_state.pth has 0 of" in err
    assert "The newest complete one in" in err
    assert "is checkpoint-3." in err
