"""A run that resumes from any checkpoint is the uninterrupted run, bit for bit."""

import json
import random
import shutil
from pathlib import Path

import pandas as pd
import pytest
import torch
from datasets import Dataset, IterableDataset

from grpo_plus.training.hooks import Hook
from grpo_plus.training.interrupt import Interruption
from grpo_plus.training.resuming.place import Geometry, Position, position

EVERY_STEP = {
    "save_strategy": "steps",
    "save_steps": 1,
    "optim": "adamw_torch",
    "learning_rate": 1e-2,
    "num_generations": 2,
    "per_device_train_batch_size": 2,
    "max_completion_length": 8,
    "temperature": 1.0,
}
TIMES = ("time", "runtime", "per_second", "flos")


def spread(completions, **_):
    return [sum(map(ord, text)) % 11 / 11 for text in completions]


def rows(count):
    return Dataset.from_list([{"prompt": f"{number}+{number}=", "answer": str(2 * number)} for number in range(count)])


def endless(count):
    return IterableDataset.from_generator(lambda: iter(rows(count)))


class Notes(Hook):
    """Notes the prompts of each generation, and the state of the generators at each micro-batch."""

    def __init__(self):
        self.prompted, self.states, self.passes = [], [], []

    def prompts(self, rows):
        kind = "train" if self.host.model.training else "eval"
        self.prompted.append((self.host.state.global_step, kind, [row["prompt"] for row in rows]))

    def step(self, run):
        self.states.append((self.host.state.global_step, random.random(), torch.get_rng_state().sum().item()))
        return run()

    def on_epoch_begin(self, *_, **__):
        self.passes.append((self.host.state.global_step, self.host.place.here.passes))


def weights(trainer):
    return torch.cat([weight.detach().flatten() for weight in trainer.model.parameters()])


def logged(trainer):
    """The history of logs, without times; the summary of the end is of one call, and has no place in it."""
    entries = [entry for entry in trainer.state.log_history if "train_loss" not in entry]
    return [
        {name: value for name, value in entry.items() if not any(word in name for word in TIMES)} for entry in entries
    ]


def start(build, settings, *, data=6, evaluation=4, hooks=()):
    notes = Notes()
    given = {
        "reward_funcs": [spread],
        "train_dataset": data if not isinstance(data, int) else rows(data),
        "hooks": [notes, *hooks],
    }
    if "eval_strategy" in settings:
        given["eval_dataset"] = rows(evaluation)
        settings = {"per_device_eval_batch_size": 4, **settings}
    torch.manual_seed(0)
    return build(trainer=given, **{**EVERY_STEP, **settings}), notes


def same(whole, notes, resumed, again, at):
    """The resumed run is the rest of the whole one."""
    assert torch.equal(weights(resumed), weights(whole)), at
    assert logged(resumed) == logged(whole), at
    later = [entry for entry in notes.states if entry[0] >= at]
    assert again.states == later, at
    drawn = [entry for entry in notes.prompted if entry[0] > at]
    assert [entry for entry in again.prompted if entry[0] > at] == drawn, at
    assert again.prompted[len(again.prompted) - len(drawn) :] == drawn, at


