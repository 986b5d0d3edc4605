"""Types, ranges and words of every field: what is inside builds, what is outside is named in the one report."""

import dataclasses
import math
import re
import typing

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from trl import GRPOConfig, ModelConfig, TrlParser

from grpo_plus import GRPOPlusConfig, _trl
from grpo_plus.cli._arguments import GROUPS
from grpo_plus.recipe.ranges import RULES, judge
from grpo_verifiers.errors import ConfigError
from grpo_verifiers.options import Range
from tests.trainer.conftest import BASE

FIELDS = {spec.name: spec for spec in dataclasses.fields(GRPOPlusConfig) if spec.init}
HINTS = typing.get_type_hints(GRPOPlusConfig)
OURS_ALONE = re.findall(
    r"\w+",
    "hacking_monitor stop_on critic reward_model advantage objective verifiers eval_verifiers plugins advantage_kwargs "
    "dead_groups_kwargs selection selection_kwargs objective_kwargs",
)


def kinds_of(name):
    return set(typing.get_args(HINTS[name])) or {HINTS[name]}


NUMBERS = sorted(name for name in FIELDS if kinds_of(name) <= {int, float, type(None)})
SWITCHES = sorted(name for name in FIELDS if kinds_of(name) <= {bool, type(None)})
RANGES = {
    name: rule.bounds
    for rule in reversed(RULES)  # of several, the first is the narrower one
    for name in rule.names.split()
    if name in NUMBERS and rule.bounds
}
BESIDE = {
    "logging_steps": {"logging_strategy": "steps"}, "save_steps": {"save_strategy": "steps"},
    "eval_steps": {"eval_strategy": "steps", "per_device_eval_batch_size": 8}, "dataloader_prefetch_factor": {"dataloader_num_workers": 1},
    "engine_tokens_per_pass": {}, "rollout_rows": {"rollout": "auto"}, "report_steps": {"record": True},
}  # fmt: skip
"""What a value needs beside it."""


def problems(**values):
    with pytest.raises(ConfigError) as caught:
        GRPOPlusConfig(**BASE | values)
    return caught.value.problems


def refused(name, value, **beside):
    found = [text for text in problems(**beside | {name: value}) if text.startswith(f"{name} is ")]
    assert len(found) == 1, (name, value, found)
    assert "\n" not in found[0]
    assert "expected" in found[0]
    return found[0]


def test_every_default_passes_and_is_left_as_it_is():
    values = {name: spec.default for name, spec in FIELDS.items() if spec.default is not dataclasses.MISSING}
    assert judge(GRPOPlusConfig, values) == judge(GRPOPlusConfig, {})
    values = {spec.name: spec.default for spec in dataclasses.fields(ModelConfig)}
    assert not judge(ModelConfig, values).problems


def test_every_number_of_the_host_has_a_range():
    covered = {name for rule in RULES if rule.bounds for name in rule.names.split()}
    assert sorted(set(NUMBERS) - covered) == []


def test_every_name_of_the_table_is_a_field_of_a_supported_host():
    known = {spec.name for group in GROUPS for spec in dataclasses.fields(group)}
    assert sorted({name for rule in RULES for name in rule.names.split()} - known) == []


NO_NUMBERS = [True, False, "12", "many", [1], {}, math.nan, -math.inf, 1j]
NO_SWITCHES = [0, 1, 2, -1.5, "false", "yes", [], {}]
EVERY = [
    (name, value)
    for names, values in ((NUMBERS, NO_NUMBERS), (SWITCHES, NO_SWITCHES))
    for name in names
    for value in values
]


def test_what_is_no_number_or_truth_value_is_refused_for_every_field_of_that_type():
    for name, value in EVERY:
        text = judge(GRPOPlusConfig, {**BESIDE.get(name, {}), name: value}).problems[name]
        assert text.startswith(f"{name} is "), (name, value)
        assert "expected" in text, (name, value)


