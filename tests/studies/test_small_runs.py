"""Each study for real, at its smallest: real trainings, in this process."""

import json
import math
from itertools import islice
from xml.etree import ElementTree as ET

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from benchmarks.studies import (
    gradient_variance,
    outcome_process_both,
    supervised_vs_grpo,
    task,
    turn_credit,
)
from benchmarks.studies.study import Place, load, main
from grpo_plus.cli.quickstart import chains, is_held_out

pytestmark = pytest.mark.slow


@pytest.fixture
def trainings(monkeypatch):
    """The trainings of a study."""
    seen, real = [], task.train

    def noting(*given, **keywords):
        seen.append(real(*given, **keywords))
        return seen[-1]

    monkeypatch.setattr(task, "train", noting)
    return seen


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A folder of studies, which share the warm-started models."""
    return tmp_path_factory.mktemp("studies")


def run(home, name, *arguments):
    study = load(name)
    assert main(study, ["--home", str(home), "--quick", "--warm-steps", "3", *arguments], processes=False) == 0
    ET.parse(home / name / "picture.svg")
    lines = (home / name / "results.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    table = (home / name / "table.md").read_text()
    return rows, [line for line in table.splitlines() if line.startswith("| ")]


@pytest.mark.nightly
def test_the_noise_of_the_gradient_is_measured_at_fixed_weights(home, monkeypatch):
    real = task.settings  # a model this young is never right; one digit or another it does write
    often = {"name": "regex", "pattern": "[0-4]", "mode": "search"}
    monkeypatch.setattr(task, "settings", lambda **fields: real(**(fields | {"verifiers": [often]})))
    more = ["--estimators", "center", "rloo", "--modes", "same", "--groups", "4", "--steps", "4"]
    rows, table = run(home, "gradient_variance", *more)
    assert len(table) == 3
    center, rloo = (row["found"] for row in rows)
    # rloo is center times G / (G - 1) on the same completions; a clipped or scaled gradient would not be.
    assert rloo["variance"] == pytest.approx(center["variance"] * (4 / 3) ** 2, rel=1e-3)
    assert rloo["signal"] == pytest.approx(center["signal"] * (4 / 3) ** 2, rel=1e-3, abs=1e-12)
    assert center["variance"] > 0
    assert center["drawn"] == 4 * 4 * 4


def test_gradients_are_independent_of_how_products_are_computed():
    rows = list(torch.randn(4, 70_000, generator=torch.Generator().manual_seed(0)))
    found = gradient_variance.inner_products(rows)
    stacked = torch.stack(rows).double()
    torch.testing.assert_close(torch.tensor(found, dtype=torch.float64), stacked @ stacked.T)


@pytest.mark.nightly
def test_supervised_arms_get_the_budgets_of_grpo(home):
    rows, table = run(home, "supervised_vs_grpo", "--held-out", "4")
    assert len(table) == 7
    found = {(row["case"]["arm"], row["case"].get("budget")): row["found"] for row in rows}
    assert found["grpo", None]["samples"] == 2 * 32
    assert found["start", None]["samples"] == 0
    for arm in supervised_vs_grpo.SUPERVISED:
        assert found[arm, "samples"]["samples"] == 80  # one step: the nearest to 64
        spent, allowed = found[arm, "seconds"]["seconds"], found["grpo", None]["seconds"]
        assert spent >= allowed
    assert all(0 <= value[name] <= 1 for value in found.values() for name in supervised_vs_grpo.MEASURES)


def test_a_budget_without_the_run_that_has_it_is_an_error(home):
    case = {"arm": "worked", "budget": "samples", "seed": 0, "warm": 3, "held_out": 2, "rate": 1e-3, "as": {"steps": 9}}
    with pytest.raises(RuntimeError, match="the run of GRPO that has the budget is missing"):
        supervised_vs_grpo.run(case, Place(home, []))


@pytest.mark.nightly
def test_outcome_process_and_both_train_with_the_parts_that_they_name(home, trainings):
    rows, table = run(home, "outcome_process_both")
    assert len(table) == 4
    chosen = [trained.trainer.estimator for trained in trainings]
    assert [each.estimator.name for each in chosen] == ["zscore", "process", "process"]
    assert [each.keywords.get("outcome_weight") for each in chosen[1:]] == [0.0, 1.0]
    assert all(len(row["found"]["steps"]) == 2 for row in rows)


@pytest.mark.nightly
def test_credit_for_turns_and_the_outcome_train_with_the_parts_that_they_name(home, trainings):
    rows, table = run(home, "turn_credit", "--warm-steps", "60")
    assert len(table) == 1 + len(turn_credit.ARMS)
    chosen = [trained.trainer.estimator for trained in trainings]
    assert [each.estimator.name for each in chosen] == ["zscore", "process", "process", "gigpo"]
    weights = [(each.keywords.get("credit"), each.keywords.get("outcome_weight")) for each in chosen]
    assert weights[1:3] == [("return", 1.0), ("turn", 1.0)]
    assert all(len(row["found"]["won"]) == 2 and 0 <= row["found"]["held_out"] <= 1 for row in rows)


@pytest.mark.nightly
def test_sign_target_and_zscore_note_their_course(home):
    rows, table = run(home, "sign_target_zscore")
    assert len(table) == 4
    assert [row["case"]["arm"] for row in rows] == ["zscore", "sign", "target"]
    for row in rows:
        assert row["found"]["steps"] == [0, 2, 4]
        batches = 2 if row["case"]["arm"] == "target" else 4
        assert row["found"]["drawn"] == [0, batches * 16, batches * 32]
        assert row["found"]["seconds"][0] == 0 < row["found"]["seconds"][1] < row["found"]["seconds"][2]


@pytest.mark.nightly
def test_grpo_ppo_and_sao_draw_as_much_and_train_their_critics(home, trainings):
    rows, table = run(home, "grpo_ppo_sao", "--steps", "2")
    assert [line.split()[1] for line in table] == ["arm", "grpo", "ppo_trunk", "ppo_model", "sao"]
    learns = [any("critic/loss" in log for log in trained.logs) for trained in trainings]
    sizes = [trained.trainer.args.num_generations for trained in trainings]
    wanted = [(8, False), (1, True), (1, True), (1, True)]
    assert list(zip(sizes, learns, strict=True)) == wanted * 2  # memory, then the course
    courses = [row["found"] for row in rows if row["case"]["part"] == "course"]
    assert [one["drawn"] for one in courses] == [[0, 64]] * 4
    assert all(row["found"]["peak"] >= row["found"]["start"] > 100 for row in rows if row["case"]["part"] == "memory")


def test_supervised_training_learns_and_stops_at_its_budget(home):
    folder = task.warm(home, 0, 3)
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    pairs = next(task.right_solutions(7, 16))

    def loss():
        with torch.no_grad():
            return model(**task._batch(tokenizer, pairs)).loss.item()

    before = loss()
    done = task.supervise(model, tokenizer, iter([pairs] * 12), rate=3e-3, steps=12)
    assert (done.steps, done.samples) == (12, 12 * 16)
    assert loss() < 0.8 * before
    timed = task.supervise(model, tokenizer, task.right_solutions(8, 16), rate=3e-3, seconds=0.3)
    assert timed.seconds >= 0.3
    assert timed.steps >= 1


def test_no_measured_question_is_trained_on():
    mixture = [prompt[0]["content"] for batch in islice(task.mixture(1001), 20) for prompt, _ in batch]
    trained = {row["prompt"][0]["content"] for row in task.questions(500, 1)} | set(mixture)
    longer = task.questions(100, 1, low=5, high=7, held_out=True)
    measured = {row["prompt"][0]["content"] for row in [*task.questions(100, 1, held_out=True), *longer]}
    assert not measured & trained
    assert all(map(is_held_out, measured))
    assert all(5 <= sum(map(row["prompt"][0]["content"].count, "+-")) <= 7 for row in longer)
    answers = [chain.worked_out for chain in islice(chains(3, *supervised_vs_grpo.LONGER), 3000)]
    assert max(map(len, answers)) + 1 <= supervised_vs_grpo.LONG


def test_an_update_without_a_judged_step_counts_as_nothing():
    assert [outcome_process_both._known(value) for value in (None, math.nan, 0.4)] == [0.0, 0.0, 0.4]
    assert outcome_process_both.reached([0.0] * 5 + [1.0] * 5, 0.7) == 9
    assert outcome_process_both.reached([1.0] * 3, 0.7) is None
