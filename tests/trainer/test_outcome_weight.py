"""Beside steps, the outcome counts as it is listed: a weight changes the advantages, or is refused."""

import re
from itertools import combinations
from pathlib import Path

import pytest
import torch
from datasets import Dataset

from grpo_plus import GRPOPlusConfig
from grpo_plus.advantages import Estimator, RewardTable, compute_advantages, get_advantage
from grpo_plus.recipe.rewards import WeightedReward, outcome_problems, running_advantage, source_of, with_outcome_weight
from grpo_plus.training.observers.about import parts
from grpo_verifiers.errors import ConfigError
from tests.trainer.conftest import BASE

MATH, STEPS, QUIET = WeightedReward("math"), WeightedReward("math_steps", 0.0, True), WeightedReward("length", 0.0)
MAYBE = WeightedReward("mine", 0.0, None)


def resolved(name, keywords, rewards, source):
    return with_outcome_weight((get_advantage(name), keywords), rewards, source)[1]


@pytest.mark.parametrize(("rewards", "expected"), [
    ([MATH, STEPS], "math_steps"), ([MATH, STEPS, MAYBE], "math_steps"), ([MATH, MAYBE], "mine"), ([MATH], None), ([], None),
])  # fmt: skip
def test_the_source_of_steps_is_the_one_named_or_the_only_one_there_can_be(rewards, expected):
    assert (source_of(rewards, None), source_of([MATH, STEPS], "math")) == (expected, "math")
    assert source_of([MAYBE, WeightedReward("other", 1.0, None)], None) is None


@pytest.mark.parametrize(("rewards", "keywords", "expected"), [
    ([MATH, STEPS], {}, 1.0), ([MATH, STEPS], {"outcome_weight": None}, 1.0), ([WeightedReward("math", -0.5), STEPS], {}, 1.0),
    ([WeightedReward("math", 0), STEPS], {}, 0.0), ([WeightedReward("math", 0), WeightedReward("exact", 2.0), STEPS], {}, 1.0), ([QUIET, STEPS], {}, 0.0),
    ([WeightedReward("math_steps", 1.0, True)], {}, 0.0), ([WeightedReward("math_steps", 1, True)], {}, 0.0),
    ([MATH, WeightedReward("math_steps", 1, True)], {}, 1.0), ([MATH, STEPS], {"outcome_weight": 0.3}, 0.3),
    ([QUIET, STEPS], {"outcome_weight": 0}, 0),
])  # fmt: skip
def test_unset_it_follows_from_what_is_listed(rewards, keywords, expected):
    source = source_of(rewards)
    assert resolved("process", keywords, rewards, source)["outcome_weight"] == expected
    assert outcome_problems((get_advantage("process"), keywords), rewards, source) == []


@pytest.mark.parametrize(("parts", "keywords", "expected"), [
    ({"process": 1.0}, {}, 1.0), ({"process": 1.0, "sign": 0.5}, {}, 0.0), ({"process": 1.0, "sign": 0.5}, {"outcome_weight": 0}, 0.0),
    ({"process": 1.0, "sign": 0.5}, {"outcome_weight": 2}, 2.0), ({"process": 1.0, "sign": 0}, {}, 1.0),
])  # fmt: skip
def test_beside_a_part_that_reads_the_rewards_they_count_there(parts, keywords, expected):
    given = {"parts": parts, "process": keywords} if keywords else {"parts": parts}
    found = resolved("mix", given, [MATH, STEPS], "math_steps")
    assert found == {"parts": parts, "process": {"outcome_weight": expected}}
    assert outcome_problems((get_advantage("mix"), given), [MATH, STEPS], "math_steps") == []


def test_a_default_that_an_estimator_declares_itself_stays_and_those_without_steps_are_left_alone():
    def own_default(table, *, outcome_weight: float = 0.25):
        return table.steps.scores

    chosen = (Estimator("mine", own_default, per="step"), {})
    assert with_outcome_weight(chosen, [MATH, STEPS], "math_steps") == chosen
    for name in ("sign", "gdpo", "raw"):
        assert resolved(name, {}, [MATH], None) == {}
        assert outcome_problems((get_advantage(name), {}), [MATH], None) == []


