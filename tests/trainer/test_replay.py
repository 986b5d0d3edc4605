"""Replay: live groups of earlier batches in the place of dead ones, through a checkpoint too, with what they were drawn with."""

import itertools
from contextlib import nullcontext
from functools import partial

import pytest
import torch
from datasets import Dataset

from grpo_plus import GRPOPlusConfig
from grpo_plus.advantages import StepScores
from grpo_plus.objectives import build_objective, objectives
from grpo_plus.objectives.objective import reads_old_logps
from grpo_plus.recipe.table import config_notes
from grpo_plus.selection.dead_groups.assemble import Source
from grpo_plus.testing import make_tiny_model
from grpo_plus.training.batch.replay import ReplayBuffer, round_of, store_groups
from grpo_plus.training.batch.reward_table import step_scores
from grpo_plus.training.batch.subbatches import SubBatch, gather_scored, rows_of
from grpo_plus.training.hooks import Completions, Hook, ScoredBatch
from grpo_plus.training.scoring.turn_spans import state_number
from grpo_plus.trl.scoring import score_without_gradient
from grpo_verifiers.errors import ConfigError
from grpo_verifiers.turns import Call, Turn
from grpo_verifiers.verdict import Step, Verdict
from tests.device import DEVICE, FLOAT32
from tests.trainer.conftest import logged, weights

REPLAY = {"dead_groups": "replay", "per_device_train_batch_size": 16, "max_steps": 3, "objective": "grpo"}


class Kept(Hook):
    """Keeps each generation batch, its rewards, and the log-probabilities of the policy as it is then."""

    def __init__(self):
        self.batches, self.rewards, self.now = [], [], []

    def batch(self, batch):
        output = batch.output
        self.batches.append({k: v.clone() if isinstance(v, torch.Tensor) else v for k, v in output.items()})
        self.rewards.append(batch.rewards.flatten().tolist())
        self.now.append(score_without_gradient(self.host, output))


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

    def run(live, *, resume=None, allow=False, began=0, steps=False, given=None, **settings):
        hook = Kept()
        given = {"reward_funcs": dying(live, began), "hooks": [hook], **(given or {})}
        given |= {"step_scorer": scoring(live, began)} if steps else {}
        trainer = build(trainer=given, **{**REPLAY, **settings})
        trainer.train(resume_from_checkpoint=resume, allow_changes=allow)
        return trainer, hook

    return run


def texts(batch):
    pairs = zip(batch["completion_ids"], batch["completion_mask"], strict=True)
    return [tuple(ids[mask.bool()].tolist()) for ids, mask in pairs]


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
    assert logged(trainer, "dead_groups/replaced") == [0, 0.75, 0.5]  # of the 4 there were 1 + 1 are left
    assert logged(trainer, "dead_groups/still_dead") == [0, 0, 0.25]
    assert (logged(trainer, "dead_groups/drawn"), logged(trainer, "dead_groups/age")) == ([16, 16, 16], [1, 1.5])


def test_rows_that_were_scored_with_other_padding_are_refused_where_it_shifts_positions(run, tmp_path):
    prompts = [{"prompt": "1+" * length + "1=", "answer": "2"} for length in range(1, 13)]
    given = {"train_dataset": Dataset.from_list(prompts)}
    for architecture, multiple, refused in (("gpt2", None, True), ("gpt2", 32, False), ("qwen2", None, False)):
        make_tiny_model(tmp_path / architecture, architecture=architecture)
        shifts = pytest.raises(ConfigError, match="positions are not relative") if refused else nullcontext()
        with shifts:
            model = given | {"model": str(tmp_path / architecture)}
            run(lambda batch, place: place == batch, given=model, pad_to_multiple_of=multiple, shuffle_dataset=False)


def test_where_nothing_is_dead_a_run_is_that_without_replay_to_the_bit(run):
    settings = {"advantage": "zscore", "objective": None}
    found = [run(lambda batch, place: True, dead_groups=way, **settings)[0] for way in ("keep", "replay")]
    assert torch.equal(*map(weights, found))


@pytest.mark.parametrize("settings", [{}, {"objective": None, "beta": 0.1}, {"advantage": "process"}, {"num_iterations": 2, "save_steps": 3}])  # fmt: skip
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
    assert sum(logged(resumed, "dead_groups/replaced")[-2:]) > 0
    assert torch.equal(weights(whole), weights(resumed))


