"""Replay: live groups of earlier batches in the place of dead ones, with what they were drawn with."""

import itertools

import pytest
import torch

from grpo_plus import GRPOPlusConfig, _trl
from grpo_plus.objectives import build_objective, objectives
from grpo_plus.objectives.ratio_use import reads_old_logps
from grpo_plus.recipe.notes import config_notes
from grpo_plus.training.hooks import Hook
from grpo_verifiers.errors import ConfigError
from tests.device import FLOAT32
from tests.trainer.conftest import weights

REPLAY = {"dead_groups": "replay", "per_device_train_batch_size": 16, "max_steps": 3, "objective": "grpo"}


class Kept(Hook):
    """Keeps each generation batch, its rewards, and the log-probabilities of the policy as it is then."""

    def __init__(self):
        self.batches, self.rewards, self.now = [], [], []

    def batch(self, output):
        self.batches.append({k: v.clone() if isinstance(v, torch.Tensor) else v for k, v in output.items()})
        self.rewards.append(self.host._advantages.drawn.rewards.flatten().tolist())
        self.now.append(_trl.score_without_gradient(self.host, output))


def contrast(live, began, count):
    """A batch's rewards, with contrast in the groups that ``live`` has for a batch and a prompt's place in it."""
    batch = next(began)
    return [float(row % 2) if live(batch, row // 4) else 1.0 for row in range(count)]


def dying(live, began=0):
    batches = itertools.count(began)

    def reward(completions, **_):
        return contrast(live, batches, len(completions))

    return reward


def scoring(live, began=0):
    """The same as a step of each completion."""
    batches = itertools.count(began)
    return lambda completion_ids, **_: [[(0, 2, one)] for one in contrast(live, batches, len(completion_ids))]


def assert_close(found, expected, batch, first):
    mask = batch["completion_mask"][first : first + 4].bool()
    width = min(found.shape[1], expected.shape[1])
    assert not mask[:, width:].any()
    assert torch.allclose(found[:, :width][mask[:, :width]], expected[:, :width][mask[:, :width]], atol=1e-5)


@pytest.fixture
def run(build):
    """A run whose groups are live where they are said to be, and what was kept of it."""

    def run(live, *, resume=None, began=0, steps=False, **settings):
        hook = Kept()
        given = {"reward_funcs": dying(live, began), "hooks": [hook]}
        given |= {"step_scorer": scoring(live, began)} if steps else {}
        trainer = build(trainer=given, **{**REPLAY, **settings})
        trainer.train(resume_from_checkpoint=resume)
        return trainer, hook

    return run


def texts(batch):
    return [
        tuple(ids[mask.bool()].tolist())
        for ids, mask in zip(batch["completion_ids"], batch["completion_mask"], strict=True)
    ]


@pytest.mark.sample(1)
def test_dead_groups_places_get_live_groups_with_the_log_probs_they_were_drawn_with(run):
    trainer, kept = run(lambda batch, place: batch == 0 or place == 1)
    first, second, third = kept.batches
    assert "old_per_token_logps" not in first
    found, drawn = texts(second), texts(first)
    assert [found[i : i + 4] for i in (0, 8, 12)] == [drawn[i : i + 4] for i in (12, 8, 4)]  # the newest first
    assert found[4:8] != drawn[4:8]
    assert (second["advantages"] != 0).all()
    old, (before, now, _) = second["old_per_token_logps"], kept.now
    for place, came_from in ((0, 12), (8, 8), (12, 4)):
        assert_close(old[place : place + 4], before[came_from : came_from + 4], second, place)
        assert not torch.allclose(old[place : place + 4], now[place : place + 4], atol=1e-3)
    assert_close(old[4:8], now[4:8], second, 4)
    assert kept.rewards[1] == [0, 1] * 8
    assert texts(third)[4:8] not in ([*drawn], [*found])
    log = [entry for entry in trainer.state.log_history if "dead_groups/replaced" in entry]
    assert [entry["dead_groups/replaced"] for entry in log] == [0, 0.75, 0.5]  # of the 4 there were 1 + 1 are left
    assert [entry["dead_groups/still_dead"] for entry in log] == [0, 0, 0.25]
    assert [entry["dead_groups/drawn"] for entry in log] == [16, 16, 16]
    assert [entry.get("dead_groups/age") for entry in log] == [None, 1, 1.5]


def test_where_nothing_is_dead_a_run_is_that_without_replay_to_the_bit(run):
    found = [
        run(lambda batch, place: True, dead_groups=way, advantage="zscore", objective=None)[0]
        for way in ("keep", "replay")
    ]
    assert torch.equal(*map(weights, found))


@pytest.mark.parametrize(
    "settings", [{}, {"objective": None, "beta": 0.1}, {"advantage": "process"}, {"num_iterations": 2, "save_steps": 3}]
)
def test_a_run_that_resumes_replays_what_the_uninterrupted_one_did(run, tmp_path, settings):
    def live(batch, place):
        return place == batch % 4 or batch == 0

    inside = "num_iterations" in settings  # the checkpoint stands in the middle of a generation batch
    saving = {"save_strategy": "steps", "save_steps": 2, "max_steps": 6 if inside else 4}
    settings = {**saving, "steps": "advantage" in settings, **settings}
    whole, _ = run(live, **settings)
    checkpoint = tmp_path / "out" / f"checkpoint-{settings['save_steps']}"
    resumed, kept = run(live, began=2, resume=str(checkpoint), **settings)
    assert len(kept.batches) == (1 if inside else 2)
    log = [entry for entry in resumed.state.log_history if "dead_groups/replaced" in entry]
    assert sum(entry["dead_groups/replaced"] for entry in log[-2:]) > 0
    assert torch.equal(weights(whole), weights(resumed))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("settings", "kept"),
    [
        ({"num_generations": 8}, False),
        ({"beta": 0.1}, False),
        ({"top_p": 0.8}, False),
        ({"advantage": "gdpo", "verifiers": [{"name": "regex", "kwargs": {"pattern": ".*b"}}]}, False),
        ({"learning_rate": 0.01}, True),
    ],
    ids=str,
)
def test_groups_that_were_drawn_under_other_settings_are_dropped_with_a_warning(run, tmp_path, caplog, settings, kept):
    saving = {"save_strategy": "steps", "save_steps": 1, "max_steps": 1}
    run(lambda batch, place: True, **saving)
    again = {"max_steps": 2, "resume": str(tmp_path / "out" / "checkpoint-1"), **settings}
    trainer, _ = run(lambda batch, place: False, **again)
    assert (trainer.state.log_history[-2]["dead_groups/replaced"] == 1) is kept
    assert ("groups to replay were drawn under other settings" in caplog.text) is not kept


def test_steps_come_again_with_their_rows(run):
    settings = {"steps": True, "advantage": "process", "max_steps": 2}
    _, kept = run(lambda batch, place: batch == 0, **settings)
    first, second = kept.batches
    assert texts(second) == [text for start in (12, 8, 4, 0) for text in texts(first)[start : start + 4]]
    assert second["advantages"].abs().sum() > 0
    for place, came_from in enumerate((12, 8, 4, 0)):
        rows = slice(4 * place, 4 * place + 4), slice(came_from, came_from + 4)
        assert torch.equal(second["advantages"][rows[0]], first["advantages"][rows[1]])


def test_verdicts_and_the_table_of_completions_are_those_of_the_rows_that_are_trained_with(run):
    trainer, kept = run(lambda batch, place: batch == 0, max_steps=2, log_completions=False)
    table, decode = trainer._logs, trainer.processing_class.batch_decode
    assert list(table["completion"])[-16:] == decode(texts(kept.batches[1]), skip_special_tokens=True)
    assert list(table["rewards"]["reward"])[-16:] == [0, 1] * 8
    assert list(table["advantages"])[-16:] == pytest.approx(kept.batches[1]["advantages"].tolist())


def test_groups_that_no_checkpoint_can_hold_are_left_out_with_a_warning(run, caplog):
    trainer, _ = run(lambda batch, place: True, max_steps=1)
    memory = trainer.drawing._memory
    memory.buffer.held[0].group[0].drawn.completion[0]["thing"] = object()
    state, tensors = memory.packed()
    assert (state, tensors) == ({"batch": 1, "held": {"list": []}}, {})
    assert "A resumed run has none" in caplog.text


REFUSED = {
    "the objective 'reinforce' reads no log-probabilities": {"objective": "reinforce"},
    "the objective 'target' reads no log-probabilities": {"objective": "target", "num_iterations": 2},
    "selection is 'contrast' with weights": {"selection": "contrast"},
    "sync_ref_model is true": {"sync_ref_model": True, "beta": 0.1},
    "the KL term is in the rewards": {"beta": 0.1, "objective_kwargs": {"kl": {"placement": "reward"}}},
}


@pytest.mark.parametrize("said", REFUSED)
def test_what_would_take_an_earlier_policy_for_the_present_one_is_refused(said, tmp_path):
    with pytest.raises(ConfigError, match=said):
        GRPOPlusConfig(**{"output_dir": str(tmp_path), **FLOAT32, **REPLAY, **REFUSED[said]})


def test_the_ratio_is_read_by_every_objective_that_has_one():
    built_in = [entry.name for entry in objectives.entries() if entry.way == "built-in"]
    blind = {name for name in built_in if not reads_old_logps(build_objective(name, beta=0.0))}
    assert blind == {"reinforce", "target"}


def test_the_notes_call_it_biased_and_no_ratio_1(tmp_path):
    settings = {"output_dir": str(tmp_path), **FLOAT32, **REPLAY, "objective": None}
    notes = config_notes(GRPOPlusConfig(**settings, epsilon=0.3))
    assert any("'replay' is biased" in note for note in notes)
    assert not any("epsilon" in note for note in notes)
    notes = config_notes(GRPOPlusConfig(**{**settings, "dead_groups": "keep"}, epsilon=0.3))
    assert any("epsilon" in note for note in notes)


def test_groups_that_span_two_ranks_come_back_whole(ranks):
    (first, second), _ = ranks("replay")
    assert [first["texts"][i : i + 4] for i in (4, 8)] == [second["texts"][i : i + 4] for i in (8, 4)]
    assert second["texts"][:4] != first["texts"][:4]
    for place, came_from in ((8, 4), (4, 8)):
        for row in range(4):
            assert second["old"][place + row] == pytest.approx(first["now"][came_from + row], abs=1e-5)
    assert second["old"][0] == pytest.approx(second["now"][0], abs=1e-5)
    assert second["items"] == sum(map(len, second["texts"]))
    assert all(second["advantages"])
