"""A verifier entry's own keys are not options of the verifier."""

import pytest
import yaml

from grpo_plus.recipe.entries import read_entries


@pytest.mark.parametrize("key", ["timeout", "label", "columns", "on_error", "weight", "name", "isolation"])
def test_a_key_of_the_entry_inside_its_kwargs_is_named(key):
    entries, problems = read_entries([{"name": "math", "kwargs": {key: 1}}])
    assert entries == []
    assert problems == [
        f"verifiers[0] (math): {key} stands in kwargs, but is a key of the entry itself: move it one level up."
    ]


def test_isolation_is_a_key_of_the_entry():
    (entry,), problems = read_entries([yaml.safe_load("{name: exact, isolation: process}")])
    assert problems == []
    assert entry.build().describe()["isolation"] == "process"


@pytest.mark.parametrize("weight", [1e39, -1e39, 10**400, float("nan"), float("-inf"), True, "1"])
def test_a_weight_that_float32_does_not_hold_is_a_problem_of_the_entry(weight):
    entries, (problem,) = read_entries([{"name": "math", "weight": weight}])
    assert entries == []
    assert problem.startswith(f"verifiers[0] (math): weight is {weight!r}, expected a finite number")


@pytest.mark.parametrize(
    ("entry", "policy"),
    [("{name: math}", "zero"), ("{name: math, on_error: null}", "null"), ('{name: math, on_error: "null"}', "null"),
     ("{name: math, on_error: ~}", "null"), ("{name: math, on_error: zero}", "zero")],
)  # fmt: skip
def test_a_null_without_quotes_is_the_policy_of_that_name(entry, policy):
    (read,), problems = read_entries([yaml.safe_load(entry)])
    assert problems == []
    assert read.build().describe()["on_error"] == policy


@pytest.mark.parametrize("label", ["\x00", "a\nb", "\ud800", " ", "x" * 300, 3])
def test_a_label_that_no_table_can_show_is_a_problem_of_the_entry(label):
    entries, (problem,) = read_entries([{"name": "math", "label": label}])
    assert entries == []
    assert problem.startswith("verifiers[0] (math): label is ")
