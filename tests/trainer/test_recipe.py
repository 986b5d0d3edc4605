"""The recipe of a config: parts resolved once, frozen, never written down, anew where a field changed."""

import copy
import dataclasses
import pickle
from collections import Counter

import pytest
from datasets import Dataset
from trl import GRPOConfig

from grpo_plus import GRPOPlusConfig
from grpo_plus.advantages import get_advantage, register_advantage
from grpo_plus.objectives import Objective, objectives
from grpo_plus.recipe.recipe import Recipe, recipe_of
from grpo_plus.recipe.settings import EngineOptions
from grpo_verifiers import verifying
from grpo_verifiers.errors import ConfigError
from tests.trainer.conftest import BASE

PARTS = {"advantage": {"name": "mix", "parts": {"rloo": 1.0, "process": 0.5}}, "objective": "dapo"}
PARTS |= {"beta": 0.01, "verifiers": ["math", {"name": "math_steps", "weight": 0}]}
PARTS |= {"eval_verifiers": [{"name": "exact", "weight": 2.0}]}


@pytest.fixture
def count(monkeypatch):
    counts = Counter()
    compose, look_up = Objective.__init__, type(objectives).get

    def composed(self, *arguments, **keywords):
        counts["objective"] += 1
        compose(self, *arguments, **keywords)

    def get(registry, name, **keywords):
        counts[registry.kind, name] += 1
        return look_up(registry, name, **keywords)

    monkeypatch.setattr(Objective, "__init__", composed)
    monkeypatch.setattr(type(objectives), "get", get)
    return counts


def config(**settings):
    return GRPOPlusConfig(**{**BASE, **settings})


def test_the_recipe_holds_the_resolved_parts_and_says_where_they_come_from(tmp_path):
    recipe = config(**PARTS, verifier_column="kind", reward_weights=None).recipe
    assert recipe.advantage.estimator.name == "mix"
    assert ([part.name for part, _ in recipe.estimator_parts], recipe.advantage_per) == (["rloo", "process"], "step")
    assert recipe.objective.name == "dapo"
    assert [(part.label, part.weight) for part in recipe.verifiers] == [("math", None), ("math_steps", 0)]
    assert [(part.label, part.weight) for part in recipe.eval_verifiers] == [("exact", 2.0)]
    assert (recipe.step_givers, recipe.step_sources) == ({"math": False, "math_steps": True}, (None,))
    assert recipe.verifier_column == "kind"
    assert recipe.report.record
    file = tmp_path / "mine.py"
    file.write_text("def mine(completions, **_):\n    return [1.0 for _ in completions]\n")
    given = {"advantage": "rloo", "verifiers": [{"name": f"{file}:mine", "label": "own"}], "eval_verifiers": ["exact"]}
    assert config(**given).recipe.origins == {"advantage": "built-in", "own": "reference", "exact": "built-in"}


def test_a_plain_config_has_the_stock_recipe():
    assert recipe_of(GRPOConfig(**BASE)) == Recipe()
    assert Recipe().engine.layout == Recipe().rollout.how == "stock"
    assert config().recipe == dataclasses.replace(Recipe(), engine=EngineOptions())
    kl = {"objective": {"name": "grpo", "kl": {"placement": "reward"}}, "beta": 0.1}
    assert config(objective="grpo").recipe.advantage is None
    recipe = config(**kl, scale_rewards="none").recipe  # brings the estimator that the host's fields amount to
    assert recipe.advantage.estimator.name == "center"


