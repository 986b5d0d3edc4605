"""A run that resumes from any checkpoint is the uninterrupted run, bit for bit."""

import os
import random
import shutil

import pandas as pd
import pytest
import torch
from datasets import Dataset, IterableDataset

from grpo_plus.training.hooks import Hook
from grpo_plus.training.observers.interrupt import Interruption
from grpo_plus.training.resume import UnstorableError
from grpo_plus.trl.logs import save_checkpoint_now
from tests.trainer.conftest import weights

EVERY_STEP = {
    "save_strategy": "steps",
    "save_steps": 1,
    "optim": "adamw_torch",
    "learning_rate": 1e-2,
    "temperature": 1.0,
}
EVERY_STEP |= {"num_generations": 2, "per_device_train_batch_size": 2, "max_completion_length": 8}
TIMES = ("time", "runtime", "per_second", "flos")


def spread(completions, **_):
    return [sum(map(ord, text)) % 11 / 11 for text in completions]


def rows(count):
    return Dataset.from_list([{"prompt": f"{number}+{number}=", "answer": str(2 * number)} for number in range(count)])


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
        self.passes.append((self.host.state.global_step, self.host.pipeline.data_position.current.passes))


def logs(trainer):
    """The history of logs, without times; the summary of the end is of one call, and has no place in it."""
    log = [entry for entry in trainer.state.log_history if "train_loss" not in entry]
    return [{k: v for k, v in entry.items() if not any(word in k for word in TIMES)} for entry in log]


def start(build, settings, *, data=6, evaluation=4, hooks=()):
    notes = Notes()
    data = rows(data) if isinstance(data, int) else data
    given = {"reward_funcs": [spread], "train_dataset": data, "hooks": [notes, *hooks]}
    if "eval_strategy" in settings:
        given["eval_dataset"] = rows(evaluation)
        settings = {"per_device_eval_batch_size": 4, **settings}
    torch.manual_seed(0)
    return build(trainer=given, **{**EVERY_STEP, **settings}), notes


@pytest.fixture
def ran(build):
    """A trainer that has trained, and the notes of what it did."""

    def ran(settings, *, resume=None, **further):
        trainer, notes = start(build, settings, **further)
        trainer.train(resume_from_checkpoint=resume)
        return trainer, notes

    return ran


def same(whole, notes, resumed, again, at):
    assert torch.equal(weights(resumed), weights(whole)), at
    assert logs(resumed) == logs(whole), at
    later = [entry for entry in notes.states if entry[0] >= at]
    assert again.states == later, at
    drawn = [entry for entry in notes.prompted if entry[0] > at]
    assert [entry for entry in again.prompted if entry[0] > at] == drawn, at
    assert again.prompted[len(again.prompted) - len(drawn) :] == drawn, at


def batch(steps, accumulated=None, iterations=1, **more):
    """Settings of a batch of so many micro-batches."""
    accumulated = {} if accumulated is None else {"gradient_accumulation_steps": accumulated}
    return {"steps_per_generation": steps, "num_iterations": iterations, **accumulated, **more}


BY_STEPS = {"eval_strategy": "steps", "eval_steps": 3}
PASSES = {"max_steps": -1, "num_train_epochs": 2}
BY_PASSES = ("save_strategy", "logging_strategy")
CASES = {
    "several iterations": {"num_iterations": 2, "max_steps": 4},
    "four iterations over three passes": {"num_iterations": 4, "max_steps": 26},
    "a batch of four, accumulated by two": batch(4, 2, max_steps=7),
    "a batch of four in single steps": batch(4, 1, max_steps=10),
    "passes of an odd number of micro-batches": batch(3, 2, max_steps=8, data=3),
    "passes that end": batch(2, iterations=2, **PASSES),
    "unshuffled": batch(2, shuffle_dataset=False, **PASSES),
    "logs of three steps": batch(2, iterations=2, logging_steps=3, max_steps=8),
    "logs at the ends of passes": batch(2, logging_strategy="epoch", max_steps=14),
    "evaluation at the ends of passes": batch(2, eval_strategy="epoch", max_steps=8, data=3),
    "evaluation by steps, and at the start": batch(1, None, 2, eval_on_start=True, **BY_STEPS, max_steps=7, data=3),
    "checkpoints of passes": batch(2, save_strategy="epoch", eval_strategy="epoch", max_steps=8, data=3),
    "a stream over its passes": batch(2, iterations=2, data="stream", max_steps=18, eval_strategy="epoch"),
    "a stream that ends within an accumulation": batch(3, 2, data="stream", max_steps=9),
    "packed and accumulated": batch(4, 2, 2, engine="packed", objective="dapo", max_steps=6),
    "a stream with checkpoints of passes": batch(2, data="stream", **dict.fromkeys(BY_PASSES, "epoch"), max_steps=18),
    "dropout": {"model_init_kwargs": {"attention_dropout": 0.3}, "num_iterations": 2, "max_steps": 6},
    "stock": batch(4, iterations=2, engine="stock", rollout="stock", max_steps=9),
    "a workers' loader": batch(2, dataloader_num_workers=1, max_steps=8),
    "a completion table": batch(4, log_completions=True, logging_steps=2, max_steps=6),
    "a first step that is logged": {
        "logging_first_step": True,
        "logging_steps": 4,
        "num_iterations": 3,
        "max_steps": 6,
    },
    "a target that stops": batch(2, None, 3, objective={"name": "target", "stop_fraction": 0.5}, max_steps=9),
}
MOST = 5
"""Checkpoints of a run that it is resumed from: other ones each day."""


