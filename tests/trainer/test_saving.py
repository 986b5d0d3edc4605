"""Checkpoints that cannot be written: training continues, and ends where it would have."""

import json
import shutil
import subprocess

import pytest
import torch
from datasets import Dataset

from grpo_plus.record import open_run
from grpo_plus.training.hooks import Hook
from tests.trainer.resumed_ranks import fill

SAVING = {"save_strategy": "steps", "save_steps": 1, "max_steps": 4, "optim": "adamw_torch"}


@pytest.fixture
def disk(small_disk):
    return small_disk(4 * 1024 * 1024)


class Act:
    """A reward function that does something at each of its calls, by number."""

    __name__ = "act"

    def __init__(self, **acts):
        self.acts, self.calls = acts, 0

    def __call__(self, completions, **_):
        self.calls += 1
        self.acts.get(f"at_{self.calls}", lambda: None)()
        return [sum(map(ord, str(text))) % 7 / 7 for text in completions]


def names(folder):
    return sorted(path.name for path in folder.glob("checkpoint-*"))


@pytest.mark.sample(1)
@pytest.mark.parametrize("left", [0, 150_000])
def test_training_goes_on_while_the_disk_is_full_and_saves_when_it_is_not(trained, disk, caplog, left):
    out = disk / "run"
    acts = {"at_2": lambda: fill(disk, left), "at_4": (disk / "other").unlink}
    trainer = trained(trainer={"reward_funcs": [Act(**acts)]}, output_dir=str(out), **SAVING)
    assert trainer.state.global_step == 4
    assert names(out) == ["checkpoint-1", "checkpoint-4"]
    assert trainer.pipeline.saving.failed is None
    said = [record.getMessage() for record in caplog.records if record.name == "grpo_plus.saving"]
    assert len(said) == 2
    assert said[0].startswith(f"checkpoint-2 was not written: no space left on the disk of output_dir {out} (")
    then = "whole checkpoint is checkpoint-1. Free some space: training continues, and the next save tries again."
    assert then in said[0]
    assert said[1].startswith("checkpoint-3 was not written: no space left")
    plain = trained(trainer={"reward_funcs": [Act()]}, **SAVING | {"save_strategy": "no"})
    assert all(torch.equal(a, b) for a, b in zip(trainer.model.parameters(), plain.model.parameters(), strict=True))


def test_the_limit_of_checkpoints_holds_and_is_written_down_as_it_is(trained, tmp_path):
    trainer = trained(**SAVING, save_total_limit=2)
    assert names(tmp_path / "out") == ["checkpoint-3", "checkpoint-4"]
    assert trainer.args.save_total_limit == 2
    saved = torch.load(tmp_path / "out" / "checkpoint-4" / "training_args.bin", weights_only=False)
    assert saved.save_total_limit == 2


def test_a_disk_that_is_read_only_for_a_while(trained, disk, caplog):
    def mount(how):
        return lambda: subprocess.run(["mount", "-o", f"remount,{how}", disk], check=True, timeout=30)

    acts = Act(at_2=mount("ro"), at_4=mount("rw"))
    more = {"output_dir": str(disk / "run"), "advantage": "sign"}
    trained(trainer={"reward_funcs": [acts]}, **more, **SAVING)
    said = caplog.text
    assert f"checkpoint-2 was not written: output_dir {disk / 'run'} cannot be written (Read-only file system" in said
    assert "Make it writable: training continues, and the next save tries again." in said
    assert names(disk / "run") == ["checkpoint-1", "checkpoint-4"]
    run = open_run(disk / "run")
    assert (run.status, run.damage) == ("done", [])
    assert run.series("reward")[0] == [1, 4]


def test_a_record_goes_on_in_a_folder_that_was_removed(trained, tmp_path):
    acts = Act(at_3=lambda: shutil.rmtree(tmp_path / "out"))
    trained(trainer={"reward_funcs": [acts]}, advantage="sign", **SAVING)
    assert names(tmp_path / "out") == ["checkpoint-3", "checkpoint-4"]
    run = open_run(tmp_path / "out")
    assert (run.status, run.damage) == ("done", [])
    assert {"train", "batch"} <= {entry["kind"] for entry in run.entries}
    assert run.info["parts"]["advantage"]["name"] == "sign"


def test_a_best_checkpoint_that_was_not_written_is_no_best(trained, disk, caplog):
    best = {"metric_for_best_model": "reward", "load_best_model_at_end": True, "save_total_limit": 1}
    further = {"eval_strategy": "steps", "eval_steps": 1, "num_generations_eval": 4, "per_device_eval_batch_size": 8}

    class Rising(Hook):
        """Evaluations of ever better reward; the disk is full in steps 2 and 3."""

        def scored(self, _completions, rewards_NK):
            return rewards_NK * 0 + (self.host.state.global_step if not self.host.model.training else 1)

        def on_step_begin(self, _args, state, _control, **_):
            if state.global_step == 1:
                fill(disk, 150_000)
            if state.global_step == 3:
                (disk / "other").unlink()

        def on_step_end(self, _args, state, _control, **_):
            kept.append((state.best_metric, state.best_global_step, state.best_model_checkpoint))

    kept = []
    rows, out = [{"prompt": "1+1="}] * 2, disk / "run"
    given = {"reward_funcs": [Act()], "hooks": [Rising()], "eval_dataset": Dataset.from_list(rows)}
    trainer = trained(trainer=given, output_dir=str(out), **SAVING, **best, **further)
    assert kept[2:] == [(1.0, 1, str(out / "checkpoint-1"))] * 2
    assert trainer.state.best_model_checkpoint == str(out / "checkpoint-4")
    assert names(out) == ["checkpoint-4"]


BEST = {"eval_strategy": "steps", "eval_steps": 1, "metric_for_best_model": "reward", "num_generations_eval": 2}


@pytest.mark.slow
@pytest.mark.parametrize("case", [(0, 150_000, BEST), (1, 0, {})], ids=["first", "second"])
def test_all_ranks_learn_that_one_of_them_could_not_write(disk, ranks, case):
    first, second = ranks("saving", disk, *map(json.dumps, case))
    assert first["step"] == second["step"] == 4
    assert first["failed"] == second["failed"]
    full = [why.startswith(f"no space left on the disk of output_dir {disk}") for why in first["failed"]]
    assert full == [False, True, True, False]
    assert first["weights"] == second["weights"]
    for rank, found in enumerate((first, second)):
        assert f"checkpoint-4/rng_state_{rank}.pth" in found["files"]
        assert {name.partition("/")[0] for name in found["files"]} == {"checkpoint-1", "checkpoint-4"}
