"""The command that makes mutants: each kind of change, what is never changed, the draw, bad options."""

import ast
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("benchmarks", reason="the sources are not here")
from benchmarks.mutants.__main__ import main
from benchmarks.mutants.drawing import draw, entry, equivalents, files_of, room_of
from benchmarks.mutants.mutate import mutants
from tests import started

ROOT = Path(__file__).parents[2]
KINDS = [
    ("x = (a  # - b\n) + é", {"x = (a  # - b\n) - é"}),
    ("x = é if a >= b else c", {f"x = é if {test} else c" for test in ("a > b", "(not (a >= b))", "True", "False")}),
    ("x = a and b or not c", {"x = a or b or not c", "x = a and b and not c", "x = a and b or (c)"}),
    ("x += a ** 2", {"x -= a ** 2", "x = a ** 2", "x += a * 2", "x += a ** 3", "x += a ** 1"}),
    ("_MOST = 60.5", {"_MOST = 0"}),
    ("x = f(True, k='m')", {"x = f(False, k='m')", "x = f(True, k='m_')"}),
    ("x = f(a, 0.5)", {"x = f(0.5, a)", "x = f(a, 1.0)"}),
    ("x = max(a, b, -1, -c)", {"x = max(a, b, -2, -c)", "x = max(a, b, -1, (c))"}),
    ("while a:\n    b(c)\n", {"while (not (a)):\n    b(c)\n", "while False:\n    b(c)\n", "while a:\n    pass\n"}),
    ("def f():\n    return (\n        a\n    )\n", {"def f():\n    return (\n        None\n    )\n"}),
]
UNCHANGED = '''
__all__ = ["one", "two"]
def f(x: Literal["a"] = None) -> Annotated[int, 3]:
    """A docstring."""
    y: Range(1)
    raise ValueError(f"{x + 1} is not " + str(x - 1))
if TYPE_CHECKING:
    x = 1
if a + b:  # pragma: no cover
    x = 1
x = f"{a + 1}"
assert x == 1
'''
TESTS = """import os
from grpo_plus.engine.a import f
def test_f():
    assert f(1)
def test_not_alone():
    assert f(9) in {True, False} and "PYTEST_XDIST_WORKER" in os.environ
"""


@pytest.mark.parametrize(("source", "changed"), [*KINDS, (UNCHANGED, set())])
def test_each_kind_changes_its_span_only_and_texts_are_left(source, changed):
    found = {one.applied(source.encode()).decode() for one in mutants("a.py", source.encode())}
    assert found == changed
    assert all(ast.parse(one) for one in found)


def test_the_draw_is_one_mutant_a_line_in_every_room_and_the_same_of_a_seed():
    rooms = {room: files[:3] for room, files in files_of(ROOT).items() if room in {"engine", "maths", "grpo_plus/cli"}}
    lines = SimpleNamespace(runs=lambda mutant: mutant.line % 2)
    drawn = draw(rooms, lines, ROOT, 30, seed=1)
    assert len({(one.file, one.line) for one in drawn if one.line % 2}) == len(drawn) == 30
    assert {room_of(one.file) for one in drawn} == rooms.keys()
    assert drawn == draw(rooms, lines, ROOT, 30, seed=1) != draw(rooms, lines, ROOT, 30, seed=2)


def test_declared_mutants_are_there():
    files = {file for file, _, _ in equivalents()}
    assert equivalents() <= {entry(one, ROOT) for file in files for one in mutants(file, (ROOT / file).read_bytes())}


@pytest.fixture
def repository(tmp_path):
    """The command in a small repository with a test that fails alone."""
    shutil.copytree(ROOT / "benchmarks/mutants", tmp_path / "benchmarks/mutants")
    texts = {"grpo_plus/engine/a.py": "def f(a):\n    return a + 1 < 3\n", "tests/test_a.py": TESTS}
    texts |= {".gitignore": "__pycache__/", "pyproject.toml": "[tool.pytest.ini_options]"}
    for file, text in ({"grpo_plus/__init__.py": "", "verifiers/grpo_verifiers/__init__.py": ""} | texts).items():
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text(text)
    for words in ("init -q", "add .", "-c user.name=a -c user.email=a commit -qm a"):
        subprocess.run(["git", *words.split()], cwd=tmp_path, check=True)
    return tmp_path


@pytest.mark.nightly
def test_mutants_are_judged(repository, clean_environment, tmp_path_factory):
    command = [sys.executable, "-m", "benchmarks.mutants", "--only", "grpo_plus/engine/a.py:2", "--tests="]
    command += ["--map", tmp_path_factory.mktemp("map") / "map"]
    done = started.run(command, cwd=repository, env=clean_environment, capture_output=True, text=True, check=False)
    ends = dict(line.split(": ")[2:4] for line in done.stderr.splitlines() if "a.py:2" in line)
    found = {change for change, end in ends.items() if end.startswith("found by tests/test_a.py::test_f")}
    assert found == {"1 → 2", "3 → 2", "a + 1 < 3 → None"}, done.stderr
    assert ends.keys() - found == {"1 → 0", "3 → 4", "< → <=", "+ → -"}
    assert "run alone: tests/test_a.py::test_not_alone" in done.stdout
    assert not subprocess.run(["git", "status", "--porcelain"], cwd=repository, capture_output=True, check=True).stdout


@pytest.mark.parametrize("arguments", ["--rooms attic", "--only grpo_plus/engine/a.py:top", "--count 0", ""])
def test_bad_options_are_named(arguments, repository, capsys, monkeypatch):
    (repository / "grpo_plus/b.py").touch()
    monkeypatch.setattr("benchmarks.mutants.__main__.ROOT", repository)
    assert main(arguments.split()) == 2
    message = capsys.readouterr().err
    assert all(word in message for word in arguments.split() or ["HEAD", "grpo_plus/b.py"])
