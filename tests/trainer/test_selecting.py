"""Prompts drawn by a selection in a trainer."""

import json
from collections import Counter
from pathlib import Path

import pytest
import torch
from datasets import Dataset, IterableDataset

from grpo_plus.selection.part import SelectionOutputError
from grpo_plus.training.hooks import Hook
from grpo_verifiers.errors import ConfigError

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


@pytest.mark.slow
def test_two_ranks_draw_as_one(two_ranks, tiny_model, tmp_path):
    script = Path(__file__).with_name("selecting_ranks.py")
    with two_ranks(str(script), str(tmp_path), tiny_model, log=tmp_path / "log.txt"):
        pass
    first, second = (json.loads((tmp_path / f"selecting_{rank}.json").read_text()) for rank in (0, 1))
    for way, mine in first.items():
        other = second[way]
        for same in ("counts", "draws", "summary"):
            assert mine[same] == other[same], (way, same)
        for rank in (mine, other) if way != "random" else ():
            assert rank["resumed"], way
            assert rank["weights"], way
    for way, key in [("keep", "drawn"), ("keep", "shares"), ("random", "drawn"), ("random", "shares")]:
        for one, two in zip(first[way][key], second[way][key], strict=True):
            found = one + two
            for place in range(0, len(found), 4):  # a group may span both ranks
                assert len(set(found[place : place + 4])) == 1, (way, key)
    assert sum(first["keep"]["draws"]) == 12 * 3
    assert sum(first["resample"]["draws"]) > 12 * 3
    assert sum(first["roulette"]["draws"]) < 12 * 3
    assert any(0.0 in shares for shares in first["roulette"]["shares"])


@pytest.mark.slow
def test_rows_weigh_what_their_prompts_were_drawn_by(select):
    """By hand: the share is (1/N)/π, with the π of the history when the batch was drawn."""
    trainer, notes = select(max_steps=12)
    used, own = [], trainer.selecting._draw

    def noted(chances, count, *, again):
        used.append(chances)
        return own(chances, count, again=again)

    trainer.selecting._draw = noted
    trainer.train()
    prompts = trainer.train_dataset["prompt"]
    for batch, shares, chances in zip(notes.drawn, notes.shares, used, strict=False):  # the last are not trained on
        expected = [1 / len(prompts) / float(chances[prompts.index(prompt)]) for prompt in batch]
        assert shares.tolist() == pytest.approx(expected, rel=1e-5)
    assert len({float(chances[0]) for chances in used}) > 6
    late = torch.cat(notes.shares[8:])
    assert late.min() < 0.9
    assert late.max() > 1.1


@pytest.mark.slow
def test_groups_that_come_back_are_remembered_once(select):
    trainer, _ = select(dead_groups="replay", keywords={"weighted": False}, max_steps=12)
    trainer.train()
    returned = [entry["dead_groups/replaced"] for entry in trainer.state.log_history if "dead_groups/replaced" in entry]
    assert max(returned) > 0
    assert trainer.selecting.summary()["draws"] == 12 * 3


@pytest.mark.slow
def test_a_curriculum_gives_no_shares_and_begins_with_the_easy(select):
    keywords = {"column": "level", "explore": 0.0, "start": 0.34, "full": 1.0}
    trainer, notes = select("curriculum", keywords=keywords, max_steps=30)
    trainer.train()
    assert notes.shares == [None] * 30
    levels = [[int(prompt[1]) for prompt in batch[::4]] for batch in notes.drawn]
    assert {level for batch in levels[:3] for level in batch} <= {0, 1, 2}
    assert 5 in {level for batch in levels[24:] for level in batch}


@pytest.mark.slow
def test_uniform_draws_as_the_host_does_and_remembers(select):
    plain, expected = select(None, max_steps=8)
    plain.train()
    trainer, notes = select("uniform", max_steps=8)
    trainer.train()
    assert notes.drawn == expected.drawn
    assert torch.equal(weights(trainer), weights(plain))
    assert notes.shares == [None] * 8
    assert trainer.selecting.summary()["draws"] == 8 * 3


