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