@pytest.mark.slow
@pytest.mark.parametrize("settings", [
    {}, *({name: value} for name, value in (("num_generations", 8), ("beta", 0.1), ("top_p", 0.8))),
    {"advantage": "gdpo", "verifiers": [{"name": "regex", "pattern": ".*b"}]},
], ids=str)  # fmt: skip
def test_a_changed_run_drops_the_groups_to_replay(run, tmp_path, settings):
    saving = {"save_strategy": "steps", "save_steps": 1, "max_steps": 1}
    run(lambda batch, place: True, **saving)
    again = {"max_steps": 2, "resume": str(tmp_path / "out" / "checkpoint-1"), "allow": True, **settings}
    trainer, _ = run(lambda batch, place: False, **again)
    assert (trainer.state.log_history[-2]["dead_groups/replaced"] == 1) is (not settings)


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
    memory = trainer.pipeline.dead_groups._replay_buffer
    memory.buffer.groups[0].group[0].sampled.completion[0]["thing"] = object()
    state, tensors = memory.packed()
    assert (state, tensors) == ({"batch": 1, "held": {"list": []}}, {})
    assert "a resumed run has no groups to replay" in caplog.text


REFUSED = {
    "'reinforce' reads no log-probabilities": {"objective": "reinforce"},
    "'target' reads no log-probabilities": {"objective": "target", "num_iterations": 2},
    r"selection \('contrast'\): its weights": {"selection": "contrast"},
    "does not go with sync_ref_model": {"sync_ref_model": True, "beta": 0.1},
    "with the KL term no two": {"beta": 0.1, "objective": {"name": "grpo", "kl": {"placement": "reward"}}},
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
    clip = {"objective": {"name": "dapo", "epsilon_high": 0.3}}
    settings = {"output_dir": str(tmp_path), **FLOAT32, **REPLAY, **clip}
    notes = config_notes(GRPOPlusConfig(**settings))
    assert any("dead_groups 'replay': it is biased" in note for note in notes)
    assert not any("epsilon" in note for note in notes)
    notes = config_notes(GRPOPlusConfig(**{**settings, "dead_groups": "keep"}))
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


LENGTHS = [3, 1, 2, 0]
STATE = state_number("a board")
tensor = partial(torch.tensor, device=DEVICE)


def drawn():
    """Two groups of two, as a run with vLLM, tools, truncated sampling and steps would draw them."""
    mask = (torch.arange(3, device=DEVICE) < tensor(LENGTHS)[:, None]).long()
    numbers = torch.arange(12.0, device=DEVICE).reshape(4, 3) / 7
    output = {
        "prompt_ids": tensor([[0, 5], [0, 5], [6, 7], [6, 7]]), "prompt_mask": tensor([[0, 1], [0, 1], [1, 1], [1, 1]]),
        "completion_ids": tensor([[11, 12, 13], [14, 0, 0], [15, 16, 0], [0, 0, 0]]), "completion_mask": mask,
        "tool_mask": tensor([[1, 0, 1], [1, 1, 1], [1, 1, 1], [1, 1, 1]]), "old_per_token_logps": -numbers,
        "ref_per_token_logps": -2 * numbers, "sampling_per_token_logps": -3 * numbers,
        "importance_sampling_ratio": tensor([[1.5], [0.5], [2.0], [1.0]]), "advantages": tensor([1.0, -1.0, 0.5, -0.5]),
        "support": [torch.tensor([1, 2], dtype=torch.int32), *[torch.zeros(0, dtype=torch.int32)] * 3], "num_items_in_batch": mask.sum(),
    }  # fmt: skip
    ids = [[11, 12, 13], [14], [15, 16], []]
    rows = [{"prompt": f"p{row // 2}", "answer": None, "level": row // 2} for row in range(4)]
    behind = [[5], [5], [6, 7], [6, 7]]
    call = Call("add", {"number": 1}, "2", "late", 0.5)
    turns = [[Turn(0, 1, "a", (call,), "s", 0.25), Turn(2, 3, "c")], [Turn(0, 1, "d")], [Turn(0, 2, "ef")], []]
    tokens = [[(0, 1), (2, 3)], [(0, 1)], [(0, 2)], []]
    texts = ["abc", "d", "ef", ""]
    completions = Completions(rows, [row["prompt"] for row in rows], texts, ids, behind, turns, tokens)
    given = [0, 0, 2], [1.0, float("nan"), 0.5], [[0, 1], [1, 3], [0, 2]], [STATE, -1, STATE]
    steps = StepScores(*map(tensor, given))
    rewards, flags = tensor([[1.0], [0.0], [float("nan")], [0.25]]), tensor([True, False, False, True])
    verdicts = [[Verdict(1.0, detail="x", steps=(Step(0, 1, 1.0), Step(1, 3, None)))], *[[Verdict(0.0)]] * 3]
    table = {"prompt": list("ppqq"), "completion": texts, "images": [], "advantages": [1, -1, 0.5, -0.5]}
    table |= {"rewards": {"r": [1.0, 0.0, None, 0.25]}, "extra": {}}
    scored = ScoredBatch(completions, rewards, verdicts, tensor(LENGTHS), flags, steps, output)
    return SubBatch(scored, mask.bool(), table, {"reward": [0.5]})


def assert_alike(found, expected):
    assert found.values.keys() == expected.values.keys()
    for name, value in expected.values.items():
        assert torch.equal(found.values[name], value), name
        assert found.values[name].dtype == value.dtype
    assert found[1:] == expected[1:]


def test_what_comes_back_from_a_checkpoint_is_what_was_drawn():
    one = drawn()
    memory, resumed = ReplayBuffer(age=2, groups=8), ReplayBuffer(age=2, groups=8)
    memory.buffer.begin()
    memory.buffer.put(store_groups(one, [0, 1], 2, rank=0))
    resumed.load(*memory.packed())
    assert resumed.buffer.batch == 1
    back = resumed.buffer.take(2)  # the newest first: the second group
    rows = [row for held in back for row in held.group]
    again = round_of(rows, rank=0, ranks=1, pad=0, multiple=None, device=torch.device(DEVICE))
    turned = [2, 3, 0, 1]
    for found, place in zip(rows_of(again), turned, strict=True):
        assert_alike(found, rows_of(one)[place])
    assert again.scored.rewards.nan_to_num(nan=7).tolist() == [[7], [0.25], [1], [0]]
    assert again.scored.lengths.tolist() == [2, 0, 3, 1]
    assert again.scored.truncated.tolist() == [False, True, True, False]
    assert again.scored.steps.rows.tolist() == [0, 2, 2]
    assert again.scored.steps.scores.nan_to_num(nan=7).tolist() == [0.5, 1, 7]
    assert again.scored.steps.spans.tolist() == [[0, 2], [0, 1], [1, 3]]
    assert again.scored.steps.states.tolist() == [STATE, STATE, -1]
    assert torch.equal(again.trainable, one.trainable[turned])
    table = {"prompt": list("qqpp"), "completion": ["ef", "", "abc", "d"], "advantages": [0.5, -0.5, 1, -1]}
    assert again.table == {**table, "images": [], "extra": {}, "rewards": {"r": [None, 0.25, 1.0, 0.0]}}
    assert again.metrics == {}


def test_rows_of_a_round_keep_the_states_of_their_steps_and_older_ones_have_none():
    one = drawn()
    sources = [Source(0, row) for row in (2, 3, 0, 1)]
    assert gather_scored([one], sources, one.scored.completions).steps.states.tolist() == [STATE, STATE, -1]
    older = step_scores([[(0, 1, 1.0)], [(0, 2, 0.5)]], device=torch.device(DEVICE), dtype=torch.float32)
    assert older.states.tolist() == [-1, -1]
    assert step_scores([[], []], device=torch.device(DEVICE), dtype=torch.float32).states.tolist() == []


def test_what_is_kept_holds_no_more_memory_than_its_own():
    (group,) = store_groups(drawn(), [0], 2, rank=0)
    for row in group:
        values = [value for value in row.sampled.values.values() if isinstance(value, torch.Tensor)]
        for tensor in (*values, row.rewards, row.trainable):
            assert tensor.untyped_storage().nbytes() == tensor.nbytes
