"""Every example in a docstring is run as it stands."""

import doctest
import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def modules_with_examples():
    for root, package in ((ROOT, "grpo_plus"), (ROOT / "verifiers", "grpo_verifiers")):
        for path in sorted((root / package).rglob("*.py")):
            if ">>> " in path.read_text(encoding="utf-8"):
                yield ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__")


@pytest.mark.slow
@pytest.mark.parametrize("name", list(modules_with_examples()))
def test_examples_of_docstrings_give_what_they_show(name):
    found = doctest.testmod(importlib.import_module(name))
    assert found.attempted
    assert not found.failed


PUBLIC = ("grpo_plus.advantages", "grpo_plus.objectives", "grpo_plus.testing")
PUBLIC += ("grpo_verifiers", "grpo_verifiers.math", "grpo_verifiers.text")
SHOWN_ELSEWHERE = {"RewardTable", "Estimator", "Objective", "Verifier", "Status"}
"""`RewardTable.of` has its example, what is looked up by name that of `get_advantage` and its like, a verdict the status."""
SHOWN_ELSEWHERE |= {"Counts", "TokenBatch", "Targets", "make_targets", "Metric", "Pulls", "Terms"}
"""The trainer makes the batch and its parts."""
SHOWN_ELSEWHERE |= {"fast", "make_tiny_model", "parametrize_with_checks"}
"""`math`, before it is sent to a worker; writes a folder; decorates a test."""


@pytest.mark.parametrize("name", PUBLIC)
def test_every_public_function_and_value_has_an_example(name):
    module = importlib.import_module(name)
    public = {each: getattr(module, each) for each in module.__all__ if each not in SHOWN_ELSEWHERE}
    silent = {each: value for each, value in public.items() if callable(value) and ">>> " not in (value.__doc__ or "")}
    assert [n for n, value in silent.items() if not (isinstance(value, type) and issubclass(value, Exception))] == []
