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
