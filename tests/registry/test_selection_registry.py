"""Selections of installed packages and of plug-ins."""

import pytest
from trl import TrlParser

from grpo_plus import GRPOPlusConfig
from grpo_plus.recipe.recipe import recipe_of
from grpo_plus.selection import get_selection, selections

BASE = {"output_dir": "out", "use_cpu": True, "bf16": False, "report_to": "none"}
MINE = """
import torch
from grpo_plus import register_selection

@register_selection("longest", weighted=False)
def longest(history, *, power: float = 1.0):
    '''Long prompts first.'''
    return torch.tensor([float(len(prompt)) for prompt in history.columns["prompt"]]) ** power
"""


@pytest.fixture(autouse=True)
def forgotten():
    yield
    selections.unregister("longest")


def test_an_installed_package_brings_a_selection(tmp_path, monkeypatch):
    (tmp_path / "long_prompts.py").write_text("def by_length(history):\n    return history.rows\n")
    folder = tmp_path / "long_prompts-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: long-prompts\nVersion: 1.0\n")
    (folder / "entry_points.txt").write_text("[grpo_plus.selection]\nby_length = long_prompts:by_length\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert selections.way("by_length") == "entry point"
    assert get_selection("by_length").weighted


def test_a_plug_in_brings_a_selection_with_flags_and_a_default(tmp_path):
    (tmp_path / "mine.py").write_text(MINE)
    chosen = {"plugins": [str(tmp_path / "mine.py")], "selection": {"name": "longest", "power": 2}}
    recipe = recipe_of(GRPOPlusConfig(**BASE, **chosen))
    assert (recipe.selection.selection.formula, recipe.selection.keywords) == ("Long prompts first", {"power": 2})
    assert not recipe.selection.weighted
    assert recipe.origins["selection"] == "registered"


def test_keywords_of_built_in_selections_are_flags():
    given = ["--output_dir", "out", "--use_cpu", "true", "--bf16", "false", "--report_to", "none"]
    flags = ["--selection", "contrast", "--selection.explore", "0.25", "--selection.weighted", "false"]
    (config,) = TrlParser((GRPOPlusConfig,)).parse_args_and_config([*given, *flags])
    assert config.selection == {"name": "contrast", "explore": 0.25, "weighted": False}
