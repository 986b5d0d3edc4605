"""The contract kit takes the built-in tools and those of the README, and finds each broken promise of others."""

import re
from functools import partial
from pathlib import Path

import pytest

from grpo_verifiers.testing.tools import check_environment, check_tool

FILE = r'''
import itertools
count = itertools.count()
def drawn(n: int) -> int:
    """Draw.\n\nArgs:\n    n: Of how many."""
    return next(count)
def silent(n: int) -> None:
    """Say nothing.\n\nArgs:\n    n: A number."""
kept = []  # so that no two have one address
def thing(n: int):
    """Give a thing.\n\nArgs:\n    n: A number."""
    kept.append(object())
    return kept[-1]
class Sum:
    """A class made anew for each completion."""
    def __init__(self, start: int = 0): self.total = start
    def __call__(self, n: int) -> int:
        """Add.\n\nArgs:\n    n: A number."""
        self.total += n
        return self.total
class Game:
    def __init__(self, step: int = 1): self.step = step
    def reset(self, goal):
        self.goal, self.at = goal, 0
        return f"reach {goal}"
    def move(self, by: int) -> str:
        """Move.\n\nArgs:\n    by: How far."""
        self.at += by * self.step
        return f"at {self.at}"
    def get_reward(self): return float(self.at == self.goal)
    def get_turn_reward(self): return None
    def state_key(self): return (self.at, self.goal)
class Leftover(Game):
    def reset(self, goal):
        self.goal, self.at = goal, getattr(self, "at", 0)
class Wordy(Game): get_reward = lambda self: "much"
class Endless(Game): get_turn_reward = lambda self: float("inf")
class ObjectKey(Game): state_key = lambda self: object()
class Stepping(Game):
    def state_key(self):
        self.at += 1
        return self.at
class Greeting(Game):
    def reset(self, goal):
        super().reset(goal)
        return [goal]
'''
MOVES = [("move", {"by": 1}), ("move", {"by": 2})]


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "kit_tools.py").write_text(FILE)
    return tmp_path


def broken(call):
    with pytest.raises(AssertionError) as caught:
        call()
    return re.findall(r"^(check_\w+):", str(caught.value), re.MULTILINE)


def test_built_in_tools_classes_and_environments_keep_their_promises(tmp_path, folder):
    (tmp_path / "a.txt").write_text("a pear")
    check_tool("calculator", [{"expression": "1/3"}, {"expression": "2**10"}], digits=5)
    check_tool("search_documents", [{"query": "pear"}, {"query": "fig", "top_k": 2}], folder=str(tmp_path))
    check_tool("./kit_tools.py:Sum", [{"n": 1}, {"n": 2}], base=folder, start=3)
    check_environment("./kit_tools.py:Game", [{"goal": 3, "prompt": "p"}, {"goal": 4}], MOVES, base=folder, step=2)


TOOLS = {"drawn": ["determinism"], "silent": ["results"], "thing": ["results", "determinism"]}
GAMES = {"Leftover": "reset", "Wordy": "reward", "Endless": "reward", "ObjectKey": "state_key", "Stepping": "state_key", "Greeting": "results"}  # fmt: skip


def test_broken_tools_environments_and_calls_are_found(folder):
    for name, broken_checks in TOOLS.items():
        checks = [f"check_{each}" for each in broken_checks]
        assert broken(partial(check_tool, f"./kit_tools.py:{name}", [{"n": 1}], base=folder)) == checks
        check_tool(f"./kit_tools.py:{name}", [{"n": 1}], base=folder, skip=checks)
    for name, check in GAMES.items():
        found = broken(partial(check_environment, f"./kit_tools.py:{name}", [{"goal": 3}], MOVES, base=folder))
        assert found == [f"check_{check}"]
    assert "check_calls_fit" in broken(lambda: check_tool("./kit_tools.py:Sum", [{"n": "1"}], base=folder))
    for said, call in [
        ("a row lacks goal", partial(check_environment, "./kit_tools.py:Game", [{"prompt": "p"}], MOVES, base=folder)),
        ("at least one row", partial(check_environment, "./kit_tools.py:Game", [], MOVES, base=folder)),
        ("at least one call", partial(check_tool, "calculator", [])),
        ("not a check", partial(check_tool, "calculator", [{"expression": "1"}], skip=["check_nothing"])),
    ]:
        with pytest.raises(ValueError, match=said):
            call()


README = Path(__file__).parents[3] / "verifiers/README.md"


def test_the_examples_of_the_readme_keep_their_contract(tmp_path, monkeypatch):
    section = README.read_text().partition("## Tools and environments\n")[2].partition("\n## ")[0]
    code, test = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    (tmp_path / "my_tools.py").write_text(code)
    monkeypatch.chdir(tmp_path)
    names = {"check_tool": check_tool, "check_environment": check_environment}
    exec(test + "test_my_tools()\n", names)
