"""Types of every field, ranges of ours and of the few of the host: what is outside is named in the one report."""

import dataclasses
import math
import typing

import numpy as np
import pytest
from trl import GRPOConfig, ModelConfig, TrlParser

from grpo_plus import GRPOPlusConfig
from grpo_plus.cli._arguments import GROUPS
from grpo_plus.recipe import host
from grpo_plus.recipe.values import HOST, OURS, judge
from grpo_plus.trl.fields import RENAMED_FIELDS
from grpo_verifiers.errors import ConfigError
from tests.trainer.conftest import BASE

FIELDS = {spec.name: spec for spec in dataclasses.fields(GRPOPlusConfig) if spec.init}
HINTS = typing.get_type_hints(GRPOPlusConfig)


def kinds_of(name):
    return set(typing.get_args(HINTS[name])) or {HINTS[name]}


NUMBERS = sorted(name for name in FIELDS if kinds_of(name) <= {int, float, type(None)})
SWITCHES = sorted(name for name in FIELDS if kinds_of(name) <= {bool, type(None)})
RANGES = {
    name: rule
    for rule in reversed((*HOST, *OURS))  # of several, the first is the narrower one
    for name in rule.names.split()
    if name in NUMBERS and rule.bounds
}


def problems(**values):
    with pytest.raises(ConfigError) as caught:
        GRPOPlusConfig(**BASE | values)
    return caught.value.problems


def test_every_default_passes_and_is_left_as_it_is():
    values = {name: spec.default for name, spec in FIELDS.items() if spec.default is not dataclasses.MISSING}
    assert judge(GRPOPlusConfig, values) == judge(GRPOPlusConfig, {})
    values = {spec.name: spec.default for spec in dataclasses.fields(ModelConfig)}
    assert not judge(ModelConfig, values).problems


def test_the_table_of_the_host_is_short_and_names_its_fields():
    known = {spec.name for group in GROUPS for spec in dataclasses.fields(group)}
    assert sorted({name for rule in (*HOST, *OURS) for name in rule.names.split()} - known) == []
    assert len(HOST) + len(host.ERRORS) < 20
    ours = FIELDS.keys() - GRPOConfig.__dataclass_fields__.keys()
    assert set(NUMBERS) & ours <= {name for rule in OURS for name in rule.names.split()}


NO_NUMBERS = [True, False, "1 2", "many", [1], {}, math.nan, -math.inf, 1j]
NO_SWITCHES = [0, 1, 2, -1.5, "maybe", "1", [], {}]


@pytest.mark.parametrize(("names", "values"), [(NUMBERS, NO_NUMBERS), (SWITCHES, NO_SWITCHES)], ids=["numbers", "switches"])  # fmt: skip
def test_what_is_no_number_or_truth_value_is_refused_for_every_field_of_that_type(names, values):
    for name in names:
        for value in values:
            text = judge(GRPOPlusConfig, {name: value}).problems.get(name, "")
            outside = isinstance(value, float) and math.isinf(value) and name not in RANGES  # is the host's to judge
            assert outside or (text.startswith(f"{name} is ") and "expected" in text), (name, value)


def test_texts_of_numbers_and_truth_values_are_read_as_in_a_file():
    texts = {"learning_rate": "1e-5", "max_steps": "8", "use_cpu": "true", "bf16": "no"}
    assert judge(GRPOPlusConfig, texts).instead == {
        "learning_rate": 1e-5,
        "max_steps": 8,
        "use_cpu": True,
        "bf16": False,
    }


def outside(rule, name):
    """Values just outside the bounds of a field, and far."""
    bounds, whole, found = rule.bounds, float not in kinds_of(name), []
    if bounds.low > -math.inf:
        found += [bounds.low - (1 if whole else 1e-9), bounds.low - 10**6]
        found += [bounds.low] if bounds.open_low else []
    if bounds.high < math.inf:
        found += [bounds.high + (1 if whole else 1e-6), 10**12] + ([bounds.high] if bounds.open_high else [])
    found += [math.inf] if bounds.finite else []
    found += [] if bounds.integer_from is None else [bounds.integer_from + 0.5]
    return [int(value) if whole and math.isfinite(value) else value for value in found if value not in rule.also]


@pytest.mark.parametrize("name", sorted(RANGES))
def test_values_outside_any_range_are_named_with_what_is_allowed(name):
    rule = RANGES[name]
    beside = dict([rule.when] if rule.when else [])
    for value in outside(rule, name):
        text = judge(GRPOPlusConfig, {**beside, name: value}).problems[name]
        assert rule.bounds.words() in text, value
        assert rule.note in text


