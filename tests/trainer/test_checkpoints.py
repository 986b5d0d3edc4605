"""Checkpoints that are torn, half deleted or changed: the manifest notices, a run goes on from the newest whole one, and says why."""

import hashlib
import json
import os
import shutil
import sys
import time
from pathlib import Path

import pytest
from peft import LoraConfig
from transformers import TrainerCallback
from trl import GRPOConfig

from grpo_plus import GRPOPlusTrainer
from grpo_plus.checkpoints import manifest
from grpo_plus.checkpoints.folder import (
    STATE_FILE,
    CheckpointError,
    checkpoints,
    choose,
    finish,
    in_order,
    is_intact,
    is_model_of,
    problem,
    resume_choice,
    rotate,
    seal_model,
    unseal_model,
)
from tests import started

SAVING = {"save_strategy": "steps", "save_steps": 1, "max_steps": 2, "optim": "adamw_torch"}
DAMAGES = {
    "empty": lambda _: b"",
    "half": lambda data: data[: len(data) // 2],
    "without its last byte": lambda data: data[:-1],
    "with a byte changed": lambda data: data[:-9] + bytes([data[-9] ^ 1]) + data[-8:],
    "gone": lambda _: None,
}


@pytest.fixture
def saved(build, tmp_path):
    """Trains two steps, with a checkpoint after each, and gives the run's folder: `saved(save_only_model=True)`."""

    def saved(**options):
        build(**SAVING | options).train()
        return tmp_path / "out"

    return saved


@pytest.fixture
def adapters():
    return {"peft_config": LoraConfig(r=4, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")}


def files_of(folder):
    return sorted(path for path in folder.rglob("*") if path.is_file())


def shard(checkpoint, model):
    (checkpoint / "model.safetensors").unlink()
    model.save_pretrained(checkpoint, max_shard_size="40KB")
    finish(checkpoint, 2)


@pytest.mark.sample(0)
@pytest.mark.parametrize("kind", ["plain", "adapter", "sharded", "weights only"])
def test_any_file_that_is_torn_is_named_and_the_checkpoint_before_is_taken(trained, tmp_path, adapters, kind):
    trainer = trained(trainer=adapters if kind == "adapter" else {}, save_only_model=kind == "weights only", **SAVING)
    last = tmp_path / "out" / "checkpoint-2"
    if kind == "sharded":
        shard(last, trainer.model)
    assert {resume_choice(value, tmp_path / "out").checkpoint for value in (True, "last", str(last))} == {last}
    files = files_of(last)
    names = {path.name for path in files}
    assert {STATE_FILE, manifest.FILE, "trainer_state.json", "tokenizer.json", "training_args.bin"} <= names
    assert ("adapter_model.safetensors" in names) is (kind == "adapter")
    assert ("model-00002-of-00003.safetensors" in names) is (kind == "sharded")
    assert ("optimizer.pt" in names) is ("rng_state.pth" in names) is (kind != "weights only")
    for path in files:
        data = path.read_bytes()
        for damage, change in DAMAGES.items():
            torn = change(data)
            path.unlink()
            if torn is not None:
                path.write_bytes(torn)
            found = choose(tmp_path / "out")
            assert found.checkpoint == tmp_path / "out" / "checkpoint-1", (path.name, damage)
            (line,) = found.passed_over
            assert line.startswith("checkpoint-2 is passed over: "), line
            assert path.name in line, (damage, line)
            path.write_bytes(data)
    assert choose(tmp_path / "out").checkpoint == last


class Steps(TrainerCallback):
    def __init__(self, steps):
        self.steps = steps

    def on_step_end(self, args, state, control, **_):
        self.steps.append(state.global_step)


def test_a_trainer_takes_the_newest_whole_checkpoint_and_never_a_torn_one(build, trained, saved, tmp_path, caplog):
    out = saved(max_steps=3)
    os.truncate(out / "checkpoint-3" / "optimizer.pt", 10)
    for value in (True, "last"):
        trainer = build(**SAVING | {"max_steps": 3, "save_strategy": "no"})
        steps = []
        trainer.add_callback(Steps(steps))
        trainer.train(resume_from_checkpoint=value)
        assert steps == [3]
        assert "checkpoint-3 is passed over: optimizer.pt has 10 of" in caplog.text
        caplog.clear()
    with pytest.raises(CheckpointError) as caught:
        trained(**SAVING, resume=out / "checkpoint-3")
    assert f"{out / 'checkpoint-3'} is no complete checkpoint: optimizer.pt has 10 of" in str(caught.value)
    assert f"The newest complete one in {out} is checkpoint-2." in str(caught.value)
    for step in (1, 2):
        (out / f"checkpoint-{step}" / manifest.FILE).unlink()
    with pytest.raises(CheckpointError, match="there is nothing to resume") as caught:
        trained(**SAVING, resume=True)
    for step, why in ((1, "it was never finished"), (2, "it was never finished"), (3, "optimizer.pt has 10 of")):
        assert f"checkpoint-{step} is passed over: {why}" in str(caught.value)


def test_another_runs_checkpoints_are_refused_or_removed_and_those_of_this_process_are_not(trained, saved, tmp_path):
    folder = tmp_path / "copy"
    shutil.copytree(saved(max_steps=3), folder)  # as if another process had written them
    same = SAVING | {"output_dir": str(folder)}
    with pytest.raises(CheckpointError, match="3 checkpoints of an earlier run"):
        trained(**same)
    trained(GRPOPlusTrainer, GRPOConfig, **same, save_total_limit=9)  # a plain config trains as in TRL
    assert len(checkpoints(folder)) == 3
    trained(**same, overwrite_output_dir=True).train()
    assert len(checkpoints(folder)) == 2
    trained(**same)


def test_going_on_from_an_older_checkpoint_makes_a_branch_that_counts(trained, saved, tmp_path):
    out = saved(max_steps=3)
    abandoned = (out / "checkpoint-2" / manifest.FILE).read_text()
    (out / "checkpoint-2" / "left_over").touch()
    trained(**SAVING | {"save_only_model": True}, resume=out / "checkpoint-1")
    assert (out / "checkpoint-2" / manifest.FILE).read_text() != abandoned
    names = {path.name for path in files_of(out / "checkpoint-2")}
    assert not names & {"left_over", "optimizer.pt"}  # nothing of the old one is left in it
    found = choose(out)
    assert found.checkpoint.name == "checkpoint-2"
    assert found.passed_over == ()
    assert is_intact(out / "checkpoint-3")


def test_the_last_checkpoint_stays_beside_the_best_until_the_end(trained, tmp_path, sums):
    scores = iter([0.9] * 8 + [0.1] * 1000)
    best = {"eval_strategy": "steps", "eval_steps": 1, "load_best_model_at_end": True, "save_total_limit": 1}
    best |= {"metric_for_best_model": "eval_reward", "per_device_eval_batch_size": 8, "max_steps": 3}

    def falling(completions, **_):
        return [next(scores) for _ in completions]

    trainer = trained(trainer={"reward_funcs": [falling], "eval_dataset": sums.select(range(2))}, **SAVING | best)
    left = [path.name for path in checkpoints(tmp_path / "out")]
    chosen = Path(trainer.state.best_model_checkpoint).name
    assert left == sorted({chosen, "checkpoint-3"})
    assert chosen != "checkpoint-3"
    assert trainer.args.save_total_limit == 1


@pytest.mark.nightly
def test_killed_anywhere_in_a_save_or_rotation_one_is_whole(tmp_path, tiny_model, clean_environment):
    script = Path(__file__).with_name("killed_saves.py")
    given = [sys.executable, script, tmp_path, tiny_model]
    done = started.run(given, env=clean_environment, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    found = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"')]
    killed = [one for one in found if one["killed"]]
    assert len(killed) > 40, len(killed)
    assert not found[-1]["killed"]
    assert {one["event"].split()[0] for one in killed} >= {"open", "os.rename", "os.mkdir", "os.remove", "os.rmdir"}
    for one in found:
        new, old = "checkpoint-2" in one["whole"], "checkpoint-1" in one["whole"]
        assert new or old, one
        assert one["chosen"] == ("checkpoint-2" if new else "checkpoint-1"), one
        assert len(one["passed_over"]) == (not new and one["began"]), one
        torn = {"checkpoint-2"} if one["passed_over"] else set()
        assert set(one["after"]) == {one["chosen"], *torn}, one  # the next rotation leaves nothing else behind
    assert {one["chosen"] for one in killed} == {"checkpoint-1", "checkpoint-2"}


def test_two_ranks_agree_on_the_checkpoint(ranks):
    found = ranks("whole")
    assert found[0] == found[1]
    assert {"rng_state_0.pth", "rng_state_1.pth"} <= set(found[0]["files"])
    assert found[0]["steps"] == [2]
    assert "checkpoint-1 is passed over: rng_state_1.pth has 0 of" in found[0]["refused"]


def test_a_final_model_is_that_of_its_checkpoint_or_none(tmp_path):
    checkpoint = tmp_path / "checkpoint-4"
    checkpoint.mkdir()
    (checkpoint / STATE_FILE).write_text('{"version": 2, "parts": {}}')
    finish(checkpoint, 4)
    assert not is_model_of(checkpoint)
    for name in ("model.safetensors", "config.json", "tokenizer.json", "README.md", "report.html", "notes.txt"):
        (tmp_path / name).write_text(name)
    seal_model(tmp_path, 4)
    assert is_model_of(checkpoint)
    for name in ("README.md", "report.html", "notes.txt"):
        (tmp_path / name).unlink()  # what is no part of the model may go
    assert is_model_of(checkpoint)
    for name in ("model.safetensors", "config.json", "tokenizer.json"):
        (tmp_path / name).write_text(name[:-1])
        assert not is_model_of(checkpoint)
        (tmp_path / name).write_text(name)
    seal_model(tmp_path, 3)
    assert not is_model_of(checkpoint)
    seal_model(tmp_path, 4)
    finish(checkpoint, 4)  # written anew, after the model
    assert not is_model_of(checkpoint)
    seal_model(tmp_path, 4)
    assert is_model_of(checkpoint)
    unseal_model(tmp_path)
    assert not is_model_of(checkpoint)


FILES = {
    STATE_FILE: b'{"version": 2, "parts": {}}',
    "optimizer.pt": bytes(range(256)) * 16,
    "ref/adapter.bin": b"x" * 9,
}


@pytest.fixture
def sealed(tmp_path):
    def sealed(step, files=FILES, finished=True):
        folder = tmp_path / "out" / f"checkpoint-{step}"
        for name, data in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(data)
        if finished:
            finish(folder, step)
        return folder

    return sealed


def flip(path, at):
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def names(paths):
    return [path.name for path in paths]


def test_a_manifest_can_be_verified_by_hand(sealed):
    before = time.time()
    content = json.loads((sealed(4) / manifest.FILE).read_text())
    assert content["step"] == 4
    assert before <= content["time"] <= time.time()
    assert content["files"] == {
        name: {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()} for name, data in FILES.items()
    }
    assert list(content["files"]) == sorted(FILES)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize(("change", "words"), [
    (lambda path: path.write_bytes(b""), "has 0 of {size:,} bytes"),
    (lambda path: os.truncate(path, path.stat().st_size - 1), "has {less:,} of {size:,} bytes"),
    (lambda path: path.write_bytes(path.read_bytes() + b"x"), "has {more:,} of {size:,} bytes"),
    (lambda path: path.unlink(), "is missing"),
    (lambda path: (path.unlink(), path.mkdir()), "is no file"),
    (lambda path: (path.unlink(), os.mkfifo(path)), "is no file"),
    (lambda path: (path.unlink(), path.symlink_to("nowhere")), "is missing"),
    (lambda path: flip(path, path.stat().st_size // 2), "holds other bytes than were written"),
])  # fmt: skip
def test_a_file_that_changed_is_named(sealed, name, change, words):
    folder = sealed(4)
    assert problem(folder) is None
    change(folder / name)
    size = len(FILES[name])
    assert problem(folder) == f"{name} " + words.format(size=size, less=size - 1, more=size + 1)
    assert (problem(folder, hashes=False) is None) is ("other bytes" in words)  # sizes tell no flipped bytes


def test_a_manifest_with_any_byte_changed_or_cut_off_is_none(sealed):
    path = sealed(4) / manifest.FILE
    data = path.read_bytes()
    for at in range(len(data)):
        path.write_bytes(data[:at])
        assert not is_intact(path.parent), at
        path.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        found = problem(path.parent, hashes=False)
        assert found is not None, at
        assert manifest.FILE in found, at
    path.write_bytes(data)
    assert is_intact(path.parent)


@pytest.mark.parametrize(("content", "words"), [
    (None, "it was never finished: grpo_plus_manifest.json is missing"),
    ("[]", "is broken"),
    ("[" * 10**5, "is broken"),
    ('{"version": 2, "sha256": "", "step": 1, "time": 1, "files": {}}', "is of version 2, and this release reads"),
    ('{"version": 1, "sha256": "", "step": 1, "time": 1, "files": {"../x": {}}}', "is broken"),
    ('{"version": 1, "sha256": "", "step": 1, "time": 1e999, "files": {}}', "holds other bytes"),
])  # fmt: skip
def test_a_manifest_that_is_none(sealed, content, words):
    folder = sealed(4, finished=False)
    if content is not None:
        (folder / manifest.FILE).write_text(content)
    assert words in problem(folder)


def test_odd_names_and_links_are_no_trouble(sealed, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "data").write_bytes(b"1")
    folder = sealed(4, {**FILES, "two words\n'é'": b"2"}, finished=False)
    (folder / os.fsdecode(b"\xff")).write_bytes(b"3")
    (folder / "linked").symlink_to(tmp_path / "elsewhere" / "data")
    (folder / "circle").symlink_to(folder)
    (folder / "nowhere").symlink_to("gone")
    os.mkfifo(folder / "pipe")
    finish(folder, 4)
    assert set(manifest.read(folder).files) == {*FILES, "two words\n'é'", os.fsdecode(b"\xff"), "linked"}
    (folder / "notes.txt").write_text("mine")  # later
    assert is_intact(folder)
    (tmp_path / "elsewhere" / "data").write_bytes(b"4")
    assert problem(folder) == "linked holds other bytes than were written"


def test_the_newest_is_the_one_written_last(sealed, tmp_path):
    for step in (2, 4, 10):
        sealed(step)
    out = tmp_path / "out"
    assert names(in_order(out)) == ["checkpoint-2", "checkpoint-4", "checkpoint-10"]
    finish(out / "checkpoint-4", 4)  # after going on from 2
    assert choose(out).checkpoint.name == "checkpoint-4"
    for path in checkpoints(out):  # a copy has times of its own
        os.utime(path / STATE_FILE, (5, 5))
    assert names(in_order(out)) == ["checkpoint-2", "checkpoint-10", "checkpoint-4"]
    manifest.write(sealed(8, finished=False), 8, after=time.time() + 1e6)
    sealed(2)  # after the clock was set back
    assert choose(out).checkpoint.name == "checkpoint-2"


@pytest.mark.parametrize(("kept", "torn", "left"), [
    *(((None, None), "", "2468"), ((3, None), "", "468"), ((1, None), "", "8")),
    *(((1, 4), "", "48"), ((2, 4), "", "48"), ((3, 2), "", "268"), ((2, 4), "4", "48")),
    ((2, None), "6", "48"),  # what is torn goes first
    *(((2, None), "8", "468"), ((1, None), "68", "468")),  # the last may be written just now
    ((1, None), "2468", "2468"),
])  # fmt: skip
def test_rotation_keeps_the_newest_whole_one_and_the_best(sealed, tmp_path, kept, torn, left):
    for step in "2468":
        sealed(int(step), finished=step not in torn)
    out = tmp_path / "out"
    (out / ".removing-checkpoint-0-ab").mkdir()  # by one that was killed
    limit, best = kept
    assert rotate(out, limit, best and f"{out}/../out/checkpoint-{best}") == []
    assert names(checkpoints(out)) == [f"checkpoint-{step}" for step in left]
    assert len(list(out.iterdir())) == len(left)
    (out / "checkpoint-8").rename(tmp_path / "elsewhere")
    (out / "checkpoint-8").symlink_to(tmp_path / "elsewhere")
    sealed(10)
    rotate(out, 1)
    assert "checkpoint-8" not in names(out.iterdir())  # of a link what it leads to is left
    assert is_intact(tmp_path / "elsewhere") is ("8" not in torn)