@pytest.mark.slow
def test_prompts_that_several_rows_hold_are_one(select):
    rows = [{"prompt": "c0", "answer": str(number)} for number in range(6)] + [{"prompt": "c1", "answer": "x"}] * 3
    trainer, notes = select(data=Dataset.from_list(rows), keywords={"power": 0}, max_steps=20)
    seen = []

    class Answers(Hook):
        def prompts(self, rows):
            seen.extend(row["answer"] for row in rows[::4])

    trainer.hooks.append(Answers())
    trainer.train()
    assert len(trainer.selecting.history) == 2
    assert trainer.selecting.history.rows.tolist() == [6, 3]
    counts = Counter(prompt for batch in notes.drawn for prompt in batch[::4])
    assert 25 < counts["c0"] < 55, counts  # of 60: two in three
    assert torch.cat(notes.shares).tolist() == pytest.approx([1.0] * 240)
    assert {str(number) for number in range(6)} <= set(seen)


def test_an_evaluation_is_not_remembered(select):
    trainer, _ = select(max_steps=2)
    trainer.train()
    before = trainer.selecting.history
    trainer.evaluate(Dataset.from_list([{"prompt": f"c{number}", "level": 0.0} for number in range(100, 108)]))
    assert trainer.selecting.history is before


@pytest.mark.slow
def test_completions_without_a_score_count_for_nothing(select):
    def unscored(prompts, **_):
        return [None if prompt[0] == "a" else 1.0 for prompt in prompts]

    trainer, _ = select(reward=unscored, max_steps=12)
    trainer.train()
    history = trainer.selecting.history
    assert history.counts[:6].tolist() == [0] * 6
    assert history.drawn[:6].sum() > 0
    assert history.died_out().sum() == int(history.seen.sum())


def test_metrics_say_how_the_prompts_stand(select):
    trainer, notes = select(max_steps=12)
    trainer.train()
    logged = [entry for entry in trainer.state.log_history if "selection/unseen" in entry]
    names = ("unseen", "impossible", "died_out", "effective", "contrast")
    first, last = ({name: entry[f"selection/{name}"] for name in names} for entry in (logged[0], logged[-1]))
    assert first["unseen"] == pytest.approx(1 - len(set(notes.drawn[0])) / 18)
    assert last["unseen"] < first["unseen"]
    summary = trainer.selecting.summary()
    assert last["impossible"] == pytest.approx(summary["impossible"] / 18)
    assert last["effective"] < 1
    assert last["contrast"] > first["contrast"]
    assert sum(summary["rates"]) == 18 - summary["unseen"]
    assert len(summary["sample"]) == 18
    json.dumps(summary)


DATA = {
    "a stream": (
        lambda: IterableDataset.from_generator(lambda: iter(thirds(2))),
        "train_dataset is a stream: leave selection unset",
    ),
    "no prompts": (lambda: thirds(2).rename_column("prompt", "question"), "train_dataset has no column 'prompt'"),
    "pictures": (lambda: thirds(2, image="x"), "train_dataset has the column 'image'"),
    "a transform": (lambda: thirds(2).with_transform(lambda rows: rows), "it has a transform: apply it with map first"),
    "fewer rows than a batch takes": (
        lambda: thirds(1).select([0, 1]),
        "the dataset has 2 rows, but a generation batch takes 3 prompts",
    ),
}


@pytest.mark.parametrize("name", DATA)
def test_data_that_cannot_be_drawn_from_is_refused(select, name):
    data, message = DATA[name]
    with pytest.raises(ConfigError, match=message):
        select(data=data())


def test_a_missing_column_is_told_before_anything_loads(select):
    with pytest.raises(ConfigError, match=r"selection 'curriculum': unknown column 'levels'. Did you mean 'level'"):
        select("curriculum", keywords={"column": "levels"})


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ("torch.full((len(history),), float('nan'))", r"returned nan for prompt 0 \('a0'\)"),
        ("torch.ones(3)", r"returned the shape \(3,\)"),
        ("1 / 0", "raised ZeroDivisionError: division by zero"),
        ("[1.0] * len(history)", r"returned \[1.0, "),
    ],
)
def test_wrong_weights_of_a_plug_in_are_told_before_anything_loads(select, tmp_path, values, message):
    file = tmp_path / "mine.py"
    file.write_text(f"import torch\ndef mine(history):\n    return {values}\n")
    with pytest.raises(ConfigError, match=rf"the selection '.*mine.py:mine' .*{message}"):
        select(f"{file}:mine")


