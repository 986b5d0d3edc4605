"""Prompts drawn by a selection in a trainer."""

import itertools
import json
import os
import random
from collections import Counter

import pytest
import torch
from datasets import Dataset

from grpo_plus.selection.part import SelectionOutputError
from grpo_plus.training.hooks import Hook
from grpo_verifiers.errors import ConfigError
from tests.trainer.conftest import logged, weights
from tests.trainer.resumed_ranks import solved

MIX = {"max_steps": 40, "num_generations": 4, "per_device_train_batch_size": 12, "max_completion_length": 8}
MIX |= {"learning_rate": 1e-6, "rollout": "stock", "objective": "grpo", "beta": 0.0}


def thirds(count=6, **columns):
    rows = [{"prompt": f"{kind}{number}", "level": float(number)} for kind in "abc" for number in range(count)]
    return Dataset.from_list([{**row, **columns} for row in rows])


class Notes(Hook):
    def __init__(self):
        self.drawn, self.shares = [], []

    def prompts(self, rows):
        if self.host.model.training:
            self.drawn.append([row["prompt"] for row in rows])

    def batch(self, batch):
        if self.host.model.training:
            self.shares.append(batch.output.get("share"))


@pytest.fixture
def select(build):
    def select(name="contrast", *, data=None, reward=solved, hooks=(), keywords=None, **settings):
        notes = Notes()
        given = {"train_dataset": data if data is not None else thirds(), "reward_funcs": [reward]}
        chosen = {**MIX, "selection": name and {"name": name, **(keywords or {})}, **settings}
        torch.manual_seed(0)
        return build(trainer={**given, "hooks": [notes, *hooks]}, **chosen), notes

    return select


@pytest.fixture
def drawn(select):
    """The same, trained."""

    def drawn(*name, resume=None, allow=False, **settings):
        trainer, notes = select(*name, **settings)
        trainer.train(resume_from_checkpoint=resume, allow_changes=allow)
        return trainer, notes

    return drawn


def test_contrast_draws_the_middle_third_most(drawn):
    trainer, notes = drawn()
    size = MIX["num_generations"]
    found = Counter(prompt[0] for batch in notes.drawn[15:] for prompt in batch[::size])
    assert sum(found.values()) == 75
    assert found["c"] > 0.6 * 75, found
    assert found["a"] > 0
    assert found["b"] > 0
    history = trainer.pipeline.prompt_sampler.history
    kinds = (history.impossible(), history.died_out(), ~history.seen)
    assert [int(kind.sum()) for kind in kinds] == [6, 6, 0]
    assert history.drawn.sum() == 120


SAVES = {"save_strategy": "steps", "save_steps": 1, "learning_rate": 0.05, "per_device_train_batch_size": 4}
PAIRS = {**SAVES, "num_generations": 2}
RUNS = {
    "one step a batch, over two passes": {"max_steps": 14},
    "several iterations, saved inside batches": {"max_steps": 10, "num_iterations": 2, "steps_per_generation": 2},
    "accumulated": {"max_steps": 5, "gradient_accumulation_steps": 2, "steps_per_generation": 4},
    "fetched ahead by a worker": {"max_steps": 8, "dataloader_num_workers": 1},
    "a curriculum": {"max_steps": 10, "selection": {"name": "curriculum", "column": "level"}},
    "weights that are kept": {"max_steps": 9, "selection": {"name": "contrast", "every": 3}},
    "other prompts for dead groups": {"max_steps": 8, "dead_groups": {"name": "resample", "rounds": 2}},
}
MOST = 4
"""Checkpoints of a run that it is resumed from: other ones each day."""