CASES = {
    "several iterations": {"num_iterations": 2, "max_steps": 4},
    "four iterations over three passes": {"num_iterations": 4, "max_steps": 26},
    "a batch of four, accumulated by two": {
        "steps_per_generation": 4,
        "gradient_accumulation_steps": 2,
        "max_steps": 7,
    },
    "a batch of four in single steps": {"steps_per_generation": 4, "gradient_accumulation_steps": 1, "max_steps": 10},
    "a batch of three, accumulated by two": {
        "steps_per_generation": 3,
        "gradient_accumulation_steps": 2,
        "max_steps": 8,
    },
    "passes of an odd number of micro-batches": {
        "steps_per_generation": 3,
        "gradient_accumulation_steps": 2,
        "max_steps": 8,
        "data": 3,
    },
    "passes that end": {"num_train_epochs": 3, "max_steps": -1, "steps_per_generation": 2, "num_iterations": 2},
    "unshuffled": {"num_train_epochs": 2, "max_steps": -1, "shuffle_dataset": False, "steps_per_generation": 2},
    "logs of three steps": {"logging_steps": 3, "num_iterations": 2, "steps_per_generation": 2, "max_steps": 8},
    "logs at the ends of passes": {"logging_strategy": "epoch", "steps_per_generation": 2, "max_steps": 14},
    "evaluation at the ends of passes": {
        "eval_strategy": "epoch",
        "steps_per_generation": 2,
        "max_steps": 8,
        "data": 3,
    },
    "evaluation by steps, and at the start": {
        "eval_strategy": "steps",
        "eval_steps": 3,
        "eval_on_start": True,
        "num_iterations": 2,
        "max_steps": 7,
        "data": 3,
    },
    "checkpoints of passes": {
        "save_strategy": "epoch",
        "eval_strategy": "epoch",
        "steps_per_generation": 2,
        "max_steps": 8,
        "data": 3,
    },
    "a stream over its passes": {
        "data": "stream",
        "steps_per_generation": 2,
        "num_iterations": 2,
        "max_steps": 18,
        "eval_strategy": "epoch",
    },
    "a stream that ends within an accumulation": {
        "data": "stream",
        "steps_per_generation": 3,
        "gradient_accumulation_steps": 2,
        "max_steps": 9,
    },
    "packed": {"engine": "packed", "objective": "grpo", "steps_per_generation": 4, "num_iterations": 2, "max_steps": 9},
    "packed and accumulated": {
        "engine": "packed",
        "objective": "dapo",
        "steps_per_generation": 4,
        "gradient_accumulation_steps": 2,
        "num_iterations": 2,
        "max_steps": 6,
    },
    "a stream with checkpoints of passes": {
        "data": "stream",
        "save_strategy": "epoch",
        "logging_strategy": "epoch",
        "steps_per_generation": 2,
        "max_steps": 18,
    },
    "dropout": {"model_init_kwargs": {"attention_dropout": 0.3}, "num_iterations": 2, "max_steps": 6},
    "stock": {"engine": "stock", "rollout": "stock", "steps_per_generation": 4, "num_iterations": 2, "max_steps": 9},
    "a workers' loader": {"dataloader_num_workers": 1, "steps_per_generation": 2, "max_steps": 8},
    "a completion table": {"log_completions": True, "logging_steps": 2, "steps_per_generation": 4, "max_steps": 6},
    "a first step that is logged": {
        "logging_first_step": True,
        "logging_steps": 4,
        "num_iterations": 3,
        "max_steps": 6,
    },
    "a target that stops": {
        "objective": "target",
        "objective_kwargs": {"stop_fraction": 0.5},
        "num_iterations": 3,
        "steps_per_generation": 2,
        "max_steps": 9,
    },
}
FAST = ("several iterations",)


@pytest.mark.parametrize("name", [pytest.param(n, marks=[] if n in FAST else [pytest.mark.slow]) for n in CASES])
def test_a_run_resumed_from_every_checkpoint_is_the_uninterrupted_one(build, tmp_path, name):
    settings = dict(CASES[name])
    data = settings.pop("data", 6)

    def fresh():
        return start(build, settings, data=endless(6) if data == "stream" else data)

    whole, notes = fresh()
    whole.train()
    checkpoints = sorted((tmp_path / "out").glob("checkpoint-*"), key=lambda path: int(path.name.split("-")[1]))
    assert len(checkpoints) >= 3
    kept = tmp_path / "kept"
    (tmp_path / "out").rename(kept)
    for checkpoint in checkpoints:
        resumed, again = fresh()
        resumed.train(resume_from_checkpoint=str(kept / checkpoint.name))
        same(whole, notes, resumed, again, int(checkpoint.name.split("-")[1]))
        for table in (tmp_path / "out" / "completions").glob("*.parquet"):
            assert pd.read_parquet(table).equals(pd.read_parquet(kept / "completions" / table.name)), table
        shutil.rmtree(tmp_path / "out")


ONE = Geometry(1, 2, 2, 4, 2, 3)


def test_a_position_is_exact_where_its_batch_is_there_and_starts_the_batch_anew_elsewhere():
    inside = Position(step=30, passes=1, taken=18)
    assert position(inside, ONE, ONE, holds_batch=True) == inside
    assert position(inside, ONE, ONE, holds_batch=False) == Position(step=12, passes=1, taken=12)
    between = Position(step=36, passes=1, taken=24)
    assert position(between, ONE, ONE, holds_batch=False) == between
    odd = Geometry(1, 2, 2, 3, 2, 1)  # batches of three micro-batches, optimizer steps of two
    assert position(Position(10, 0, 10), odd, odd, holds_batch=False) == Position(6, 0, 6)