@pytest.mark.sample(20, 60)
@pytest.mark.parametrize(("name", "value"), EVERY, ids=str)
def test_what_is_of_another_type_is_one_problem_of_the_config(name, value):
    refused(name, value, **{k: v for k, v in BESIDE.get(name, {}).items() if k != name})


@pytest.mark.sample(15, 30)
@pytest.mark.parametrize("name", sorted(set(FIELDS).difference(OURS_ALONE)))
def test_nothing_is_accepted_or_named_for_every_field(name):
    judged = judge(GRPOPlusConfig, {name: None})
    if judged.problems:
        assert refused(name, None) == judged.problems[name]
    else:
        GRPOPlusConfig(**BASE | {name: None})


def outside(bounds, name):
    """Values just outside the bounds of a field, and far."""
    whole, found = float not in kinds_of(name), []
    if bounds.low > -math.inf:
        found += [bounds.low - (1 if whole else 1e-9), -1e9 if not whole else int(bounds.low) - 10**6]
        found += [bounds.low] if bounds.open_low else []
    if bounds.high < math.inf:
        found += [bounds.high + (1 if whole else 1e-6), 10**12] + ([bounds.high] if bounds.open_high else [])
    found += [math.inf] if bounds.finite else []
    found += [] if bounds.whole_from is None else [bounds.whole_from + 0.5]
    return [int(value) if whole and math.isfinite(value) else value for value in found]


def test_values_outside_any_range_are_named_with_what_is_allowed():
    for name, bounds in RANGES.items():
        values = outside(bounds, name)
        assert values, name
        for value in values:
            text = judge(GRPOPlusConfig, {**BESIDE.get(name, {}), name: value}).problems[name]
            assert bounds.words() in text or "integer" in text, (name, value)


STEPS = st.sampled_from([0.1, 0.5, 1, 2, 500])
EXAMPLES = {
    **dict.fromkeys(("save_steps", "logging_steps", "eval_steps"), STEPS), "per_device_train_batch_size": st.sampled_from([8, 16, 24]),
    "num_generations": st.sampled_from([2, 4, 8]), "num_generations_eval": st.integers(1, 64),
    "generation_batch_size": st.sampled_from([8, 16, 64]), "vllm_importance_sampling_clip_min": st.floats(0, 2.9),
    "vllm_importance_sampling_clip_max": st.floats(0.1, 100),
}  # fmt: skip
"""Where one value depends on another."""


def inside(name):
    if name in EXAMPLES:
        return EXAMPLES[name]
    bounds = RANGES[name]
    low, high = max(bounds.low, -1e6), min(bounds.high, 1e6)
    if float not in kinds_of(name):
        return st.integers(int(low), int(high))
    numbers = st.floats(low, high, exclude_min=bounds.open_low, exclude_max=bounds.open_high)
    return st.one_of(numbers, st.integers(math.ceil(low), math.floor(high))).filter(bounds.holds)


@pytest.mark.sample(0, 12)
@pytest.mark.parametrize("name", sorted(RANGES))
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_values_inside_a_range_build_as_they_build_with_the_host(name, data):
    value = data.draw(inside(name))
    beside = dict(BESIDE.get(name, {}))
    config = GRPOPlusConfig(**BASE | beside | {name: value})
    if name in GRPOConfig.__dataclass_fields__:
        host = GRPOConfig(**BASE | {key: v for key, v in beside.items() if key != "rollout"} | {name: value})
        assert getattr(config, name) == getattr(host, name) == value


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_several_wrong_fields_are_all_in_one_report(data):
    names = data.draw(st.lists(st.sampled_from(sorted(RANGES)), min_size=2, max_size=6, unique=True))
    values, beside = {}, {}
    for name in names:
        values[name] = data.draw(st.sampled_from(outside(RANGES[name], name)))
        beside |= {key: value for key, value in BESIDE.get(name, {}).items() if key not in names}
    found = problems(**beside | values)
    for name, value in values.items():
        conditions = [rule.when[0] for rule in RULES if rule.when and name in rule.names.split()]
        if not set(conditions) & set(names):  # num_train_epochs is not read beside max_steps
            assert any(text.startswith(f"{name} is {value!r}") for text in found), (name, found)