@pytest.mark.sample(0, 3)
@pytest.mark.parametrize("name", RUNS)
def test_a_resumed_run_draws_what_the_uninterrupted_one_did(drawn, tmp_path, name):
    settings = PAIRS | RUNS[name]
    whole, notes = drawn(data=thirds(4), **settings)
    assert len({tuple(batch) for batch in notes.drawn}) > 2
    for step in random.Random(f"{os.environ['GRPO_PLUS_SEED']} {name}").sample(range(1, settings["max_steps"]), MOST):
        checkpoint = tmp_path / "out" / f"checkpoint-{step}"
        again, later = drawn(data=thirds(4), **settings, output_dir=str(tmp_path / "again"), resume=str(checkpoint))
        assert later.drawn == notes.drawn[len(notes.drawn) - len(later.drawn) :], step
        assert torch.equal(weights(again), weights(whole)), step
        assert torch.equal(
            again.pipeline.prompt_sampler.history.counts, whole.pipeline.prompt_sampler.history.counts
        ), step
        assert torch.equal(again.pipeline.prompt_sampler.history.drawn, whole.pipeline.prompt_sampler.history.drawn), (
            step
        )


def test_two_ranks_draw_as_one(ranks):
    first, second = ranks("selecting")
    for way, mine in first.items():
        other = second[way]
        for same in ("counts", "draws"):
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
def test_rows_weigh_what_their_prompts_were_drawn_by_and_metrics_say_how_they_stand(select):
    """By hand: the share is (1/N)/π, with the π of the history when the batch was drawn."""
    trainer, notes = select(max_steps=12)
    used, own = [], trainer.pipeline.prompt_sampler._sample

    def noted(chances, count, *, again):
        used.append(chances)
        return own(chances, count, again=again)

    trainer.pipeline.prompt_sampler._sample = noted
    trainer.train()
    prompts = trainer.train_dataset["prompt"]
    for batch, shares, chances in zip(notes.drawn, notes.shares, used, strict=False):  # the last are not trained on
        expected = [1 / len(prompts) / float(chances[prompts.index(prompt)]) for prompt in batch]
        assert shares.tolist() == pytest.approx(expected, rel=1e-5)
    assert len({float(chances[0]) for chances in used}) > 6
    late = torch.cat(notes.shares[8:])
    assert late.min() < 0.9
    assert late.max() > 1.1
    names = ("unseen", "impossible", "died_out", "effective", "contrast")
    first, last = ({name: logged(trainer, f"selection/{name}")[at] for name in names} for at in (0, -1))
    assert first["unseen"] == pytest.approx(1 - len(set(notes.drawn[0])) / 18)
    assert last["unseen"] < first["unseen"]
    history = trainer.pipeline.prompt_sampler.history
    assert last["impossible"] == pytest.approx(float(history.impossible().sum()) / 18)
    assert last["effective"] < 1
    assert last["contrast"] > first["contrast"]


@pytest.mark.parametrize("count", [1, 2])
def test_fresh_prompts_of_a_weighted_selection_weigh_alike_by_exact_expectation(select, monkeypatch, count):
    """Over every outcome of the draws, each prompt's shares add up to the same, whatever its π: none is favoured."""
    data = thirds(2)
    selecting = select(data=data, dead_groups="resample")[0].pipeline.prompt_sampler
    parts = [1, 2, 3, 4, 4, 6]  # twentieths
    selecting.probabilities = lambda: torch.tensor(parts, dtype=torch.float64) / 20
    sums = Counter()
    for ticks in itertools.product(range(20), repeat=count):
        monkeypatch.setattr(
            torch, "rand", lambda *_, at=ticks, **__: (torch.tensor(at, dtype=torch.float64) + 0.5) / 20
        )
        for row in selecting.extra_prompts(count, [data[5]]):
            sums[row["prompt"]] += selecting._extra[selecting._number(row["prompt"])] / 20**count
    assert list(sums.values()) == pytest.approx([count / 6] * 6, abs=1e-12)


def test_groups_that_come_back_are_remembered_once(drawn):
    trainer, _ = drawn(dead_groups="replay", keywords={"weighted": False}, max_steps=12)
    assert max(logged(trainer, "dead_groups/replaced")) > 0
    assert trainer.pipeline.prompt_sampler.history.drawn.sum() == 12 * 3


