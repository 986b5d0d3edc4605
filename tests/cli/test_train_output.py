"""What a run leaves in its folder, what it finds there, and where it goes on from."""

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from huggingface_hub import ModelCard
from safetensors.numpy import save_file

from grpo_plus.cli import UserError
from grpo_plus.cli._folder import (
    DEAD_AFTER,
    LOCK,
    FolderLock,
    checkpoints,
    choose,
    clear,
    left_to_train,
    prepare,
    resume_point,
    resumed,
)
from grpo_plus.cli.train import next_step, plain_command
from tests.waiting import comes

OUT = Path("runs/a")
SAVING = {"save_strategy": "steps", "save_steps": 1}


def checkpoint(folder, step, *, whole=True):
    made = folder / f"checkpoint-{step}"
    made.mkdir(parents=True)
    save_file({"weight": np.zeros(2)}, made / "model.safetensors")
    (made / "trainer_state.json").write_text(json.dumps({"global_step": step}) if whole else '{"global_')
    return made


def test_the_newest_whole_checkpoint_by_number(tmp_path):
    for step, whole in ((2, True), (10, True), (9, True), (11, False)):
        checkpoint(tmp_path, step, whole=whole)
    (tmp_path / "checkpoint-final").mkdir()
    assert [path.name for path in checkpoints(tmp_path)] == [f"checkpoint-{step}" for step in (2, 9, 10, 11)]
    assert choose(tmp_path).checkpoint.name == "checkpoint-10"


@pytest.mark.parametrize("value", [True, "true", "last", "LAST", " yes "])
def test_last_is_the_newest_of_the_output_folder(tmp_path, value):
    made = checkpoint(tmp_path / "out", 3)
    assert resume_point(value, tmp_path / "out", tmp_path).checkpoint == made


def test_auto_resumes_where_it_can(tmp_path):
    assert resume_point("auto", tmp_path / "out", tmp_path).checkpoint is None
    made = checkpoint(tmp_path / "out", 3)
    assert resume_point("auto", tmp_path / "out", tmp_path).checkpoint == made


@pytest.mark.parametrize("value", [None, False, "", "false", "none"])
def test_no_resuming(tmp_path, value):
    assert resume_point(value, tmp_path, tmp_path).checkpoint is None


def test_a_path_is_a_checkpoint_or_the_folder_of_some(tmp_path, monkeypatch):
    made = checkpoint(tmp_path / "old", 4)
    assert resume_point("old/checkpoint-4", tmp_path / "out", tmp_path).checkpoint == made
    assert resume_point(str(tmp_path / "old"), tmp_path / "out", Path("/")).checkpoint == made
    monkeypatch.chdir(tmp_path)
    assert resume_point("old", tmp_path / "out", Path("/")).checkpoint.resolve() == made


def test_nothing_to_resume_says_so(tmp_path):
    out = tmp_path / "out"
    with pytest.raises(UserError, match=r"nothing to resume: .*out holds no whole checkpoint. Leave the option out"):
        resume_point("last", out, tmp_path)
    checkpoint(out, 7, whole=False)
    (checkpoint(out, 8) / "model.safetensors").unlink()
    with pytest.raises(UserError, match=r"nothing to resume") as caught:
        resume_point("last", out, tmp_path)
    torn = [
        "checkpoint-8 is passed over: it holds no weights",
        "checkpoint-7 is passed over: trainer_state.json is broken",
    ]
    assert str(caught.value).splitlines()[1:] == [f"  {line}" for line in torn]
    assert list(resume_point("auto", out, tmp_path).passed_over) == torn
    with pytest.raises(
        UserError, match=r"checkpoint-7 is no whole checkpoint: trainer_state.json is broken. .*holds no"
    ):
        resume_point("out/checkpoint-7", out, tmp_path)
    checkpoint(out, 5)
    with pytest.raises(
        UserError, match=r"there is no folder 'checkpoint-6'. The newest whole one in .* is checkpoint-5"
    ):
        resume_point("checkpoint-6", out, tmp_path)
    with pytest.raises(UserError, match=r"trainer_state.json is broken. The newest whole one in .*out is checkpoint-5"):
        resume_point("out/checkpoint-7", out, tmp_path)


def ready(folder, value=None, **options):
    return prepare(
        folder, value=value, **{"resumes": False, "overwrite": False, "command": "c", "elsewhere": "c", **options}
    )