@pytest.mark.sample(0, 10)
@pytest.mark.parametrize("name", CASES)
def test_a_run_resumed_from_any_checkpoint_is_the_uninterrupted_one(ran, tmp_path, name):
    settings = dict(CASES[name])
    data = settings.pop("data", 6)
    if data == "stream":
        data = IterableDataset.from_generator(lambda: iter(rows(6)))

    whole, notes = ran(settings, data=data)
    checkpoints = sorted((tmp_path / "out").glob("checkpoint-*"), key=lambda path: int(path.name.split("-")[1]))
    assert len(checkpoints) >= 3
    kept = tmp_path / "kept"
    (tmp_path / "out").rename(kept)
    draws = random.Random(f"{os.environ['GRPO_PLUS_SEED']} {name}")
    for checkpoint in draws.sample(checkpoints, min(MOST, len(checkpoints))):
        resumed, again = ran(settings, data=data, resume=str(kept / checkpoint.name))
        same(whole, notes, resumed, again, int(checkpoint.name.split("-")[1]))
        for table in (tmp_path / "out" / "completions").glob("*.parquet"):
            assert pd.read_parquet(table).equals(pd.read_parquet(kept / "completions" / table.name)), table
        shutil.rmtree(tmp_path / "out")


BATCH = {"steps_per_generation": 4, "num_iterations": 2}


@pytest.fixture
def saved(ran, tmp_path):
    """A run of seven steps with a checkpoint at each; its folder is kept."""

    def saved(settings=BATCH, **further):
        whole, notes = ran({**settings, "max_steps": 7}, **further)
        return whole, notes, (tmp_path / "out").rename(tmp_path / "kept")

    return saved


def test_a_finished_checkpoint_trains_no_step_and_a_longer_run_goes_on_within_its_pass(ran, build, tmp_path):
    settings = {**BATCH, "lr_scheduler_type": "constant", "eval_strategy": "epoch"}
    longer, notes = ran({**settings, "max_steps": 12})
    (tmp_path / "out").rename(tmp_path / "longer")
    whole, _ = ran({**settings, "max_steps": 7})
    last = str((tmp_path / "out").rename(tmp_path / "kept") / "checkpoint-7")
    again, later = start(build, {**settings, "max_steps": 7})
    assert not torch.equal(weights(again), weights(whole))
    assert again.train(resume_from_checkpoint=last).global_step == 7
    assert later.states == []
    assert torch.equal(weights(again), weights(whole))
    assert logs(again) == logs(whole)
    resumed, again = ran({**settings, "max_steps": 12}, resume=last)
    same(longer, notes, resumed, again, 7)


def test_one_trainer_object_trains_resumes_and_trains_anew(saved, ran):
    whole, notes, kept = saved()
    trainer, again = ran({**BATCH, "max_steps": 7})
    for step in (3, 6):
        again.__init__()
        trainer.train(resume_from_checkpoint=str(kept / f"checkpoint-{step}"))
        same(whole, notes, trainer, again, step)
    again.__init__()
    trainer.train()
    assert [entry[::2] for entry in again.prompted] == [entry[::2] for entry in notes.prompted]


class Pictures(Hook):
    def sampled(self, batch):
        return batch.adding(picture=[object() for _ in batch.output["completion_ids"]])