@pytest.mark.sample(18)
@pytest.mark.parametrize(("values", "expected"), [
    ({"max_steps": 0}, "max_steps is 0, expected at least 1, or -1 for num_train_epochs."),
    ({"top_k": -1}, "top_k is -1, expected at least 0"),
    ({"save_steps": 1.5}, "save_steps is 1.5, expected a whole number of at least 1, or a fraction below 1"),
    ({"optim": "adamm"}, "optim is 'adamm', expected one of"), ({"lr_scheduler_type": "cosin"}, "Did you mean 'cosine'?"),
    ({"eval_strategy": "sometimes"}, "expected one of 'no', 'steps', 'epoch'."),
    ({"save_strategy": 3}, "save_strategy is 3, expected one of"), ({"loss_type": "dr-grpo"}, "Did you mean 'dr_grpo'?"),
    ({"log_level": "loud"}, "log_level is 'loud', expected one of"), ({"report_to": ["tensorbord"]}, "Did you mean 'tensorboard'?"),
    ({"cache_implementation": "stattic"}, "Did you mean 'static'?"), ({"vllm_mode": "serve"}, "Did you mean 'server'?"),
    ({"reward_weights": [1.0, math.inf]}, "expected a finite number."), ({"reward_weights": ["1"]}, "expected a list of numbers."),
    ({"reward_weights": 1.0}, "expected a list of numbers."), ({"pad_to_multiple_of": 0}, "pad_to_multiple_of is 0, expected at least 1."),
    ({"generation_kwargs": "top_h"}, "expected a mapping, or the JSON text of one."),
    ({"accelerator_config": "nowhere.json"}, "expected a mapping, or the path of a file."),
    ({"run_name": ["a"]}, "run_name is ['a'], expected text."), ({"label_names": [3]}, "expected a list of texts."),
    ({"num_generations": 2.5}, "num_generations is 2.5, expected an integer."),
    ({"learning_rate": 10**400}, "expected at least 0 and finite."),
])  # fmt: skip
def test_each_wrong_value_says_what_is_allowed(values, expected):
    assert expected in "\n".join(problems(**values))


@pytest.mark.parametrize("values", [
    {"save_steps": -1, "save_strategy": "no", "logging_steps": None, "logging_strategy": "no", "top_k": -1}
    | {"use_vllm": True, "max_grad_norm": math.inf, "epsilon_high": math.inf, "learning_rate": 0},
    {"save_steps": None, "save_strategy": "epoch", "num_train_epochs": 0, "max_steps": 3, "save_total_limit": 0}
    | {"gradient_checkpointing": None, "learning_rate": np.float32(1e-5), "num_generations": np.int64(4)},
    {"lr_scheduler_type": "cosine_with_restarts", "lr_scheduler_kwargs": '{"num_cycles": 2}', "fsdp": False}
    | {"log_completions": np.bool_(True), "scale_rewards": False, "report_to": ["none"]},
    {"pad_to_multiple_of": "8"}, {"torch_compile_mode": "lite"}, {"reward_weights": (1.0, 2)}, {"reward_weights": np.array([1.0, 2.0])},
    {"reward_weights": torch.tensor([1.0, 2.0])},
], ids=lambda values: f"{values}"[:60])  # fmt: skip
def test_what_the_host_takes_is_taken(values):
    annotation = GRPOConfig.__dataclass_fields__["pad_to_multiple_of"].type
    if "pad_to_multiple_of" in values and "str" not in str(annotation):
        pytest.skip("an older host takes a number only")
    GRPOConfig(**BASE | values)
    GRPOPlusConfig(**BASE | values)


