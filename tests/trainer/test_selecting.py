"""Prompts drawn by a selection in a trainer."""

from collections import Counter

import pytest
import torch
from datasets import Dataset

from grpo_plus.training.hooks import Hook

MIX = {
    "max_steps": 40,
    "num_generations": 4,
    "per_device_train_batch_size": 12,
    "max_completion_length": 8,
    "learning_rate": 1e-6,
    "rollout": "stock",
    "objective": "grpo",
    "beta": 0.0,
}


def thirds(count=6, **columns):
    """Prompts that begin with a are never solved, those with b always, those with c sometimes."""
    rows = [{"prompt": f"{kind}{number}", "level": float(number)} for kind in "abc" for number in range(count)]
    return Dataset.from_list([{**row, **columns} for row in rows])


def solved(prompts, completions, **_):
    kinds = {"a": lambda _: 0.0, "b": lambda _: 1.0, "c": lambda text: float(sum(map(ord, text)) % 2)}
    return [kinds[prompt[0]](text) for prompt, text in zip(prompts, completions, strict=True)]


class Notes(Hook):
    """Notes the prompts of each generation batch, and the shares of its rows."""

    def __init__(self):
        self.drawn, self.shares = [], []

    def prompts(self, rows):
        if self.host.model.training:
            self.drawn.append([row["prompt"] for row in rows])

    def batch(self, output):
        if self.host.model.training:
            self.shares.append(output.get("share"))


@pytest.fixture
def select(build):
    """Makes a trainer that draws by a selection, and the notes of what it draws."""

    def select(name="contrast", *, data=None, reward=solved, hooks=(), keywords=None, **settings):
        notes = Notes()
        given = {"train_dataset": data if data is not None else thirds(), "reward_funcs": [reward]}
        chosen = {**MIX, "selection": name, "selection_kwargs": keywords or {}, **settings}
        torch.manual_seed(0)
        return build(trainer={**given, "hooks": [notes, *hooks]}, **chosen), notes

    return select


def kinds(notes, since=0):
    """Groups drawn of each kind of prompt."""
    size = MIX["num_generations"]
    return Counter(prompt[0] for batch in notes.drawn[since:] for prompt in batch[::size])


@pytest.mark.slow
def test_contrast_draws_the_middle_third_most(select):
    trainer, notes = select()
    trainer.train()
    found = kinds(notes, since=15)
    assert sum(found.values()) == 75
    assert found["c"] > 0.6 * 75, found
    assert found["a"] > 0
    assert found["b"] > 0
    summary = trainer.selecting.summary()
    assert (summary["impossible"], summary["died_out"], summary["between"], summary["unseen"]) == (6, 6, 6, 0)
    assert summary["draws"] == 120


def weights(trainer):
    return torch.cat([weight.detach().flatten() for weight in trainer.model.parameters()])


SAVES = {"save_strategy": "steps", "save_steps": 1, "learning_rate": 0.05, "per_device_train_batch_size": 4}
RUNS = {
    "one step a batch, over two passes": {"max_steps": 14, "num_generations": 2},
    "several iterations, saved inside batches": {
        "max_steps": 10,
        "num_generations": 2,
        "num_iterations": 2,
        "steps_per_generation": 2,
    },
    "accumulated": {
        "max_steps": 5,
        "num_generations": 2,
        "gradient_accumulation_steps": 2,
        "steps_per_generation": 4,
    },
    "fetched ahead by a worker": {"max_steps": 8, "num_generations": 2, "dataloader_num_workers": 1},
    "a curriculum": {
        "max_steps": 10,
        "num_generations": 2,
        "selection": "curriculum",
        "selection_kwargs": {"column": "level"},
    },
    "other prompts for dead groups": {
        "max_steps": 8,
        "num_generations": 2,
        "dead_groups": "resample",
        "dead_groups_kwargs": {"rounds": 2},
    },
}


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
def test_a_resumed_run_draws_what_the_uninterrupted_one_did(select, tmp_path, name):
    settings = SAVES | RUNS[name]
    whole, notes = select(data=thirds(4), **settings)
    whole.train()
    assert len({tuple(batch) for batch in notes.drawn}) > 2
    for step in range(1, settings["max_steps"]):
        checkpoint = tmp_path / "out" / f"checkpoint-{step}"
        again, later = select(data=thirds(4), **settings, output_dir=str(tmp_path / "again"))
        again.train(resume_from_checkpoint=str(checkpoint))
        assert later.drawn == notes.drawn[len(notes.drawn) - len(later.drawn) :], step
        assert torch.equal(weights(again), weights(whole)), step
        assert torch.equal(again.selecting.history.counts, whole.selecting.history.counts), step
        assert again.selecting.summary() == whole.selecting.summary(), step