def test_it_is_the_same_frozen_object_until_a_field_changes(build):
    made = config(**PARTS)
    before = made.recipe
    assert made.recipe is before
    with pytest.raises(dataclasses.FrozenInstanceError):
        before.engine = "stock"
    made.beta = 0.5
    assert before.objective.beta == 0.01
    assert made.recipe.objective.beta == 0.5
    made.advantage["parts"]["rloo"] = 2.0
    assert made.recipe.advantage.keywords["parts"]["rloo"] == 2.0
    made.verifiers = "math_steps"
    assert [part.label for part in made.recipe.verifiers] == ["math_steps"]
    made.objective, made.verifiers = "dapoo", ["maths"]
    with pytest.raises(ConfigError) as refusal:
        _ = made.recipe
    assert ["dapoo" in problem or "maths" in problem for problem in map(str, refusal.value.problems)] == [True, True]

    def changed(**settings):
        made = GRPOPlusConfig(**settings)
        made.advantage = "sign"
        return made

    assert build(config_class=changed, advantage="rloo").estimator[0].name == "sign"


@pytest.mark.parametrize("twin", [copy.copy, copy.deepcopy, lambda made: pickle.loads(pickle.dumps(made))])
def test_a_copy_has_no_live_verifiers_and_builds_its_own(twin):
    made = config(**PARTS)
    other = twin(made)
    assert not any(isinstance(value, Recipe | tuple) for value in vars(other).values())
    assert other == made
    assert other.recipe.verifiers[0].verifier is not made.recipe.verifiers[0].verifier
    assert [part.label for part in other.recipe.verifiers] == ["math", "math_steps"]


def test_what_is_stored_beside_a_model_holds_no_recipe_and_it_is_no_field():
    made = config(**PARTS)
    for stored in (made.without_secrets(), pickle.loads(pickle.dumps(made.as_written()))):
        assert not any(isinstance(value, Recipe | tuple) for value in vars(stored).values())
    assert made.as_written().recipe is made.recipe
    assert not [name for name in made.to_dict() if "recipe" in name]
    assert dataclasses.replace(made, beta=0.0).recipe.objective.beta == 0


def test_an_objective_is_composed_once_and_a_verifier_built_once_in_a_run(trained, count):
    rows = Dataset.from_list([{"prompt": f"one and {number}?", "answer": str(number + 1)} for number in range(8)])
    trainer = trained(trainer={"train_dataset": rows, "reward_funcs": None}, max_steps=2, report=True, **PARTS)
    trainer.create_model_card()
    assert (count["objective"], count["objective", "dapo"]) == (1, 1)
    kind = verifying.REGISTRY.kind
    assert [count[kind, name] for name in ("math", "math_steps", "exact")] == [1, 1, 1]


def test_a_subclass_may_have_a_field_that_is_called_recipe(build):
    @dataclasses.dataclass
    class Own(GRPOPlusConfig):
        recipe: str = "recipe.yaml"

    trainer = build(config_class=Own, advantage="sign", objective="dapo")
    assert (trainer.estimator[0].name, trainer.objective.name) == ("sign", "dapo")
    assert trainer.args.to_dict()["recipe"] == "recipe.yaml"


def test_what_excludes_each_other_is_reported_beside_verifiers_that_cannot_be_built():
    wrong = {"name": "exact", "weight": 1.0, "nothing": 1}
    steps = {"name": "math_steps", "aggregate": "min", "nothing": 1}
    process = {"advantage": {"name": "process", "aggregate": "mean"}}
    both = ("nothing", "eval_verifiers has 'exact', which verifiers has too", "weights are set in both")
    for settings, said in (
        ({"verifiers": [wrong], "eval_verifiers": ["exact"], "reward_weights": [1.0]}, both),
        ({"verifiers": [steps], **process}, ("nothing", "has its own")),
    ):
        with pytest.raises(ConfigError) as refusal:
            config(**settings)
        for words in said:
            assert any(words in str(problem) for problem in refusal.value.problems), words


def test_a_part_that_is_registered_again_is_resolved_again():
    def cell(factor):
        @register_advantage("written_in_a_notebook")
        def written(table):
            return table.rewards.sum(1) * factor

    cell(1)
    made = config(advantage="written_in_a_notebook")
    before = made.recipe.advantage.estimator
    assert made.recipe.advantage.estimator is before
    cell(2)
    assert made.recipe.advantage.estimator is get_advantage("written_in_a_notebook") is not before
