"""Ways with dead groups that a config asks for: defaults, every problem, and what may surprise."""

import pytest

from grpo_plus import GRPOPlusConfig
from grpo_plus.recipe.notes import config_notes
from grpo_verifiers.errors import ConfigError
from tests.device import FLOAT32

BASE = {"output_dir": "unused", **FLOAT32, "report_to": "none", "per_device_train_batch_size": 8}
STEPS = {"verifiers": ["math_steps"], "advantage": "process"}


def config(**settings):
    return GRPOPlusConfig(**BASE, **{"num_generations": 4, "dead_groups": "roulette", **settings})


@pytest.mark.parametrize(("size", "after"), [(3, 2), (4, 2), (8, 2), (11, 2), (16, 4)])
def test_roulette_looks_after_a_quarter_of_the_completions(size, after):
    made = GRPOPlusConfig(**BASE | {"per_device_train_batch_size": size}, num_generations=size, dead_groups="roulette")
    assert made.recipe.dead_groups_kwargs == {"after": after, "keep": 0.25}


def test_the_estimator_that_equals_the_hosts_fields_judges():
    assert config().recipe.advantage.estimator.name == "zscore"
    assert config(dead_groups="resample", scale_rewards="none").recipe.advantage.estimator.name == "center"
    assert config(dead_groups="resample", dead_groups_kwargs={"rounds": 3}).recipe.dead_groups_kwargs == {"rounds": 3}


PROBLEMS = {
    "another way": ({"dead_groups": "drop"}, "dead_groups is 'drop', expected one of 'keep', 'resample', 'roulette',"),
    "keywords of nothing": ({"dead_groups": "keep", "dead_groups_kwargs": {"rounds": 2}}, "nothing would read it"),
    "keywords of the other": ({"dead_groups_kwargs": {"rounds": 2}}, "unknown dead_groups_kwargs 'rounds'"),
    "no round": ({"dead_groups": "resample", "dead_groups_kwargs": {"rounds": 0}}, "'rounds' is 0, expected an"),
    "a coin that never falls": ({"dead_groups_kwargs": {"keep": 0.0}}, "'keep' is 0.0, expected a number of more"),
    "after one": ({"dead_groups_kwargs": {"after": 1}}, "'after' is 1, expected an integer of at least 2"),
    "after all": ({"dead_groups_kwargs": {"after": 4}}, "after is 4, but num_generations is 4, so there is no rest to"),
    "pairs": ({"num_generations": 2}, "num_generations is 2: contrast takes two completions"),
    "one completion": ({"num_generations": 1, "advantage": "raw", "dead_groups": "resample"}, "num_generations is 1:"),
    "too few for the estimator": ({"advantage": "passk", "advantage_kwargs": {"k": 3}}, "too few for the advantage"),
    "too few for a part of a mix": (
        {"advantage": "mix", "advantage_kwargs": {"parts": {"center": 1.0, "passk": 1.0}, "passk": {"k": 2}}},
        "too few for the advantage estimator 'passk', whose advantages would all be 0: its k is 2",
    ),
    "the KL term in the rewards": (
        {"objective": "grpo", "beta": 0.1, "objective_kwargs": {"kl": {"placement": "reward", "estimator": "k1"}}},
        "the KL term is in the rewards (kl placement reward)",
    ),
}


@pytest.mark.parametrize("name", PROBLEMS)
def test_what_cannot_work_is_refused_with_the_way_out(name):
    settings, words = PROBLEMS[name]
    with pytest.raises(ConfigError) as caught:
        config(**settings)
    assert [problem for problem in caught.value.problems if words in str(problem)], caught.value.problems


@pytest.mark.parametrize("keep", [1, 1.0, 0.01])
def test_any_other_chance_is_taken(keep):
    assert config(dead_groups_kwargs={"keep": keep}).recipe.dead_groups_kwargs["keep"] == keep


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"advantage": "batch_whiten"}, "batch_whiten"),
        ({"advantage": "zscore", "advantage_kwargs": {"scale": "batch"}}, "zscore"),
        ({"multi_objective_aggregation": "normalize_then_sum"}, "gdpo"),
        ({"advantage": "zscore"}, None),
        ({"advantage": "batch_whiten", "dead_groups": "keep"}, None),
    ],
)
def test_a_scale_of_the_batch_is_said_to_be_that_of_what_was_drawn(settings, named):
    found = [note for note in config_notes(config(**settings)) if "scale is that of what was drawn" in note]
    assert len(found) == (named is not None)
    assert all(f"{named!r}" in note for note in found)
