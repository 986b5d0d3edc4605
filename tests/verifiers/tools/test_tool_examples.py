"""The tools and the game of the README keep their contract."""

import re
from pathlib import Path

from grpo_verifiers.testing.tools import check_environment, check_tool

README = Path(__file__).parents[3] / "verifiers/README.md"


def test_the_examples_of_the_readme_keep_their_contract(tmp_path, monkeypatch):
    section = README.read_text().partition("## Tools and environments\n")[2].partition("\n## ")[0]
    code, test = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    (tmp_path / "my_tools.py").write_text(code)
    monkeypatch.chdir(tmp_path)
    names = {"check_tool": check_tool, "check_environment": check_environment}
    exec(test + "test_my_tools()\n", names)