BATCH = {"steps_per_generation": 4, "num_iterations": 2}


def saved(build, tmp_path, settings=BATCH, **further):
    """A run of seven steps with a checkpoint at each; its folder is kept."""
    whole, notes = start(build, {**settings, "max_steps": 7}, **further)
    whole.train()
    return whole, notes, (tmp_path / "out").rename(tmp_path / "kept")


@pytest.mark.slow
def test_a_finished_checkpoint_trains_no_step_and_gives_its_weights(build, tmp_path):
    whole, _, kept = saved(build, tmp_path, {**BATCH, "eval_strategy": "epoch"})
    again, notes = start(build, {**BATCH, "eval_strategy": "epoch", "max_steps": 7})
    assert not torch.equal(weights(again), weights(whole))
    state = again.train(resume_from_checkpoint=str(kept / "checkpoint-7"))
    assert state.global_step == 7
    assert notes.states == []
    assert torch.equal(weights(again), weights(whole))
    assert logged(again) == logged(whole)


@pytest.mark.slow
def test_one_trainer_object_trains_resumes_and_trains_anew(build, tmp_path):
    whole, notes, kept = saved(build, tmp_path)
    trainer, again = start(build, {**BATCH, "max_steps": 7})
    trainer.train()
    for step in (3, 6):
        again.__init__()
        trainer.train(resume_from_checkpoint=str(kept / f"checkpoint-{step}"))
        same(whole, notes, trainer, again, step)
    again.__init__()
    trainer.train()
    assert [entry[::2] for entry in again.prompted] == [entry[::2] for entry in notes.prompted]


@pytest.mark.slow
@pytest.mark.parametrize("missing", ["all", "place"])
def test_a_checkpoint_that_does_not_say_where_it_stands_starts_its_batch_anew(build, tmp_path, missing, caplog):
    _, notes, kept = saved(build, tmp_path)
    for checkpoint in kept.glob("checkpoint-*"):
        (checkpoint / "grpo_plus_manifest.json").unlink(missing_ok=True)
        path = checkpoint / "grpo_plus_state.json"
        content = json.loads(path.read_text())
        path.unlink()
        if missing == "place":
            parts = {"clock": content["parts"]["clock"]}
            path.write_text(json.dumps({"version": 1, "parts": parts}))
    resumed, again = start(build, {**BATCH, "max_steps": 12})
    caplog.clear()
    resumed.train(resume_from_checkpoint=str(kept / "checkpoint-3"))
    assert [step for step, *_ in again.prompted] == [3, 11]
    assert again.prompted[0][2] == notes.prompted[0][2]  # prompts of the batch that it stood in
    assert caplog.text.count("checkpoint-3 does not hold the generation batch that it was saved in") == 1
    assert caplog.text.count("A new generation batch begins at prompt 1 of pass 1: 4 that were drawn before come") == 1


@pytest.mark.slow
def test_a_batch_that_cannot_be_stored_starts_anew_and_says_what_is_wrong(build, tmp_path, caplog):
    class Pictures(Hook):
        """Puts something into the batch that no file can hold."""

        def batch(self, output):
            output["picture"] = [object() for _ in output["completion_ids"]]

    saved(build, tmp_path, hooks=[Pictures()])
    assert caplog.text.count("a checkpoint cannot hold the generation batch: 0/picture/0 is a builtins.object") == 1
    resumed, again = start(build, {**BATCH, "max_steps": 12}, hooks=[Pictures()])
    resumed.train(resume_from_checkpoint=str(tmp_path / "kept" / "checkpoint-3"))
    assert [step for step, *_ in again.prompted] == [3, 11]


@pytest.mark.slow
def test_weights_only_hold_no_batch(build, tmp_path):
    _, _, kept = saved(build, tmp_path, {**BATCH, "save_only_model": True})
    assert not list(kept.rglob("grpo_plus_generation_batch*"))
    resumed, again = start(build, {**BATCH, "max_steps": 12})
    resumed.train(resume_from_checkpoint=str(kept / "checkpoint-3"))
    assert [step for step, *_ in again.prompted] == [3, 11]


