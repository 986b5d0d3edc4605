"""Tools and environments by name and by reference, as the model sees them, and every way in which one is none."""

from functools import partial

import pytest
from transformers.utils import get_json_schema

from grpo_verifiers import environment, get_environment, get_tool, tool
from grpo_verifiers.errors import DuplicateNameError, KeywordError, UnknownNameError
from grpo_verifiers.registry import import_reference
from grpo_verifiers.tools.registry import ENVIRONMENTS, TOOLS, duplicate_names

FILE = r'''
from typing import Annotated, Literal
from grpo_verifiers.options import Range
def add(a: int, b: int = 1) -> int:
    """Add two numbers.\n\nArgs:\n    a: The first.\n    b: The second.\n\nReturns:\n    Their sum."""
    return a + b
def scaled(
    unit: Literal["m", "km"], value: float, places: int = 2, *, factor: Annotated[float, Range(0)] = 1.0, folder: str
) -> str:
    """Scale a value.\n\nArgs:\n    unit: Its unit.\n    value: The value.\n    places: How many."""
class Counter:
    def __init__(self, start: int = 0): self.count = start
    def __call__(self, by: int) -> int:
        """Count on.\n\nArgs:\n    by: How far."""
        self.count += by
        return self.count
class Base:
    def look(self) -> str:
        """Look around."""
class Game(Base):
    def __init__(self, *, size: Annotated[int, Range(1)] = 3): self.size = size
    def reset(self, goal, seed=0, **columns): return None
    def move(self, to: Literal["left", "right"]) -> str:
        """Move on.\n\nArgs:\n    to: Where."""
    def look(self) -> str: return "a wall"
    @staticmethod
    def helper(x): pass
    def _hidden(self, x): pass
    def get_reward(self): return 1.0
    def state_key(self): return 0
class Other:
    def reset(self, **columns): return None
    def add(self, a: int) -> int:
        """Add.\n\nArgs:\n    a: A number."""
class NoReset:
    def __init__(self, size: int = 1): ...
    def move(self, to): ...
class EmptyReset: reset = lambda self: None
class ByPlace: reset = lambda self, *columns: None
class NotCalled: pass
def bad(a, c: int, *more) -> str:
    """Nothing.\n\nArgs:\n    a: A thing."""
def silent(a: int): return a
def undescribed(a: int):
    """Nothing."""
def odd(a: object):
    """Odd.\n\nArgs:\n    a: A thing."""
async def waits():
    """Wait."""
value = 3
'''


@pytest.fixture
def file(tmp_path):
    (tmp_path / "my_tools.py").write_text(FILE)
    return lambda name, find=get_tool, **given: find(f"./my_tools.py:{name}", base=tmp_path, **given)


def loaded(part):
    return import_reference(part.reference)


def error_of(call):
    with pytest.raises(KeywordError) as caught:
        call()
    return str(caught.value)


def test_functions_and_classes_have_the_schema_that_transformers_makes_of_them(file, tmp_path):
    part = file("add")
    assert part.reference == f"{(tmp_path / 'my_tools.py').resolve()}:add"
    assert (part.label, part.kind, part.timeout, part.kwargs) == ("add", "function", 10.0, {})
    assert [method.name for method in part.methods] == ["add"]
    assert part.methods[0].schema == get_json_schema(loaded(part))
    part = file("Counter", start=2)
    assert (part.kind, part.kwargs, part.methods[0].name) == ("class", {"start": 2}, "Counter")
    by = {"type": "integer", "description": "How far."}
    assert part.methods[0].schema["function"]["parameters"]["properties"] == {"by": by}
    schema = file("scaled", folder="a", value=2.5, timeout=3).methods[0].schema["function"]
    assert list(schema["parameters"]["properties"]) == ["unit", "places"]
    assert schema["parameters"]["required"] == ["unit"]
    unit = {"type": "string", "enum": ["m", "km"], "description": "Its unit."}
    assert (schema["parameters"]["properties"]["unit"], schema["description"]) == (unit, "Scale a value.")
    part = file("scaled", folder="a", label="rescale", timeout=3)
    assert part.methods[0].schema["function"]["name"] == part.methods[0].name == part.label == "rescale"
    assert part.timeout == 3.0