def test_completions_of_any_length_are_refused_where_the_loss_divides_by_the_limit():
    constant = {"objective": "grpo", "objective_kwargs": {"reduce": "constant"}}
    for loss in ({"loss_type": "dr_grpo"}, {"objective": "dr_grpo"}, constant):
        (problem,) = problems(max_completion_length=None, **loss)
        assert all(words in problem for words in ("max_completion_length is None", "divides by it"))
    own = {"objective": "dr_grpo", "objective_kwargs": {"length": 64}}
    assert GRPOPlusConfig(**BASE, max_completion_length=None, **own).max_completion_length is None


def test_what_no_float_path_or_mapping_can_be_is_refused():
    for name in ("epsilon", "epsilon_high", "delta", "max_grad_norm", "off_policy_mask_threshold"):
        GRPOPlusConfig(**BASE | {name: math.inf})
        refused(name, 10**400)
    for name in ("accelerator_config", "fsdp_config"):
        assert "or the path of a file" in "\n".join(problems(**{name: "x" * 100_000}))
    mappings = [
        name for name in set(FIELDS).difference(OURS_ALONE) if any(typing.get_origin(k) is dict for k in kinds_of(name))
    ]
    for name in mappings:
        for value in (np.array([1, 2]), torch.tensor([1, 2]), np.array(3.0)):
            assert "expected a mapping" in judge(GRPOPlusConfig, {name: value}).problems[name]
    assert len(mappings) > 4


def test_values_of_other_types_become_those_of_the_field():
    config = GRPOPlusConfig(**BASE, max_steps=1e3, num_generations=8.0)
    assert (config.max_steps, config.num_generations) == (1000, 8)
    assert type(config.max_steps) is type(config.num_generations) is int
    for weights in ((1, 0.5), np.array([1.0, 0.5]), torch.tensor([1.0, 0.5])):
        assert GRPOPlusConfig(**BASE, reward_weights=weights).reward_weights == [1.0, 0.5]
    assert GRPOPlusConfig(**BASE, use_vllm=None).use_vllm is False  # where off is the default
    refused("use_bias_correction_kl", None)
    for value in (["full_shard"], ["full_shard", "auto_wrap"], []):
        assert not judge(GRPOPlusConfig, {"fsdp": value}).problems
    assert judge(GRPOPlusConfig, {"fsdp": [3]}).problems


def test_types_are_those_of_the_class_even_after_a_parser_was_made():
    TrlParser((GRPOPlusConfig,))
    assert GRPOPlusConfig(**BASE, generation_kwargs={"top_h": 0.4}).generation_kwargs == {"top_h": 0.4}
    assert "expected a list of numbers." in "\n".join(problems(reward_weights=["1"]))


@pytest.mark.parametrize(("bounds", "inside", "outside", "words"), [
    (Range(0, 1), [0, 1, 0.5], [-0.1, 1.1], "at least 0 and at most 1"),
    (Range(0, 1, open_low=True, open_high=True), [0.5], [0, 1], "more than 0 and less than 1"),
    (Range(finite=True), [-1e300, 0], [math.inf, -math.inf, 10**400], "a finite number"),
    (Range(1, finite=True), [1], [0, math.inf], "at least 1 and finite"), (Range(0, whole_from=1), [0.5, 1, 2, 0], [1.5, -1], "at least 0"),
])  # fmt: skip
def test_bounds(bounds, inside, outside, words):
    assert all(bounds.holds(value) for value in inside)
    assert not any(bounds.holds(value) for value in outside)
    assert bounds.words() == words


@pytest.mark.parametrize("given", [{"use_transformers_paged": True}, {"use_transformers_continuous_batching": True}])
def test_continuous_batching_excludes_our_rollout_under_either_name(given):
    if next(iter(given)) not in FIELDS:
        pytest.skip("this host has no such name")
    (problem,) = problems(rollout="auto", **given)
    assert "rollout is 'auto', but use_transformers_" in problem
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
    assert {name for name in deprecated if name.startswith(("use_transformers", "vllm_"))} <= set(_trl.OLD_NAMES)