def test_a_curriculum_gives_no_shares_and_begins_with_the_easy(drawn):
    keywords = {"column": "level", "explore": 0.0, "start": 0.34, "full": 1.0}
    _, notes = drawn("curriculum", keywords=keywords, max_steps=30)
    assert notes.shares == [None] * 30
    levels = [[int(prompt[1]) for prompt in batch[::4]] for batch in notes.drawn]
    assert {level for batch in levels[:3] for level in batch} <= {0, 1, 2}
    assert 5 in {level for batch in levels[24:] for level in batch}


def test_uniform_draws_as_the_host_does_and_remembers(drawn):
    plain, expected = drawn(None, max_steps=8)
    trainer, notes = drawn("uniform", max_steps=8)
    assert notes.drawn == expected.drawn
    assert torch.equal(weights(trainer), weights(plain))
    assert notes.shares == [None] * 8
    assert trainer.pipeline.prompt_sampler.history.drawn.sum() == 8 * 3


@pytest.mark.slow
def test_prompts_that_several_rows_hold_are_one(select):
    rows = [{"prompt": "c0", "answer": str(number)} for number in range(6)] + [{"prompt": "c1", "answer": "x"}] * 3
    trainer, notes = select(data=Dataset.from_list(rows), keywords={"power": 0}, max_steps=20, check="off")
    seen = []

    class Answers(Hook):
        def prompts(self, rows):
            seen.extend(row["answer"] for row in rows[::4])

    trainer.pipeline.hooks.append(Answers())
    trainer.train()
    assert (len(trainer.pipeline.prompt_sampler.history), trainer.pipeline.prompt_sampler.history.rows.tolist()) == (
        2,
        [6, 3],
    )
    counts = Counter(prompt for batch in notes.drawn for prompt in batch[::4])
    assert 25 < counts["c0"] < 55, counts  # of 60: two in three
    assert torch.cat(notes.shares).tolist() == pytest.approx([1.0] * 240)
    assert {str(number) for number in range(6)} <= set(seen)


def test_completions_without_a_score_count_for_nothing(drawn):
    def unscored(prompts, **_):
        return [None if prompt[0] == "a" else 1.0 for prompt in prompts]

    trainer, _ = drawn(reward=unscored, max_steps=12)
    history = trainer.pipeline.prompt_sampler.history
    assert history.counts[:6].tolist() == [0] * 6
    assert history.drawn[:6].sum() > 0
    assert history.died_out().sum() == int(history.seen.sum())


DATA = {
    "a stream": (lambda: thirds(2).to_iterable_dataset(), "train_dataset is a stream: leave selection unset"),
    "no prompts": (lambda: thirds(2).rename_column("prompt", "question"), "train_dataset has no column 'prompt'"),
    "pictures": (lambda: thirds(2, image="x"), "train_dataset has the column 'image'"),
    "a transform": (lambda: thirds(2).with_transform(lambda rows: rows), "it has a transform: apply it with map first"),
    "fewer rows than a batch takes": (lambda: thirds(1).select([0, 1]), "has 2 rows, but a generation batch takes 3"),
}


@pytest.mark.parametrize("name", DATA)
def test_data_that_cannot_be_drawn_from_is_refused(select, name):
    data, message = DATA[name]
    with pytest.raises(ConfigError, match=message):
        select(data=data())


def test_a_missing_column_and_wrong_weights_of_a_plug_in_are_told_before_anything_loads(select, tmp_path):
    with pytest.raises(ConfigError, match=r"selection 'curriculum': unknown column 'levels'. Did you mean 'level'"):
        select("curriculum", keywords={"column": "levels"})
    file = tmp_path / "mine.py"
    file.write_text("import torch\ndef mine(history):\n    return torch.full((len(history),), float('nan'))\n")
    with pytest.raises(ConfigError, match=r"the selection '.*mine.py:mine' .*returned nan for prompt 0 \('a0'\)"):
        select(f"{file}:mine")


def test_wrong_weights_later_on_end_the_run_with_their_prompt(select, tmp_path):
    file = tmp_path / "late.py"
    file.write_text("def late(history):\n    return 1.0 - 2.0 * (history.drawn > 0)\n")
    trainer, _ = select(f"{file}:late")
    with pytest.raises(SelectionOutputError, match=r"it returned -1 for prompt \d+ \('\w\d'\)"):
        trainer.train()