ZERO = {"outcome_weight": 0.0}


@pytest.mark.parametrize("rewards", [[MATH, STEPS], [WeightedReward("math", 2.5), QUIET, STEPS], [WeightedReward("mine", 1.0, None), STEPS]])  # fmt: skip
def test_a_zero_beside_a_weighted_outcome_names_both(rewards):
    for name, keywords in (("process", ZERO), ("mix", {"parts": {"process": 1.0}, "process": ZERO})):
        (problem,) = outcome_problems((get_advantage(name), keywords), rewards, "math_steps")
        assert f"outcome_weight of the advantage estimator 'process' is 0, and so the reward {rewards[0]}" in problem
        assert "length" not in problem


def test_a_zero_beside_what_may_be_the_source_is_left_to_the_run():
    zero = (get_advantage("process"), ZERO)
    mine, other = WeightedReward("mine", 1.0, None), WeightedReward("other", 0.0, None)
    assert outcome_problems(zero, [mine, other], None) == []
    (problem,) = outcome_problems(zero, [mine, WeightedReward("other", 2.0, None)], None)
    assert "'mine' (weight 1), 'other' (weight 2)" in problem


def test_a_weight_of_the_source_that_nothing_reads_is_named():
    heavy = [WeightedReward("math_steps", 2.0, True)]
    for keywords in ({}, ZERO):
        (problem,) = outcome_problems((get_advantage("process"), keywords), heavy, "math_steps")
        assert "'math_steps' (weight 2) gives the steps" in problem
        assert outcome_problems((get_advantage("process"), keywords), heavy, "math_steps", complete=False) == []
    assert outcome_problems((get_advantage("process"), {"outcome_weight": 1.0}), heavy, "math_steps") == []
    assert outcome_problems((get_advantage("process"), {}), [MATH, *heavy], "math_steps") == []


def test_a_config_says_so_before_anything_loads():
    verifiers = ["math", {"name": "exact", "weight": 0.5}, {"name": "math_steps", "weight": 0}]
    given = {"verifiers": verifiers}
    with pytest.raises(ConfigError, match=r"outcome_weight.* is 0, .*'math' \(weight 1\), 'exact' \(weight 0.5\)"):
        GRPOPlusConfig(**BASE, **given, advantage={"name": "process", "outcome_weight": 0})
    config = GRPOPlusConfig(**BASE, **given, advantage="process")
    (_, keywords), problems = running_advantage(config.recipe, config.recipe.step_givers)
    assert keywords == {"outcome_weight": 1.0}
    assert problems == []


def test_a_weight_of_an_outcome_that_is_not_there_is_named():
    for keywords in ({"outcome_weight": 0.3}, {"credit": "turn", "outcome_weight": -1.0}):
        (problem,) = outcome_problems((get_advantage("process"), keywords), [QUIET, STEPS], "math_steps")
        assert f"is {keywords['outcome_weight']!r}, but no reward has a weight (length, math_steps)" in problem
        for known in ({"complete": False}, {}):
            rewards = [QUIET, STEPS] if known else [QUIET, STEPS, WeightedReward("Game", 1.0, owned=True)]
            assert outcome_problems((get_advantage("process"), keywords), rewards, "math_steps", **known) == []


def test_the_reward_of_an_environment_is_an_outcome_and_only_outcome_weight_leaves_it_out():
    environment = f"{Path(__file__).with_name('tools_of_tests.py')}:Counter"
    given = {"environment": environment, "verifiers": [{"name": "turn_reward", "weight": 0}]}
    for keywords, expected in (({}, 1.0), ({"outcome_weight": 0.5}, 0.5), ({"outcome_weight": 0}, 0)):
        config = GRPOPlusConfig(**BASE, **given, advantage={"name": "process", **keywords})
        (_, found), problems = running_advantage(config.recipe, config.recipe.step_givers)
        assert (found["outcome_weight"], problems) == (expected, [])
    given["verifiers"] = [{"name": "tool_valid", "weight": 0}]
    given |= {"environment": environment.replace("Counter", "Other"), "advantage": "process"}
    config = GRPOPlusConfig(**BASE, **given)
    assert running_advantage(config.recipe, config.recipe.step_givers)[0][1] == {"outcome_weight": 0.0}


