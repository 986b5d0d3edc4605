"""What the README and the pages say of commands and of parts is what the project has."""

import subprocess
import sys

from grpo_plus.advantages import advantages
from grpo_plus.objectives import objectives
from grpo_verifiers.verifying import REGISTRY


def test_the_two_commands_of_the_readme(examples):
    for which, expected in (("run", "examples/quickstart.yaml"), ("tests", "-m pytest")):
        command = [sys.executable, str(examples.parent / ".ci" / "readme"), which]
        (line,) = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout.splitlines()
        assert line.startswith("python3 -m venv .venv && .venv/bin/pip install")
        assert expected in line
        assert "sudo" not in line


def test_the_pages_name_every_built_in_estimator_objective_and_verifier(examples):
    for page, registry in {"advantages": advantages, "objectives": objectives, "verifiers": REGISTRY}.items():
        text = (examples.parent / "docs" / f"{page}.md").read_text(encoding="utf-8")
        names = {entry.name for entry in registry.entries() if entry.way == "built-in"}
        assert len(names) > 10
        assert {name for name in names if f"`{name}`" not in text} == set(), page
