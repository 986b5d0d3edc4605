"""Reward functions and step scorers that return infinities or enormous numbers cost a score, never a run."""

import json
import math

import pytest

from grpo_plus.advantages import RewardTable, compute_advantages

pytestmark = pytest.mark.usefixtures("talk")

TEXTS = ["1+1=2<|im_end|>", "1+1=3<|im_end|>", "2<|im_end|>", "3<|im_end|>"]


def returns(name, *scores):
    def function(completions, **_):
        return [scores[row % 4] for row in range(len(completions))]

    function.__name__ = name
    return function


@pytest.fixture
def talk(say):
    say(lambda _, row: TEXTS[row % 4])


@pytest.mark.sample(0, 5)
@pytest.mark.parametrize("wild", [math.inf, -math.inf, 1e308, -1e39])
@pytest.mark.parametrize("advantage", ["zscore", "raw", "gdpo", "passk"])
def test_an_infinite_score_counts_as_zero_and_the_run_goes_on(trained, caplog, wild, advantage):
    functions = [returns("fine", 1.0, 0.5, 0.0, 0.25), returns("wild", 1.0, wild, 0.25, None)]
    keywords = {"k": 2} if advantage == "passk" else {}
    trainer = trained(trainer={"reward_funcs": functions}, advantage=advantage, advantage_kwargs=keywords, max_steps=2)
    rewards = [[1.0, 1.0], [0.5, 0.0], [0.0, 0.25], [0.25, None]]
    table = RewardTable.of(rewards * 2, groups=[0] * 4 + [1] * 4)
    expected = compute_advantages(advantage, table, **keywords)
    assert trainer.generated[0]["advantages"].tolist() == pytest.approx(expected.tolist(), abs=1e-6)
    first, second, *_ = trainer.state.log_history
    assert first["rewards/wild/unusable"] == second["rewards/wild/unusable"] == 0.25
    assert "rewards/fine/unusable" not in first
    warned = [record.getMessage() for record in caplog.records if "counts as 0" in record.getMessage()]
    assert len(warned) == 1
    assert "'wild'" in warned[0]
    assert "2 times in 8" in warned[0]


def test_beside_verifiers_too_where_the_hosts_advantages_train(trained):
    functions = [returns("wild", math.inf, 0.0, 1.0, 1.0)]
    trainer = trained(trainer={"reward_funcs": functions}, verifiers=["math"], max_steps=1)
    assert trainer.generated[0]["advantages"].abs().max() < 2
    assert trainer.state.log_history[0]["rewards/wild/unusable"] == 0.25


@pytest.mark.sample(0, 3)
@pytest.mark.parametrize("size", [1e38, 3e38])
@pytest.mark.parametrize("advantage", ["zscore", "rloo", "process"])
def test_enormous_scores_train_are_logged_recorded_and_reported(trained, tmp_path, size, advantage):
    def scorer(prompts, **_):
        return [[(0, 1, (-1) ** row * size), (1, 2, size)] for row in range(len(prompts))]

    functions = [returns("vast", size, -size, size, size), returns("huge", size, size, -size, size)]
    extra = {"step_scorer": scorer} if advantage == "process" else {}
    trainer = trained(trainer={"reward_funcs": functions, **extra}, advantage=advantage, max_steps=1)
    assert trainer.generated[0]["advantages"].isfinite().all()
    assert trainer.generated[0]["advantages"].abs().max() > 0.5
    logged = trainer.state.log_history[0]
    assert all(math.isfinite(value) for name, value in logged.items() if name.startswith("advantages/"))
    assert (tmp_path / "out" / "report.html").stat().st_size > 1000
    groups = (tmp_path / "out" / "grpo_plus" / "groups.jsonl").read_text().splitlines()
    (group,) = [row for row in map(json.loads, groups) if row["kind"] == "group"][:1]
    assert group["completions"][1]["rewards"] == pytest.approx([-size, size], rel=1e-6)


@pytest.mark.sample(1)
@pytest.mark.parametrize("wild", [math.inf, -math.inf, 1e308, 10**400])
def test_an_infinite_step_score_counts_as_zero(trained, caplog, wild):
    def scorer(prompts, **_):
        return [[(0, 1, wild if row % 4 == 1 else 1.0), (1, 2, None)] for row in range(len(prompts))]

    functions = [returns("silent", None, None, None, None)]
    trainer = trained(trainer={"reward_funcs": functions, "step_scorer": scorer}, advantage="process", max_steps=1)
    table = RewardTable.of([0.0] * 4, steps=[[(float(row != 1), 0, 1)] for row in range(4)])
    expected = compute_advantages("process", table)[:, 0].tolist()
    assert trainer.generated[0]["advantages"][:4, 0].tolist() == pytest.approx(expected, abs=1e-6)
    assert trainer.state.log_history[0]["steps/unusable"] == 1 / 8
    assert sum("the step scorer" in record.getMessage() for record in caplog.records) == 1


def test_with_nothing_of_ours_set_rewards_are_the_hosts(trained):
    trainer = trained(trainer={"reward_funcs": [returns("wild", math.inf, 0.0, 1.0, 1.0)]}, max_steps=1)
    assert "rewards/wild/unusable" not in trainer.state.log_history[0]