@pytest.mark.sample(8)
@pytest.mark.parametrize(("values", "expected"), [
    ({"max_steps": 0}, "max_steps is 0, expected at least 1, or -1 for num_train_epochs."),
    ({"top_k": -1}, "top_k is -1, expected at least 0"), ({"num_generations": None}, "num_generations is None, expected an integer."),
    ({"save_steps": 1.5}, "save_steps is 1.5, expected a whole number of at least 1, or a fraction below 1"),
    ({"loss_type": "dr-grpo"}, "Did you mean 'dr_grpo'?"), ({"scale_rewards": "sum"}, "expected one of 'group', 'batch', 'none'."),
    ({"reward_weights": ["1"]}, "expected a list of numbers."), ({"reward_weights": 1.0}, "expected a list of numbers."),
    ({"generation_kwargs": "top_h"}, "generation_kwargs is 'top_h', expected a mapping"),
    ({"generation_kwargs": {1: 2}}, "generation_kwargs is {1: 2}, expected a mapping"),
    ({"run_name": ["a"]}, "run_name is ['a'], expected text."), ({"label_names": [3]}, "expected a list of texts."),
    ({"num_generations": 2.5}, "num_generations is 2.5, expected an integer."), ({"learning_rate": 10**400}, "learning_rate is 1000"),
    ({"engine": "fast"}, "'layout' is 'fast', expected one of 'auto', 'packed', 'trimmed', 'stock'."),
    ({"rollout": "autoo"}, "Did you mean 'auto'?"), ({"engine": {"tokens_per_pass": 0}}, "expected a positive integer or nothing"),
])  # fmt: skip
def test_each_wrong_value_says_what_is_allowed(values, expected):
    assert expected in "\n".join(problems(**values))


@pytest.mark.parametrize("values", [
    {"save_steps": -1, "save_strategy": "no", "logging_steps": None, "logging_strategy": "no", "top_k": -1}
    | {"use_vllm": True, "max_grad_norm": math.inf, "epsilon_high": math.inf, "learning_rate": 0},
    {"save_steps": None, "save_strategy": "epoch", "num_train_epochs": 0, "max_steps": 3, "save_total_limit": 0}
    | {"gradient_checkpointing": None, "learning_rate": np.float32(1e-5), "num_generations": np.int64(4)},
    {"lr_scheduler_type": "cosine_with_restarts", "lr_scheduler_kwargs": '{"num_cycles": 2}', "fsdp": False}
    | {"scale_rewards": False, "report_to": ["none"], "output_dir": __import__("pathlib").Path("out")},
    {"torch_compile_mode": "lite"}, {"reward_weights": (1.0, 2)},
], ids=lambda values: f"{values}"[:60])  # fmt: skip
def test_what_the_host_takes_is_taken(values):
    GRPOConfig(**BASE | values)
    GRPOPlusConfig(**BASE | values)


def test_completions_of_any_length_are_refused_where_the_loss_divides_by_the_limit():
    constant = {"objective": {"name": "grpo", "reduce": "constant"}}
    for loss in ({"loss_type": "dr_grpo"}, {"objective": "dr_grpo"}, constant):
        (problem,) = problems(max_completion_length=None, **loss)
        assert all(words in problem for words in ("needs max_completion_length", "divides by it"))
    own = {"objective": {"name": "dr_grpo", "length": 64}}
    assert GRPOPlusConfig(**BASE, max_completion_length=None, **own).max_completion_length is None


def test_values_of_other_types_become_those_of_the_field():
    config = GRPOPlusConfig(**BASE, max_steps=1e3, num_generations=8.0)
    assert (config.max_steps, config.num_generations) == (1000, 8)
    assert type(config.max_steps) is type(config.num_generations) is int
    assert GRPOPlusConfig(**BASE, reward_weights=(1, 0.5)).reward_weights == [1.0, 0.5]
    assert GRPOPlusConfig(**BASE, use_vllm=None).use_vllm is False  # where off is the default
    for value in (["full_shard"], ["full_shard", "auto_wrap"], []):
        assert not judge(GRPOPlusConfig, {"fsdp": value}).problems


def test_types_are_those_of_the_class_even_after_a_parser_was_made():
    TrlParser((GRPOPlusConfig,))
    assert GRPOPlusConfig(**BASE, generation_kwargs={"top_h": 0.4}).generation_kwargs == {"top_h": 0.4}
    assert "expected a list of numbers." in "\n".join(problems(reward_weights=["1"]))


@pytest.mark.parametrize("given", [{"use_transformers_paged": True}, {"use_transformers_continuous_batching": True}])
def test_continuous_batching_excludes_our_rollout_under_either_name(given):
    if next(iter(given)) not in FIELDS:
        pytest.skip("this host has no such name")
    (problem,) = problems(rollout="auto", **given)
    assert "rollout does not go with how ('auto'): use_transformers_" in problem
    assert "draws completions elsewhere" in problem


def test_a_value_under_its_old_name_is_seen_by_every_check():
    with pytest.warns(FutureWarning):
        assert GRPOPlusConfig(**BASE, vllm_importance_sampling_cap=2.0).vllm_importance_sampling_clip_max == 2.0
    both = {"vllm_importance_sampling_cap": 2.0, "vllm_importance_sampling_clip_max": 5.0}
    (problem,) = problems(**both)
    assert "vllm_importance_sampling_cap (2.0) is the old name of vllm_importance_sampling_clip_max (5.0)" in problem
    config = GRPOPlusConfig(**BASE, activation_checkpointing=False)
    assert config.gradient_checkpointing is False


def test_old_names_are_those_that_the_host_calls_deprecated():
    deprecated = {name for name, spec in FIELDS.items() if "deprecated" in str(spec.metadata.get("help", "")).lower()}
    assert {name for name in deprecated if name.startswith(("use_transformers", "vllm_"))} <= set(RENAMED_FIELDS)
