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


PUBLIC = (
    "grpo_plus.advantages",
    "grpo_plus.objectives",
    "grpo_plus.testing",
    "grpo_verifiers",
    "grpo_verifiers.math",
    "grpo_verifiers.text",
)
SHOWN_ELSEWHERE = {
    "RewardTable",  # `RewardTable.of` has it
    "Estimator",  # what get_advantage returns
    "Objective",  # what build_objective returns
    "Counts",  # the trainer makes the batch and its parts
    "TokenBatch",
    "Targets",
    "make_targets",
    "Metric",
    "Pulls",  # `GroupScores` shows what they are made from
    "Terms",
    "Status",  # a verdict's example shows it
    "Verifier",  # what get_verifier returns
    "fast",  # `math`, before it is sent to a worker
    "make_tiny_model",  # writes a folder
    "parametrize_with_checks",  # decorates a test
}


@pytest.mark.parametrize("name", PUBLIC)
def test_every_public_function_and_value_has_an_example(name):
    module = importlib.import_module(name)
    public = {each: getattr(module, each) for each in module.__all__ if each not in SHOWN_ELSEWHERE}
    without = [
        each
        for each, value in public.items()
        if callable(value)
        and not (isinstance(value, type) and issubclass(value, Exception))
        and ">>> " not in (value.__doc__ or "")
    ]
    assert without == []