def test_an_earlier_runs_folder(tmp_path):
    assert ready(tmp_path / "new") == []
    assert clear(tmp_path / "new", [], resumes=False) == []
    (tmp_path / "model.safetensors").write_text("x")
    assert ready(tmp_path) == []
    assert "will replace" in clear(tmp_path, [], resumes=False)[0]
    checkpoint(tmp_path, 1, whole=False)
    words = (
        "holds 1 checkpoint of an earlier run. None is whole: checkpoint-1 is passed over: trainer_state.json is broken"
    )
    with pytest.raises(UserError, match=words) as caught:
        ready(tmp_path)
    assert "last" not in str(caught.value)  # a half-written one cannot be gone on from
    assert ready(tmp_path, "auto") == []  # and is in nobody's way
    checkpoint(tmp_path, 12)
    with pytest.raises(
        UserError, match=r"2 checkpoints of an earlier run. Either:\n  go on from checkpoint-12: c --res"
    ):
        ready(tmp_path)
    with pytest.raises(
        UserError, match=r"elsewhere:  c --output_dir [^ ]+-2\n  start anew here:       c --out x --over"
    ):
        ready(tmp_path, command="c --out x")
    assert ready(tmp_path, "last", resumes=True, overwrite=True) == []
    assert len(checkpoints(tmp_path)) == 2
    old = ready(tmp_path, overwrite=True)
    assert len(checkpoints(tmp_path)) == 2  # nothing goes before everything else of the config is known to be right
    (tmp_path / ".removing-checkpoint-3-ab").mkdir()
    (told,) = clear(tmp_path, old, resumes=False)
    assert told.startswith("Removed checkpoint-1 to checkpoint-12 from")
    assert [path.name for path in tmp_path.iterdir()] == ["model.safetensors"]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (["c.yaml", "--seed", "3"], "c.yaml --seed 3"),
        (["c.yaml", "--resume_from_checkpoint", "last", "--seed", "3"], "c.yaml --seed 3"),
        (["c.yaml", "--resume_from_checkpoint=x y", "--overwrite_output_dir", "--seed=3"], "c.yaml --seed=3"),
        (["c.yaml", "--overwrite_output_dir", "true", "--system", "a b"], "c.yaml --system 'a b'"),
    ],
)
def test_the_command_to_go_on_with(given, expected):
    assert plain_command(given) == f"grpo-plus train {expected}"


def test_a_next_step_sets_options_once_and_starts_what_was_started(monkeypatch, tmp_path):
    given = ["c.yaml", "--advantage", "sign", "--verifiers", "math", "exact", "--seed", "3"]
    line = "swap it  {command} --advantage rloo --verifiers near"
    assert (
        next_step(line, given, Path.cwd(), OUT)
        == "swap it  grpo-plus train c.yaml --seed 3 --advantage rloo --verifiers near"
    )
    assert next_step("--plugins {folder}/mine.py", given, Path("a").resolve(), OUT) == "--plugins a/mine.py"
    assert next_step("eval {output_dir} -n 4", given, Path.cwd(), Path("my runs/b")) == "eval 'my runs/b' -n 4"
    assert next_step("That is all.", given, Path.cwd(), OUT) == "That is all."
    monkeypatch.setattr("sys.argv", [".venv/bin/grpo-plus"])
    monkeypatch.setenv("PATH", str(tmp_path))
    assert next_step("{command}", ["c.yaml"], Path.cwd(), OUT) == ".venv/bin/grpo-plus train c.yaml"


@pytest.mark.parametrize("given", [["--plugins", "a.py", "b c.py"], ["--plugins=a.py", "b c.py"]])
def test_a_next_step_with_plug_ins_keeps_those_that_the_command_names_parts_of(given):
    line = "{command} --plugins mine.py --verifiers near"
    expected = "grpo-plus train c.yaml --selection s --plugins a.py 'b c.py' mine.py --verifiers near"
    assert next_step(line, ["c.yaml", *given, "--selection", "s"], Path.cwd(), OUT) == expected


def test_what_is_known_of_a_checkpoint(tmp_path):
    made = checkpoint(tmp_path, 4)
    (made / "trainer_state.json").write_text(json.dumps({"global_step": 4, "epoch": 2.0}))
    ends = [(5, 1, True), (4, 9, False), (-1, 3, True), (-1, 2, False)]
    for max_steps, epochs, expected in ends:
        args = SimpleNamespace(max_steps=max_steps, num_train_epochs=epochs)
        assert left_to_train(made, args) is expected
    words = "which holds weights only: optimizer, schedule and random state are new."
    assert resumed(made) == f"Resuming from {made}, {words}"
    (made / "optimizer.pt").write_text("x")
    assert resumed(made) == f"Resuming from {made}."


