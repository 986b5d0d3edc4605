"""CONTRIBUTING.md is followed to the letter in a copy of the sources: every part of it works and keeps its contract."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE, HOOKS = ROOT / "CONTRIBUTING.md", ROOT / "docs" / "hooks.md"
pytestmark = pytest.mark.skipif(not PAGE.exists(), reason="the sources are not here")
COPIED = (
    *("grpo_plus", "verifiers", "docs", "examples", "tests/packaging", "tests/objectives", "tests/advantages"),
    *("tests/verifiers", "tests/selection"),
)
FILES = ("pyproject.toml", *(f"tests/{path.name}" for path in (ROOT / "tests").glob("*.py")))
BLOCK = re.compile(
    r"^```(?:python|markdown)\n# (\S+?)(?:, (below|in the table of): ([^\n]*))?\n(.*?)^```$", re.MULTILINE | re.DOTALL
)

TESTS = """
tests/packaging/test_formulas.py tests/packaging/test_parts.py tests/advantages tests/verifiers/test_verifier_kit.py
tests/selection/test_selection_kit.py tests/objectives/test_objective_kit.py tests/test_hook.py tests/test_field.py
"""
CHOSEN = "midrange or the_built_ins or saturating or last_word or learnable or new or hook or has_golden or left_out"
TEST_OF_THE_HOOK = """
import json
from types import SimpleNamespace

import torch

from my_hook import TokenPrice
from grpo_plus.training.hooks import Completions


def test_a_hook_changes_rewards_and_keeps_its_state():
    hook, again = TokenPrice(0.5), TokenPrice()
    hook.host = SimpleNamespace(accelerator=SimpleNamespace(gather=lambda tensor: tensor))
    rewards = hook.scored(Completions([], [], ["a", "b"], [[1, 2], [3]]), torch.tensor([[1.0, 0.0], [2.0, float("nan")]]))
    assert rewards.nan_to_num(9).tolist() == [[0.0, -1.0], [1.5, 9.0]]
    again.load_state_dict(json.loads(json.dumps(hook.state_dict())))
    again.load_tensors(hook.tensors())
    assert (again.price, again.longest.tolist()) == (0.5, [1, 2])
"""
TEST_OF_THE_FIELD = """
import pytest

from grpo_plus import GRPOPlusConfig

BASE = {"output_dir": "out", "use_cpu": True, "bf16": False, "report_to": "none"}


def test_the_new_field_has_a_default_a_range_and_flags():
    assert GRPOPlusConfig(**BASE).patience is None
    assert GRPOPlusConfig(**BASE, patience=3).patience == 3
    for wrong in (0, "often"):
        with pytest.raises(ValueError, match="patience is"):
            GRPOPlusConfig(**BASE, patience=wrong)


def test_keywords_of_the_new_parts_are_flags_and_have_ranges():
    from trl import TrlParser

    flags = ["--advantage", "midrange", "--advantage.gain", "2", "--objective", "grpo", "--objective.bound", "2"]
    given = ["--output_dir", "out", "--use_cpu", "true", "--bf16", "false", "--report_to", "none", *flags]
    (config,) = TrlParser((GRPOPlusConfig,)).parse_args_and_config([*given, "--objective.surrogate", "saturating"])
    assert (config.advantage, config.objective["bound"]) == ({"name": "midrange", "gain": 2}, 2)
    with pytest.raises(ValueError, match="(?s)gain.*bound"):
        GRPOPlusConfig(
            **BASE,
            advantage={"name": "midrange", "gain": 0},
            objective={"name": "grpo", "surrogate": "saturating", "bound": 1},
        )
"""


def put(folder, path, how, where, text):
    """Write a block of the page into the copy: a new file, or lines at the place that it names."""
    file = folder / path
    if how is None:
        assert not (ROOT / path).exists(), f"{path} is there already"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
        return
    lines = file.read_text(encoding="utf-8").splitlines(keepends=True)
    if how == "below":
        (at,) = (number for number, line in enumerate(lines, 1) if line.strip().rstrip(",") == where.rstrip(","))
        at += where.startswith("metadata=")  # the end of the field that it belongs to
    else:
        start = lines.index(f"### {where}\n")
        table = next(number for number in range(start, len(lines)) if lines[number].startswith("|"))
        at = next(number for number in range(table, len(lines)) if not lines[number].startswith("|"))
    file.write_text("".join([*lines[:at], text, *lines[at:]]), encoding="utf-8")


@pytest.mark.slow
def test_every_example_of_the_page_works_where_the_page_says(tmp_path):
    for name in COPIED:
        ignored = shutil.ignore_patterns("__pycache__", "test_contributing.py", "pictures")
        shutil.copytree(ROOT / name, tmp_path / name, ignore=ignored)
    for name in FILES:
        shutil.copy(ROOT / name, tmp_path / name)
    blocks = [each for page in (PAGE, HOOKS) for each in BLOCK.findall(page.read_text(encoding="utf-8"))]
    assert len(blocks) == 16
    for path, how, where, text in blocks:
        put(tmp_path, path, how or None, where, text)
    (tmp_path / "tests" / "test_hook.py").write_text(TEST_OF_THE_HOOK, encoding="utf-8")
    (tmp_path / "tests" / "test_field.py").write_text(TEST_OF_THE_FIELD, encoding="utf-8")
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (tmp_path, tmp_path / "verifiers")))}
    around = {"cwd": tmp_path, "env": env, "capture_output": True, "text": True}
    subprocess.run([sys.executable, "docs/parts/write.py"], **around, check=True)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", CHOSEN, *TESTS.split()]
    run = subprocess.run(command, **around, check=False)
    assert run.returncode == 0, run.stdout[-6000:] + run.stderr[-2000:]