TEXTS = ["1+1=2\n\\boxed{2}", "1+1=3\n\\boxed{2}", "1+1=2\n\\boxed{9}", "1+1=3\n\\boxed{9}"]


@pytest.fixture
def advantages(checked, say):
    say(lambda _, row: TEXTS[row % 4] + "<|im_end|>")
    answers = Dataset.from_list([{"prompt": f"one and one {number}?", "answer": "2"} for number in range(8)])

    def advantages(*verifiers, functions=None, scorer=None, **settings):
        given = {"train_dataset": answers, "reward_funcs": functions, "step_scorer": scorer}
        settings = {"advantage": "process", "max_completion_length": 24, **settings}
        trainer = checked(*verifiers, trainer=given, **settings)
        return trainer.generated[0]["advantages"][:4], trainer

    return advantages


def test_the_outcome_is_trained_on_where_it_is_listed(advantages):
    steps = {"name": "math_steps", "weight": 0}
    got, trainer = advantages("math", steps)
    alone, _ = advantages({"name": "math", "weight": 0}, steps)
    outcome = compute_advantages("zscore", RewardTable.of([1, 1, 0, 0]))
    trained = alone != 0
    torch.testing.assert_close((got - alone)[trained], outcome[:, None].expand_as(got)[trained], rtol=1e-4, atol=1e-5)
    assert got[0].sum() > got[2].sum() > got[3].sum()
    assert parts(trainer)["advantage"]["keywords"] == {"outcome_weight": 1.0}


def test_every_weight_makes_a_difference(advantages):
    weights = [(1, 0, 0), (100, 0, 0), (0, 0, 0), (1, 1, 0), (1, 5, 0), (1, 1, 2)]
    found = []
    for outcome, steps, more in weights:
        entries = [{"name": "math", "weight": outcome}, {"name": "math_steps", "weight": steps}]
        again = {"name": "math", "label": "again", "weight": more}
        found.append(advantages(*entries, *([again] if more else []))[0])
    for one, other in combinations(range(len(found)), 2):
        assert not torch.equal(found[one], found[other]), (weights[one], weights[other])


def test_reward_functions_and_reward_weights_are_listed_too(advantages):
    def first(completions, **_):
        return [float(row % 4 == 0) for row in range(len(completions))]

    steps = "math_steps"
    counted, trainer = advantages(steps, functions=[first], reward_weights=[1.0, 0.0])
    assert trainer.estimator[1] == {"outcome_weight": 1.0}
    silent, trainer = advantages(steps, functions=[first], reward_weights=[0.0, 0.0])
    assert trainer.estimator[1] == {"outcome_weight": 0.0}
    assert (counted - silent)[0].max() > 1
    zero = {"name": "process", "outcome_weight": 0, "credit": "step"}
    with pytest.raises(ConfigError, match=r"outcome_weight .* is 0, .*'first' \(weight 2\)"):
        advantages(steps, functions=[first], reward_weights=[2.0, 0.0], advantage=zero)
    with pytest.raises(ConfigError, match=re.escape("'math_steps' (weight 3) gives the steps")):
        advantages(steps, reward_weights=[3.0])

    def scorer(prompts, **_):  # beside which every verifier is an outcome
        return [[(0, 1, float(row % 2)), (1, 2, 1.0)] for row in range(len(prompts))]

    for weight in (1, 0):
        _, trainer = advantages({"name": steps, "weight": weight}, scorer=scorer)
        assert trainer.estimator[1] == {"outcome_weight": weight}
