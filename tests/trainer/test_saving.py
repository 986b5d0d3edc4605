"""Checkpoints that cannot be written: training goes on, and ends where it would have."""

import pytest
import torch

SAVING = {"save_strategy": "steps", "save_steps": 1, "max_steps": 4, "optim": "adamw_torch"}


@pytest.fixture
def disk(small_disk):
    """A disk of its own, which a few checkpoints fit on."""
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


def fill(disk, left):
    """Fill a disk up to so many bytes."""
    with (disk / "other").open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            file.truncate(file.tell() - left)


def names(folder):
    return sorted(path.name for path in folder.glob("checkpoint-*"))


@pytest.mark.sample(1)
@pytest.mark.parametrize("left", [0, 150_000])
def test_training_goes_on_while_the_disk_is_full_and_saves_when_it_is_not(build, disk, caplog, left):
    out = disk / "run"
    acts = {"at_2": lambda: fill(disk, left), "at_4": (disk / "other").unlink}
    trainer = build(trainer={"reward_funcs": [Act(**acts)]}, output_dir=str(out), **SAVING)
    trainer.train()
    assert trainer.state.global_step == 4
    assert names(out) == ["checkpoint-1", "checkpoint-4"]
    assert trainer.saving.failed is None
    said = [record.getMessage() for record in caplog.records if record.name == "grpo_plus.saving"]
    assert len(said) == 3
    assert said[0].startswith(f"checkpoint-2 was not written: no space left on the disk of output_dir {out} (")
    assert said[0].endswith("The last whole checkpoint is checkpoint-1. Training goes on; the next try is at step 3.")
    assert said[1].startswith("checkpoint-3 was not written either: no space left")
    assert said[2] == "checkpoint-4 is written, after 2 that could not be."
    plain = build(trainer={"reward_funcs": [Act()]}, **SAVING | {"save_strategy": "no"})
    plain.train()
    assert all(torch.equal(a, b) for a, b in zip(trainer.model.parameters(), plain.model.parameters(), strict=True))


@pytest.mark.slow
def test_the_limit_of_checkpoints_holds_and_is_written_down_as_it_is(build, tmp_path):
    trainer = build(**SAVING, save_total_limit=2)
    trainer.train()
    assert names(tmp_path / "out") == ["checkpoint-3", "checkpoint-4"]
    assert trainer.args.save_total_limit == 2
    saved = torch.load(tmp_path / "out" / "checkpoint-4" / "training_args.bin", weights_only=False)
    assert saved.save_total_limit == 2