@pytest.mark.parametrize(("settings", "message"), [
    ({"name": "contrst"}, "unknown selection 'contrst'. Did you mean 'contrast'"),
    ({"keywords": {"explre": 0.1}}, "unknown keyword 'explre'. Did you mean 'explore'"),
    ({"shuffle_dataset": False}, r"selection 'contrast' does not go with shuffle_dataset \(False\): it draws the prompts"),
    ({"accelerator_config": {"dispatch_batches": True}}, "does not go with dispatch_batches of accelerator_config"),
])  # fmt: skip
def test_configs_that_contradict_themselves_are_refused(select, settings, message):
    with pytest.raises(ConfigError, match=message):
        select(**settings)


WIDE = {**SAVES, "per_device_train_batch_size": 12}


@pytest.fixture
def saved(drawn, tmp_path):
    """A checkpoint of six steps, inside the first pass."""
    trainer, notes = drawn(**WIDE, max_steps=6)
    return trainer, notes, str(tmp_path / "out" / "checkpoint-4")


@pytest.fixture
def resumed(drawn, saved, tmp_path):
    settings = {**WIDE, "max_steps": 6, "output_dir": str(tmp_path / "again")}
    return lambda **changes: drawn(**{**settings, **changes}, resume=saved[2], allow=True)


def test_a_history_of_other_data_begins_anew(resumed, caplog):
    data = Dataset.from_list([*thirds().select(range(6, 18)), {"prompt": "c9", "level": 1.0}])
    trainer, notes = resumed(data=data)
    assert "allow_changes: these begin anew: selection" in caplog.text
    assert (
        trainer.pipeline.prompt_sampler.history.drawn.sum() == 2 * len(notes.drawn[0]) / 4
    )  # two steps of three groups each


def test_a_checkpoint_without_a_history_is_gone_on_from(drawn, tmp_path):
    drawn(None, **SAVES, max_steps=4)
    checkpoint, again = (str(tmp_path / name) for name in ("out/checkpoint-4", "again"))
    trainer, notes = drawn(**SAVES, max_steps=8, output_dir=again, resume=checkpoint, allow=True)
    assert len(notes.drawn) == 4
    assert trainer.pipeline.prompt_sampler.history.drawn.sum() == 4


def test_more_rows_a_batch_go_on_in_the_draws_of_the_pass(saved, resumed):
    _, notes = resumed(per_device_train_batch_size=24)
    assert notes.drawn[0][:12] == saved[1].drawn[4]


@pytest.mark.sample(1)
def test_an_evaluation_is_not_remembered_and_the_record_and_the_card_name_the_selection(drawn, tmp_path):
    trainer, _ = drawn(max_steps=2, keywords={"power": 2.0})
    before = trainer.pipeline.prompt_sampler.history
    trainer.evaluate(Dataset.from_list([{"prompt": f"c{number}", "level": 0.0} for number in range(100, 108)]))
    assert trainer.pipeline.prompt_sampler.history is before
    info = json.loads((tmp_path / "out" / "grpo_plus" / "run.json").read_text())
    found = info["parts"]["selection"]
    assert (found["name"], found["keywords"], found["host"]) == ("contrast", {"power": 2.0}, False)
    trainer.create_model_card()
    card = (tmp_path / "out" / "README.md").read_text()
    assert '| selection | contrast {"power": 2.0} |' in card


@pytest.mark.slow
def test_weights_are_kept_for_as_many_steps_as_the_keyword_says(select):
    trainer, _ = select(max_steps=7, keywords={"every": 3})
    kept = []

    class Keep(Hook):
        def batch(self, batch):
            sampler = trainer.pipeline.prompt_sampler
            kept.append((sampler.probabilities().clone(), sampler._present().clone()))

    trainer.pipeline.hooks.append(Keep())
    trainer.train()
    same = [torch.equal(*pair) for pair in itertools.pairwise(chances for chances, _ in kept)]
    assert same == [True, True, False, True, True, False]
    assert not torch.equal(*kept[2])  # the history has moved on
