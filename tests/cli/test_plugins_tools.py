"""``grpo-plus plugins`` and tools: in the list, and one by one."""

TOOLS = '''
def ring(times: int, *, bell: str) -> str:
    """Ring the bell.

    Args:
        times: How often.
    """


class Room:
    def reset(self, door, **columns): ...

    def leave(self) -> str:
        """Leave the room."""


def bad(x): ...
'''


def test_tools_and_environments_are_listed_and_shown(cli, tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text(TOOLS)
    monkeypatch.chdir(tmp_path)
    out = cli.done("plugins", "calculator", "./mine.py:ring", "./mine.py:Room", "./mine.py:bad")
    assert "tool calculator" in out
    assert "- `digits`: an integer from 1 to 100 (12)." in out
    assert "- `bell`: a string (required)." in out
    assert '"name": "ring"' in out
    assert "environment Room" in out
    assert '"name": "leave"' in out
    assert "cannot be used: bad: the argument 'x' has no type hint" in out
    out = cli.done("plugins")
    assert "tools" in out
    assert "environments" in out
    assert "search_documents" in out