def test_wrong_weights_later_on_end_the_run_with_their_prompt(select, tmp_path):
    file = tmp_path / "late.py"
    file.write_text("def late(history):\n    return 1.0 - 2.0 * (history.drawn > 0)\n")
    trainer, _ = select(f"{file}:late")
    with pytest.raises(SelectionOutputError, match=r"it returned -1 for prompt \d+ \('\w\d'\)"):
        trainer.train()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"selection": "contrst"}, "unknown selection 'contrst'. Did you mean 'contrast'"),
        ({"keywords": {"explre": 0.1}}, "unknown keyword 'explre'. Did you mean 'explore'"),
        ({"keywords": {"explore": 0.0}}, "explore is 0 and weighted is true"),
        ({"shuffle_dataset": False}, r"shuffle_dataset is False, but selection \('contrast'\) draws the prompts"),
        ({"accelerator_config": {"dispatch_batches": True}}, "accelerator_config has dispatch_batches: true"),
        ({"selection": None, "keywords": {"power": 1}}, "selection_kwargs is .* but selection is unset"),
    ],
)
def test_configs_that_contradict_themselves_are_refused(select, settings, message):
    settings = dict(settings)
    name = settings.pop("selection", "contrast")
    with pytest.raises(ConfigError, match=message):
        select(name, **settings)


WIDE = {**SAVES, "per_device_train_batch_size": 12}


@pytest.fixture
def saved(select, tmp_path):
    """A checkpoint of six steps, inside the first pass."""
    trainer, notes = select(**WIDE, max_steps=6)
    trainer.train()
    return trainer, notes, str(tmp_path / "out" / "checkpoint-4")


def resumed(select, tmp_path, checkpoint, data):
    trainer, notes = select(data=data, **WIDE, max_steps=6, output_dir=str(tmp_path / "again"))
    trainer.train(resume_from_checkpoint=checkpoint)
    return trainer, notes


@pytest.mark.slow
def test_a_history_is_kept_as_far_as_the_prompts_are(select, saved, tmp_path, caplog):
    before, _, checkpoint = saved
    old = thirds()["prompt"]
    data = Dataset.from_list([*thirds().select(range(6, 18)), {"prompt": "c9", "level": 1.0}])
    trainer, _ = resumed(select, tmp_path, checkpoint, data)
    told = [record.message for record in caplog.records if "training data changed" in record.message]
    assert len(told) == 1
    assert "of 13 prompts have no history" in told[0]
    visits = dict(zip(data["prompt"], trainer.selecting.history.drawn.tolist(), strict=True))
    for prompt, count in zip(old, before.selecting.history.drawn.tolist(), strict=True):
        if prompt in visits and count > 2:
            assert visits[prompt] > 0, prompt


@pytest.mark.slow
def test_a_history_of_another_dataset_is_left_behind(select, saved, tmp_path, caplog):
    _, _, checkpoint = saved
    data = Dataset.from_list([{"prompt": f"c{number}", "level": 1.0} for number in range(100, 118)])
    trainer, notes = resumed(select, tmp_path, checkpoint, data)
    told = [record.message for record in caplog.records if "is of another dataset" in record.message]
    assert len(told) == 1
    assert trainer.selecting.history.drawn.sum() == 2 * len(notes.drawn[0]) / 4  # two steps of three groups each


@pytest.mark.slow
def test_a_checkpoint_without_a_history_is_gone_on_from(select, tmp_path):
    plain, _ = select(None, **SAVES, max_steps=4)
    plain.train()
    trainer, notes = select(**SAVES, max_steps=8, output_dir=str(tmp_path / "again"))
    trainer.train(resume_from_checkpoint=str(tmp_path / "out" / "checkpoint-4"))
    assert len(notes.drawn) == 4
    assert trainer.selecting.history.drawn.sum() == 4


@pytest.mark.slow
def test_more_rows_a_batch_go_on_in_the_draws_of_the_pass(select, saved, tmp_path):
    _, before, checkpoint = saved
    settings = {**WIDE, "per_device_train_batch_size": 24}
    trainer, notes = select(**settings, max_steps=6, output_dir=str(tmp_path / "again"))
    trainer.train(resume_from_checkpoint=checkpoint)
    assert notes.drawn[0][:12] == before.drawn[4]


def test_the_record_and_the_card_name_the_selection(select, tmp_path):
    trainer, _ = select(max_steps=1, keywords={"power": 2.0})
    trainer.train()
    info = json.loads((tmp_path / "out" / "grpo_plus" / "run.json").read_text())
    found = info["parts"]["selection"]
    assert (found["name"], found["keywords"], found["host"]) == ("contrast", {"power": 2.0}, False)
    trainer.create_model_card()
    assert (
        "| Selection of prompts | `contrast` `power: 2.0`, unbiased |" in (tmp_path / "out" / "README.md").read_text()
    )
