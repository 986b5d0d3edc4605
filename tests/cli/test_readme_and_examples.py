"""What the README and the example files say is what the project does."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.skipif(not (ROOT / "README.md").exists(), reason="the sources are not here")
EXAMPLES = sorted(path.name for path in (ROOT / "examples").glob("*.yaml"))
CPU = ("--use_cpu", "true", "--bf16", "false", "--fp16", "false", "--report_to", "none")


def blocks(page, language):
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def read(path, *flags):
    from grpo_plus.cli._arguments import parse

    return parse("grpo-plus train", [str(path), *CPU, *flags])


@pytest.mark.slow
@pytest.mark.parametrize("name", EXAMPLES)
def test_every_example_config_can_be_read(name, monkeypatch):
    monkeypatch.chdir(ROOT)
    parsed = read(ROOT / "examples" / name)
    assert parsed.model.model_name_or_path
    assert parsed.training.output_dir
    assert parsed.script.dataset_name


def test_the_two_commands_of_the_readme():
    for which, expected in (("run", "examples/quickstart.yaml"), ("tests", "-m pytest")):
        command = [sys.executable, str(ROOT / ".ci" / "readme"), which]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
        (line,) = done.stdout.splitlines()
        assert line.startswith("python3 -m venv .venv && .venv/bin/pip install")
        assert expected in line
        assert "sudo" not in line


def test_the_verifier_of_the_page_rejects_what_it_should(tmp_path, monkeypatch):
    from grpo_verifiers.testing import check_verifier

    text = blocks("verifiers.md", "python")[0]
    (tmp_path / re.match(r"# (\w+\.py)\n", text)[1]).write_text(text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    sums = {"answer": "4"}
    check_verifier("./my_verifiers.py:even_digits", accept=[("so 4", sums)], reject=[("", sums), ("3, so 4", sums)])


def built_in_names(registry):
    return {entry.name for entry in registry.entries() if entry.way == "built-in"}


def test_the_pages_name_every_built_in_estimator_objective_and_verifier():
    from grpo_plus.advantages import advantages
    from grpo_plus.objectives import objectives
    from grpo_verifiers.verifying import REGISTRY

    pages = {"advantages.md": advantages, "objectives.md": objectives, "verifiers.md": REGISTRY}
    for page, registry in pages.items():
        text = (ROOT / "docs" / page).read_text(encoding="utf-8")
        names = built_in_names(registry)
        assert len(names) > 10
        assert {name for name in names if f"`{name}`" not in text} == set(), page
