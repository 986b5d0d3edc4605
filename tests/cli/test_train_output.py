"""What a run leaves in its folder, what it finds there, and where it goes on from."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import trl
from huggingface_hub import ModelCard
from safetensors.numpy import save_file

from grpo_plus.cli import UserError, _folder
from grpo_plus.cli._folder import LOCK, checkpoints, choose, claimed, clear, prepare, resume_point
from grpo_plus.cli.train import next_step, next_steps, plain_command

OUT = Path("runs/a")
SAVING = {"save_strategy": "steps", "save_steps": 1}


def checkpoint(folder, step, *, whole=True):
    made = folder / f"checkpoint-{step}"
    made.mkdir(parents=True)
    save_file({"weight": np.zeros(2)}, made / "model.safetensors")
    (made / "trainer_state.json").write_text(json.dumps({"global_step": step}) if whole else '{"global_')
    return made


def test_the_newest_whole_checkpoint_by_number_is_the_last_one(tmp_path):
    for step, whole in ((2, True), (10, True), (9, True), (11, False)):
        checkpoint(tmp_path, step, whole=whole)
    (tmp_path / "checkpoint-final").mkdir()
    assert [path.name for path in checkpoints(tmp_path)] == [f"checkpoint-{step}" for step in (2, 9, 10, 11)]
    assert choose(tmp_path).checkpoint.name == "checkpoint-10"
    out = tmp_path / "out"
    assert resume_point("auto", out, tmp_path).checkpoint is None
    made = checkpoint(out, 3)
    for value in (True, "true", "last", "LAST", " yes ", "auto"):
        assert resume_point(value, out, tmp_path).checkpoint == made
    for value in (None, False, "", "false", "none"):
        assert resume_point(value, out, tmp_path).checkpoint is None


def test_a_path_is_a_checkpoint_or_the_folder_of_some(tmp_path, monkeypatch):
    made = checkpoint(tmp_path / "old", 4)
    assert resume_point("old/checkpoint-4", tmp_path / "out", tmp_path).checkpoint == made
    assert resume_point(str(tmp_path / "old"), tmp_path / "out", Path("/")).checkpoint == made
    monkeypatch.chdir(tmp_path)
    assert resume_point("old", tmp_path / "out", Path("/")).checkpoint.resolve() == made


def test_nothing_to_resume_says_so(tmp_path):
    out = tmp_path / "out"
    with pytest.raises(UserError, match=r"nothing to resume: .*out holds no complete checkpoint. Leave the option out"):
        resume_point("last", out, tmp_path)
    checkpoint(out, 7, whole=False)
    (checkpoint(out, 8) / "model.safetensors").unlink()
    with pytest.raises(UserError, match=r"nothing to resume") as caught:
        resume_point("last", out, tmp_path)
    broken = "trainer_state.json is missing or broken"
    torn = ["checkpoint-8 is passed over: it holds no weights", f"checkpoint-7 is passed over: {broken}"]
    assert str(caught.value).splitlines()[1:] == [f"  {line}" for line in torn]
    assert list(resume_point("auto", out, tmp_path).passed_over) == torn
    with pytest.raises(UserError, match=rf"checkpoint-7 is no complete checkpoint: {broken}. .*holds no"):
        resume_point("out/checkpoint-7", out, tmp_path)
    checkpoint(out, 5)
    with pytest.raises(
        UserError, match=r"there is no folder 'checkpoint-6'. The newest complete one in .* is checkpoint-5"
    ):
        resume_point("checkpoint-6", out, tmp_path)
    with pytest.raises(UserError, match=rf"{broken}. The newest complete one in .*out is checkpoint-5"):
        resume_point("out/checkpoint-7", out, tmp_path)


def ready(folder, value=None, **options):
    given = {"resumes": False, "overwrite": False, "command": "c", "elsewhere": "c", **options}
    return prepare(folder, value=value, **given)


def test_an_earlier_runs_folder(tmp_path):
    assert ready(tmp_path / "new") == []
    assert clear(tmp_path / "new", [], resumes=False) == []
    (tmp_path / "model.safetensors").write_text("x")
    assert ready(tmp_path) == []
    assert "will replace" in clear(tmp_path, [], resumes=False)[0]
    checkpoint(tmp_path, 1, whole=False)
    words = "holds 1 checkpoint of an earlier run. None is complete: checkpoint-1 is passed over"
    with pytest.raises(UserError, match=words) as caught:
        ready(tmp_path)
    assert "last" not in str(caught.value)  # a half-written one cannot be gone on from
    assert ready(tmp_path, "auto") == []  # and is in nobody's way
    checkpoint(tmp_path, 12)
    words = r"(?s)2 checkpoints of an earlier run. Either:\n  resume checkpoint-12: c --out x --res.*elsewhere:  c "
    words += r"--output_dir [^ ]+-2\n  start anew here:       c --out x --over"
    with pytest.raises(UserError, match=words):
        ready(tmp_path, command="c --out x")
    assert ready(tmp_path, "last", resumes=True, overwrite=True) == []
    assert len(checkpoints(tmp_path)) == 2
    old = ready(tmp_path, overwrite=True)
    assert len(checkpoints(tmp_path)) == 2  # nothing goes before everything else of the config is known to be right
    (tmp_path / ".removing-checkpoint-3-ab").mkdir()
    (told,) = clear(tmp_path, old, resumes=False)
    assert told.startswith("Removed checkpoint-1 to checkpoint-12 from")
    assert [path.name for path in tmp_path.iterdir()] == ["model.safetensors"]


def test_the_command_to_go_on_with():
    for given, expected in (
        (["c.yaml", "--seed", "3"], "c.yaml --seed 3"),
        (["c.yaml", "--resume_from_checkpoint", "last", "--seed", "3"], "c.yaml --seed 3"),
        (["c.yaml", "--resume_from_checkpoint=x y", "--overwrite_output_dir", "--seed=3"], "c.yaml --seed=3"),
        (["c.yaml", "--overwrite_output_dir", "true", "--system", "a b"], "c.yaml --system 'a b'"),
    ):
        assert plain_command(given) == f"grpo-plus train {expected}"


def test_a_next_step_sets_options_once_and_starts_what_was_started(monkeypatch, tmp_path):
    given = ["c.yaml", "--advantage", "sign", "--verifiers", "math", "exact", "--seed", "3"]
    line = "swap it  {command} --advantage rloo --verifiers near"
    expected = "swap it  grpo-plus train c.yaml --seed 3 --advantage rloo --verifiers near"
    assert next_step(line, given, Path.cwd(), OUT) == expected
    assert next_step("--plugins {folder}/mine.py", given, Path("a").resolve(), OUT) == "--plugins a/mine.py"
    assert next_step("eval {output_dir} -n 4", given, Path.cwd(), Path("my runs/b")) == "eval 'my runs/b' -n 4"
    assert next_step("That is all.", given, Path.cwd(), OUT) == "That is all."
    for more, count in ([*given, "--load_in_4bit", "true"], 0), ([*given, "--load_in_4bit", "false"], 2):
        lines = ["Next:", "  4 bits  {command} --load_in_4bit true --output_dir runs/b"]
        assert len(next_steps(lines, more, Path.cwd(), OUT)) == count
    monkeypatch.setattr("sys.argv", [".venv/bin/grpo-plus"])
    monkeypatch.setenv("PATH", str(tmp_path))
    assert next_step("{command}", ["c.yaml"], Path.cwd(), OUT) == ".venv/bin/grpo-plus train c.yaml"


def test_what_is_known_of_a_checkpoint(tmp_path):
    made = checkpoint(tmp_path, 4)
    (made / "trainer_state.json").write_text(json.dumps({"global_step": 4, "epoch": 2.0}))
    ends = [(5, 1, True), (4, 9, False), (-1, 3, True), (-1, 2, False)]
    for max_steps, epochs, expected in ends:
        args = SimpleNamespace(max_steps=max_steps, num_train_epochs=epochs)
        assert _folder.left_to_train(made, args) is expected
    words = "which holds weights only: optimizer, schedule and random state are new."
    assert _folder.resume_message(made) == f"Resuming from {made}, {words}"
    (made / "optimizer.pt").write_text("x")
    assert _folder.resume_message(made) == f"Resuming from {made}."


def test_a_lock_ends_with_its_process_however_that_ends(tmp_path):
    code = (
        "import sys, time; from pathlib import Path; from grpo_plus.cli._folder import claimed\n"
        "with claimed(Path(sys.argv[1])): print('held', flush=True); time.sleep(60)"
    )
    holder = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(UserError, match=rf"is in use: another run writes there \(process {holder.pid} on"):
            claimed(tmp_path).__enter__()
    finally:
        holder.kill()
        holder.wait()
    assert (tmp_path / LOCK).exists()  # it had no time to tidy up
    with claimed(tmp_path):
        assert json.loads((tmp_path / LOCK).read_text())["pid"] == os.getpid()
    assert not (tmp_path / LOCK).exists()


def test_a_lock_that_nobody_holds_is_taken(tmp_path):
    lock = tmp_path / LOCK
    lock.write_text("no JSON")
    with claimed(tmp_path):
        pass
    (tmp_path / "file").write_text("x")
    with pytest.raises(UserError, match="nothing can be written there"):
        claimed(tmp_path / "file" / "out").__enter__()


@pytest.mark.slow
def test_resuming_by_flag_goes_on_at_the_next_step(cli, config, folder):
    path = config(max_steps=2, disable_tqdm=False, **SAVING)
    cli.done("train", path)
    out = cli.done("train", path, "--resume_from_checkpoint", "last", "--max_steps", "3")
    assert re.findall(r"^step (\d+)/3", out, re.MULTILINE) == ["3"]
    out = cli.done("train", path, "--overwrite_output_dir", "--max_steps", "1")
    assert "Removed checkpoint-1 to checkpoint-3" in out
    assert re.findall(r"^step (\d+)/1", out, re.MULTILINE) == ["1"]
    cli.refused("train", path, "--overwrite_output_dir", "--dataset_name", "./gone.jsonl")
    assert (folder / "out" / "checkpoint-1").is_dir()  # a mistake elsewhere costs nothing
    err = cli.refused("train", path, "--resume_from_checkpoint", "last", "--max_steps", "1")
    assert "checkpoint-1 is at the end of this run already: nothing is left to train" in err
    assert "nothing is left to train" in cli.done("train", path, "--resume_from_checkpoint", "auto", "--max_steps", "1")
    assert "there is no folder 'nowhere'" in cli.refused("train", path, "--resume_from_checkpoint", "nowhere")


@pytest.mark.slow
def test_the_card_tells_the_parts_and_parses(cli, config, folder):
    (folder / "mine.py").write_text(
        "from grpo_verifiers import verifier\n"
        '@verifier("mine", isolation="inline")\n'
        "def mine(completion: str, answer: str, *, mark: str = 'x') -> float:\n    return float(len(completion) % 2)\n"
    )
    mine = {"name": "mine", "weight": 0.5, "mark": "a|b`c", "columns": {"answer": "question"}}
    parts = {"advantage": {"name": "sign", "band": 0.25}, "plugins": ["./mine.py"]}
    parts |= {"objective": {"name": "dapo", "epsilon_high": 0.28}, "verifiers": [mine], "hub_token": "secret-of-mine"}
    path = config(**parts, prompt={"column": "question", "template": "boxed"}, max_steps=1, check="warn", **SAVING)
    cli.done("train", path)
    card = ModelCard.load(folder / "out" / "README.md")
    card.data.to_yaml()
    assert {"grpo", "grpo_plus", "trl"} <= set(card.data.tags)
    assert card.data.pipeline_tag == "text-generation"
    text = card.text
    assert text.count("## How it was trained") == 1
    for expected in (
        '| advantage | sign {"band": 0.25} |',
        '| objective | dapo {"epsilon_high": 0.28} |',
        "| engine | auto |",
        '"mark": "a\\|b\'c"',
        '"required_columns": {"answer": "question"}',
        "| Dataset | data.jsonl |",
        "| steps | 1 |",
        "| learning_rate | 0.001 |",
        '"template": "boxed"',
    ):
        assert expected in text
    assert f"| trl | {trl.__version__} |" in text
    assert not [word for word in ("secret-of-mine", str(folder), "[None]") if word in text]


@pytest.mark.slow
def test_a_run_that_ends_for_lack_of_memory_says_what_to_change(cli, config, folder):
    path = config(reward_funcs=["./full.py:full"])
    text = "import torch\ndef full(completions, **_):\n    raise torch.OutOfMemoryError('CUDA out of memory. Tried …')"
    (folder / "full.py").write_text(text)
    errors = cli.refused("train", path)
    assert "grpo-plus train: out of memory while completions were scored: CUDA out of memory. Tried" in errors
    assert "Lower max_completion_length or per_device_train_batch_size" in errors
    assert "Traceback" not in errors