def test_a_lock_ends_with_its_process_however_that_ends(tmp_path):
    code = (
        "import sys, time; from pathlib import Path; from grpo_plus.cli._folder import FolderLock\n"
        "with FolderLock(Path(sys.argv[1])): print('held', flush=True); time.sleep(60)"
    )
    holder = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(UserError, match=rf"is in use: another run writes there \(process {holder.pid} on"):
            FolderLock(tmp_path).__enter__()
    finally:
        holder.kill()
        holder.wait()
    assert (tmp_path / LOCK).exists()  # it had no time to tidy up
    with FolderLock(tmp_path):
        assert json.loads((tmp_path / LOCK).read_text())["pid"] == os.getpid()
    assert not (tmp_path / LOCK).exists()


def test_a_run_on_another_machine_lives_as_long_as_it_shows_signs(tmp_path):
    lock = tmp_path / LOCK
    lock.write_text(json.dumps({"pid": 1, "host": "elsewhere", "since": "noon"}))
    with pytest.raises(UserError, match=re.escape(f"removing {lock}")):
        FolderLock(tmp_path).__enter__()
    assert lock.exists()
    os.utime(lock, (time.time() - DEAD_AFTER - 1,) * 2)
    with FolderLock(tmp_path, beat=0.05):
        os.utime(lock, (1, 1))
        assert comes(lambda: lock.stat().st_mtime > 2, 20)
    lock.write_text("no JSON")
    with FolderLock(tmp_path):
        pass


def test_a_folder_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(UserError, match="nothing can be written there"):
        FolderLock(tmp_path / "file" / "out").__enter__()


@pytest.mark.slow
def test_resuming_by_flag_goes_on_at_the_next_step(cli, config, folder):
    path = config(max_steps=2, disable_tqdm=False, **SAVING)
    code, out, err = cli("train", path)
    assert code == 0, err
    code, out, err = cli("train", path, "--resume_from_checkpoint", "last", "--max_steps", "3")
    assert code == 0, err
    assert re.findall(r"^step (\d+)/3", out, re.MULTILINE) == ["3"]
    code, out, err = cli("train", path, "--overwrite_output_dir", "--max_steps", "1")
    assert code == 0, err
    assert "Removed checkpoint-1 to checkpoint-3" in out
    assert re.findall(r"^step (\d+)/1", out, re.MULTILINE) == ["1"]
    code, _, err = cli("train", path, "--overwrite_output_dir", "--dataset_name", "./gone.jsonl")
    assert code == 2
    assert (folder / "out" / "checkpoint-1").is_dir()  # a mistake elsewhere costs nothing
    code, _, err = cli("train", path, "--resume_from_checkpoint", "last", "--max_steps", "1")
    assert code == 2
    assert "checkpoint-1 is at the end of this run already: nothing is left to train" in err
    code, out, err = cli("train", path, "--resume_from_checkpoint", "auto", "--max_steps", "1")
    assert code == 0, err
    assert "nothing is left to train" in out
    code, _, err = cli("train", path, "--resume_from_checkpoint", "nowhere")
    assert code == 2
    assert "there is no folder 'nowhere'" in err


@pytest.mark.slow
def test_the_same_command_twice_without_checkpoints(cli, config, folder):
    path = config(max_steps=1)
    assert cli("train", path)[0] == 0
    code, out, err = cli("train", path)
    assert code == 0, err
    assert "holds a model already, which this run will replace" in out


