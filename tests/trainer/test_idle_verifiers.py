"""Verifiers that no row names are refused before training."""

import pytest

from grpo_verifiers.errors import ConfigError


def routed(sums, *kinds):
    return sums.add_column("kind", [kinds[row % len(kinds)] for row in range(len(sums))])


VERIFIERS = {"verifiers": ["exact", "numeric", "think_format"], "verifier_column": "kind"}


def test_a_verifier_that_no_row_names_is_refused(build, sums):
    rows = routed(sums, "exact", "exact", "exact", "numeric")
    with pytest.raises(ConfigError) as refused:
        build(trainer={"train_dataset": rows, "reward_funcs": None}, **VERIFIERS)
    text = str(refused.value)
    assert "no row names 'think_format'" in text
    assert "remove it from verifiers, or correct the rows" in text


def test_several_are_named_together_and_a_stranger_is_said_first(build, sums):
    with pytest.raises(ConfigError, match="no row names 'numeric', 'think_format':"):
        build(trainer={"train_dataset": routed(sums, "exact")}, **VERIFIERS)
    with pytest.raises(ConfigError) as refused:
        build(trainer={"train_dataset": routed(sums, "exact", "numric")}, **VERIFIERS)
    assert "Did you mean 'numeric'?" in str(refused.value)
    assert "no row names" not in str(refused.value)
    sets = {"train_dataset": routed(sums, "exact", "numeric"), "eval_dataset": routed(sums, "think_format")}
    build(trainer={**sets, "reward_funcs": None}, **VERIFIERS)  # rows of an evaluation count too