def test_an_environment_shows_what_trl_shows_of_an_instance(file):
    part = file("Game", get_environment, size=5)
    game = loaded(part)()
    shown = [("look", get_json_schema(game.look)), ("move", get_json_schema(game.move))]
    assert [(method.name, method.schema) for method in part.methods] == shown
    assert part.methods[0].schema["function"]["description"] == "Look around."
    assert (part.kind, part.columns, part.label) == ("environment", ("goal",), "Game")
    assert (part.rewards, part.turn_rewards, part.states) == (True, False, True)


def test_what_is_no_tool_says_why_and_all_problems_come_together(file):
    for name, find, words in [
        *(("silent", get_tool, "no docstring"), ("odd", get_tool, "Couldn't convert the type hint")),
        *(("waits", get_tool, "async"), ("value", get_tool, "is 3 (int), expected a function")),
        *(("NotCalled", get_tool, "no method __call__"), ("add", get_environment, "expected a class")),
        *(
            ("NoReset", get_environment, "no method reset"),
            ("NoReset", get_environment, "move because it has no docstring"),
        ),
        ("EmptyReset", get_environment, "reset takes no columns"),
        ("ByPlace", get_environment, "reset takes columns by place"),
    ]:
        assert words in error_of(partial(file, name, find))
    words = ["keyword 'folder' is required and missing", "factor", "unknown keyword 'fold'. Did you mean 'folder'?", "timeout is 0", "label is 'no name'"]  # fmt: skip
    said = error_of(lambda: file("scaled", factor=-1, fold="x", timeout=0, label="no name"))
    assert [word for word in words if word not in said] == []
    assert "size" in error_of(lambda: file("Game", get_environment, size=0))
    assert "unknown keyword 'start'" in error_of(lambda: file("Other", get_environment, start=0))
    assert "takes *more" in error_of(lambda: file("bad"))
    assert "no description for the argument 'a'" in error_of(lambda: file("undescribed"))
    with pytest.raises(UnknownNameError, match="Did you mean 'calculator'"):
        get_tool("calculater")

    def local() -> str:
        """Local."""
        return ""

    assert "put it at the top level of a file" in error_of(lambda: get_tool(local))
    add, again = file("add"), file("add", label="plus")
    game, other = (file(name, get_environment) for name in ("Game", "Other"))
    assert duplicate_names([add, again, file("Counter")], [game]) == []
    assert "'add' is the name of another tool" in duplicate_names([add, add])[0]
    assert "environment 'Other': 'add' is the name of another tool" in duplicate_names([add], [game, other])[0]
    assert duplicate_names([again], [game, other]) == []
    assert "both called 'Game' in metrics" in duplicate_names([], [game, file("Game", get_environment, size=4)])[0]


def test_decorators_leave_what_they_register_and_references_find_it(tmp_path):
    (tmp_path / "plug.py").write_text(
        "from grpo_verifiers import environment, tool\n"
        "@tool('plugged', timeout=2)\ndef shout(text: str) -> str:\n"
        "    '''Shout.\n\n    Args:\n        text: What.\n    '''\n    return text.upper()\n"
        "@environment('den', timeout=4)\nclass Den:\n    def reset(self, **columns): ...\n"
    )
    try:
        by_path = get_tool("./plug.py:shout", base=tmp_path)
        assert get_tool("plugged") == by_path
        assert (by_path.timeout, by_path.methods[0].name, loaded(by_path)("a")) == (2.0, "shout", "A")
        assert (get_environment("den").timeout, get_environment("den").methods) == (4.0, ())
        assert TOOLS.way("plugged") == "registered"
        with pytest.raises(DuplicateNameError, match="calculator"):
            tool("calculator")(loaded(by_path))
        with pytest.raises(KeywordError, match="expected a class"):
            environment("f")(loaded(by_path))
        with pytest.raises(KeywordError, match="timeout is -1"):
            tool("f", timeout=-1)
        with pytest.raises(TypeError, match="needs a name"):
            tool(loaded(by_path))
    finally:
        TOOLS.unregister("plugged")
        ENVIRONMENTS.unregister("den")


def test_a_tools_registry_imports_no_transformers(python):
    code = (
        "import sys\nfor name in ('torch', 'trl', 'transformers'): sys.modules[name] = None\n"
        "from grpo_verifiers import get_tool\nfrom grpo_verifiers.tools.registry import TOOLS\n"
        "print(TOOLS.get('calculator').fn('1/4'))\n"
        "try: get_tool('calculator')\nexcept TypeError as error: print(error)"
    )
    done = python(code)
    assert done.stdout.startswith("0.25\n")
    assert "is derived by transformers, which is not installed" in done.stdout