@pytest.mark.slow
def test_the_card_tells_the_parts_and_parses(cli, config, folder):
    (folder / "mine.py").write_text(
        "from grpo_verifiers import verifier\n"
        '@verifier("mine", isolation="inline")\n'
        "def mine(completion: str, answer: str, *, mark: str = 'x') -> float:\n    return float(len(completion) % 2)\n"
    )
    path = config(
        advantage="sign",
        advantage_kwargs={"band": 0.25},
        objective="dapo",
        objective_kwargs={"epsilon_high": 0.28},
        plugins=["./mine.py"],
        verifiers=[{"name": "mine", "weight": 0.5, "kwargs": {"mark": "a|b`c"}, "columns": {"answer": "question"}}],
        prompt={"column": "question", "template": "boxed"},
        hub_token="secret-of-mine",
        max_steps=1,
        **SAVING,
    )
    code, _, err = cli("train", path)
    assert code == 0, err
    card = ModelCard.load(folder / "out" / "README.md")
    card.data.to_yaml()
    assert {"grpo", "grpo_plus", "trl"} <= set(card.data.tags)
    assert card.data.pipeline_tag == "text-generation"
    text = card.text
    assert text.count("## How it was trained") == 1
    for expected in (
        "| Advantage estimator | `sign` `band: 0.25` |",
        "| Objective | `dapo` `epsilon_high: 0.28`, beta 0 |",
        "| Update engine | `auto` |",
        '| `mine` | training | 0.5 | `mark: a\\|b\'c`, `columns: {"answer": "question"}` |',
        "| Dataset | data.jsonl |",
        "| Steps | 1 |",
        "| `learning_rate` | `0.001` |",
        '"template": "boxed"',
    ):
        assert expected in text
    import trl

    assert f"| trl | {trl.__version__} |" in text
    assert "secret-of-mine" not in text
    assert str(folder) not in text
    assert "[None]" not in text


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("tensorbord", "unknown tracker 'tensorbord'. Did you mean 'tensorboard'?"),
        ("mlflow", "report_to is 'mlflow', but mlflow is not installed: pip install mlflow"),
    ],
)
def test_trackers_are_checked_before_anything_is_loaded(cli, config, folder, given, expected):
    (folder / "broken").mkdir()
    (folder / "broken" / "config.json").write_text("{")
    code, _, err = cli("train", config(report_to=given, model_name_or_path=str(folder / "broken")))
    assert code == 2
    assert expected in err


def test_a_disk_that_is_too_small_is_found_before_training(cli, config, small_disk):
    out = small_disk(64 * 1024)  # the model takes 100 KiB
    code, told, err = cli("train", config(output_dir=str(out / "run")))
    assert code == 2
    assert re.search(
        r"no space left for what this run will save: .*disk/run has [\d.]+ KiB free, but the model takes \d", err
    )
    assert "{'loss'" not in told


@pytest.mark.slow
def test_a_disk_that_fills_up_while_training(cli, config, folder, small_disk, caplog):
    out = small_disk(2 * 1024 * 1024)
    (folder / "filling.py").write_text(
        "seen = []\n\n\ndef filling(completions, **_):\n"
        "    seen.append(1)\n"
        "    if len(seen) == 3:\n"
        f"        with open({str(out / 'other')!r}, 'wb', buffering=0) as file:\n"
        "            try:\n"
        "                while True:\n                    file.write(bytes(4096))\n"
        "            except OSError:\n                pass\n"
        "            file.truncate(file.tell() - 65536)  # the card fits, the model does not\n"
        "    return [float(len(str(c)) % 3) for c in completions]\n"
    )
    path = config(
        output_dir=str(out / "run"), reward_funcs=["./filling.py:filling"], max_steps=5, **SAVING, record=False
    )
    code, _, err = cli("train", path)
    assert code == 74, err
    assert "Traceback" not in err
    assert f"the model could not be written to {out / 'run'}: no space left on the disk" in err
    assert "It is in " in err
    told = caplog.text
    assert "checkpoint-3 was not written: no space left" in told
    assert "The last whole checkpoint is checkpoint-2. Training goes on." in told
    assert told.count("checkpoint-5 was not written either") == 2
    assert told.count("Training goes on") == 3
    (out / "other").unlink()
    code, _, err = cli("train", path, "--resume_from_checkpoint", "last", "--max_steps", "3")
    assert code == 0, err


@pytest.mark.slow
def test_a_run_that_ends_for_lack_of_memory_says_what_to_change(cli, config, folder):
    path = config(reward_funcs=["./full.py:full"])
    (folder / "full.py").write_text(
        "import torch\n\n\ndef full(completions, **_):\n    raise torch.OutOfMemoryError('CUDA out of memory. Tried …')\n"
    )
    code, _, errors = cli("train", path)
    assert code == 2
    assert "grpo-plus train: out of memory while completions were scored: CUDA out of memory. Tried" in errors
    assert "Lower max_completion_length or per_device_train_batch_size" in errors
    assert "Traceback" not in errors