@pytest.mark.slow
def test_a_run_that_is_made_longer_goes_on_within_its_pass(build, tmp_path):
    settings = {**BATCH, "lr_scheduler_type": "constant", "eval_strategy": "epoch"}
    whole, notes = start(build, {**settings, "max_steps": 12})
    whole.train()
    (tmp_path / "out").rename(tmp_path / "whole")
    start(build, {**settings, "max_steps": 7})[0].train()
    resumed, again = start(build, {**settings, "max_steps": 12})
    resumed.train(resume_from_checkpoint=str(tmp_path / "out" / "checkpoint-7"))
    same(whole, notes, resumed, again, 7)


@pytest.mark.slow
def test_a_run_that_is_to_skip_no_data_begins_its_pass_anew(build, tmp_path):
    _, notes, kept = saved(build, tmp_path)
    resumed, again = start(build, {**BATCH, "ignore_data_skip": True, "max_steps": 12})
    resumed.train(resume_from_checkpoint=str(kept / "checkpoint-3"))
    assert [step for step, *_ in again.prompted] == [3, 11]
    assert again.prompted[0][2] == notes.prompted[0][2]


class Press(Hook):
    """Stops a run with a signal at a step, as the command line hears it."""

    def __init__(self, interruption, step):
        self.interruption, self.at = interruption, step

    def on_step_begin(self, _args, state, *_, **__):
        if state.global_step == self.at - 1:
            self.interruption.number = 15


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["steps", "epoch"])
def test_a_run_that_a_signal_stopped_leaves_nothing_out(build, tmp_path, strategy):
    settings = {"eval_strategy": strategy, "logging_strategy": strategy, "num_iterations": 2, "max_steps": 8}
    settings |= {"eval_steps": 2} if strategy == "steps" else {}
    whole, notes = start(build, settings, data=3)
    whole.train()
    shutil.rmtree(tmp_path / "out")
    for step in (3, 4, 6):  # inside a batch, after an evaluation by steps, at the end of a pass
        interruption = Interruption()
        stopped, _ = start(build, settings | {"save_strategy": "no"}, data=3, hooks=[Press(interruption, step)])
        stopped.add_callback(interruption)
        stopped.train()
        assert stopped.state.global_step == step
        resumed, again = start(build, settings | {"save_strategy": "no"}, data=3)
        resumed.train(resume_from_checkpoint=str(tmp_path / "out" / f"checkpoint-{step}"))
        same(whole, notes, resumed, again, step)


class Leave(Exception):
    """Ends an evaluation."""


class Leaver(Hook):
    """Leaves an evaluation at its second batch, and saves, as the command line does on a signal."""

    def __init__(self, step):
        self.at, self.batches = step, 0

    def on_prediction_step(self, _args, state, *_, **__):
        if state.global_step == self.at:
            self.batches += 1
            if self.batches == 2:
                raise Leave


@pytest.mark.slow
@pytest.mark.parametrize(
    ("step", "settings"),
    [
        (4, {"eval_strategy": "steps", "eval_steps": 2}),
        (0, {"eval_strategy": "steps", "eval_steps": 2, "eval_on_start": True}),
        (6, {"eval_strategy": "epoch", "save_strategy": "epoch"}),
        (7, {"eval_strategy": "epoch"}),
    ],
)
def test_an_evaluation_that_was_left_is_done_first(build, tmp_path, step, settings):
    from grpo_plus import _trl

    settings = {"num_iterations": 2, "log_completions": True, "max_steps": 7, **settings}
    whole, notes = start(build, settings, data=3)
    whole.train()
    left, _ = start(build, settings, data=3, hooks=[Leaver(step)])
    with pytest.raises(Leave):
        left.train()
    _trl.save_checkpoint(left)
    kept = (tmp_path / "out").rename(tmp_path / "kept")
    resumed, again = start(build, settings, data=3)
    resumed.train(resume_from_checkpoint=str(kept / f"checkpoint-{step}"))
    same(whole, notes, resumed, again, step)
    assert "eval" in [kind for at, kind, _ in again.prompted if at == step]


@pytest.mark.slow
def test_two_ranks_go_on_inside_a_generation_batch(tmp_path, tiny_model, two_ranks):
    with two_ranks(Path(__file__).with_name("place_ranks.py"), tmp_path, tiny_model, log=tmp_path / "log"):
        pass
    for rank in range(2):
        for stream, step, drawn, same in json.loads((tmp_path / f"place_{rank}.json").read_text()):
            assert all(same.values()), (rank, stream, step, same)
            assert drawn == sum(at >= step for at in (0, 4, 8, 12)), (step, drawn)