def test_a_batch_that_cannot_be_stored_ends_the_run_at_its_checkpoint(saved):
    with pytest.raises(UnstorableError, match=r"0/picture/0 of its batch is a builtins.object"):
        saved(BATCH, hooks=[Pictures()])


ANEW = ("TRL's own checkpoint", "weights only", "no skipping")


@pytest.mark.parametrize("name", ANEW)
def test_where_the_batch_is_not_there_it_starts_anew(saved, build, caplog, name):
    before, after = {"save_only_model": name == "weights only"}, {"ignore_data_skip": name == "no skipping"}
    _, notes, kept = saved({**BATCH, **before})
    assert bool(list(kept.rglob("grpo_plus_generation_batch*"))) is (name != "weights only")
    folder = kept / "checkpoint-3"
    if name == "TRL's own checkpoint":
        for path in folder.glob("grpo_plus_*"):
            path.unlink()
    resumed, again = start(build, {**BATCH, **after, "max_steps": 12})
    caplog.clear()
    resumed.train(resume_from_checkpoint=str(folder), allow_changes=name == "no skipping")
    assert [step for step, *_ in again.prompted] == [3, 11]
    assert again.prompted[0][2] == notes.prompted[0][2]  # prompts of the batch that it stood in
    missing = name == "weights only"
    assert caplog.text.count("checkpoint-3 does not hold its generation batch, which is sampled again") == missing


class Press(Hook):
    def __init__(self, interruption, step):
        self.interruption, self.at = interruption, step

    def on_step_begin(self, _args, state, *_, **__):
        if state.global_step == self.at - 1:
            self.interruption.number = 15


@pytest.mark.parametrize("strategy", ["steps", "epoch"])
def test_a_run_that_a_signal_stopped_leaves_nothing_out(build, ran, tmp_path, strategy):
    settings = {"eval_strategy": strategy, "logging_strategy": strategy, "num_iterations": 2, "max_steps": 8}
    settings |= {"eval_steps": 2} if strategy == "steps" else {}
    whole, notes = ran(settings, data=3)
    shutil.rmtree(tmp_path / "out")
    for step in (3, 4, 6):  # inside a batch, after an evaluation by steps, at the end of a pass
        interruption = Interruption()
        stopped, _ = start(build, settings | {"save_strategy": "no"}, data=3, hooks=[Press(interruption, step)])
        stopped.add_callback(interruption)
        stopped.train()
        assert stopped.state.global_step == step
        checkpoint = str(tmp_path / "out" / f"checkpoint-{step}")
        resumed, again = ran(settings | {"save_strategy": "no"}, data=3, resume=checkpoint)
        same(whole, notes, resumed, again, step)


class Leave(Exception):
    """Ends an evaluation."""


class Leaver(Hook):
    def __init__(self, step):
        self.at, self.batches = step, 0

    def on_prediction_step(self, _args, state, *_, **__):
        if state.global_step == self.at:
            self.batches += 1
            if self.batches == 2:
                raise Leave


@pytest.mark.parametrize(
    ("step", "settings"),
    [
        (4, {"eval_strategy": "steps", "eval_steps": 2}),
        (0, {"eval_strategy": "steps", "eval_steps": 2, "eval_on_start": True}),
        (6, {"eval_strategy": "epoch", "save_strategy": "epoch"}),
        (7, {"eval_strategy": "epoch"}),
    ],
)
def test_an_evaluation_that_was_left_is_done_first(build, ran, tmp_path, step, settings):
    settings = {"num_iterations": 2, "log_completions": True, "max_steps": 7, **settings}
    whole, notes = ran(settings, data=3)
    left, _ = start(build, settings, data=3, hooks=[Leaver(step)])
    with pytest.raises(Leave):
        left.train()
    save_checkpoint_now(left)
    kept = (tmp_path / "out").rename(tmp_path / "kept")
    resumed, again = ran(settings, data=3, resume=str(kept / f"checkpoint-{step}"))
    same(whole, notes, resumed, again, step)
    assert "eval" in [kind for at, kind, _ in again.prompted if at == step]


def test_two_ranks_go_on_inside_a_generation_batch(ranks):
    for rank, found in enumerate(ranks("place")):
        for stream, step, drawn, same in found:
            assert all(same.values()), (rank, stream, step, same)
            assert drawn == sum(at >= step for at in (0, 4, 8, 12)), (step, drawn)
