"""The map of lines to tests: a run of the tests with coverage, each test a context, in one file of SQLite."""

import hashlib
import json
import os
import re
import shlex
import sqlite3
import subprocess
import sys
from collections.abc import Iterable, Mapping
from contextlib import closing
from functools import cache, reduce
from operator import or_
from pathlib import Path
from typing import NamedTuple

from coverage.numbits import numbits_to_nums

from benchmarks.mutants.mutate import Mutant

CORE = "ctrace"
"""Of coverage: sys.monitoring knows no contexts."""
NEAR = {
    "training": ("trainer", "resume"), "resuming": ("trainer", "resume"), "checkpoints": ("trainer", "resume"),
    "sandbox": ("verifiers/code", "verifiers"), "exec": ("verifiers",), "sampling": ("trainer", "qlora"),
    "recipe": ("trainer", "registry"), "testing": ("packaging",), "sweep": ("cli",), "base": ("registry", "verifiers"),
    "redaction": ("cli", "verifiers"), "reading": ("verifiers",), "judge": ("verifiers",), "errors": ("verifiers",),
}  # fmt: skip
"""Folders of tests of rooms without one of their own name."""
OTHER_PROCESSES = re.compile("verifiers/grpo_verifiers/(sandbox|code|exec|tools)/(?!.*ray_)")
"""Where whole files run in processes that coverage does not see. Those for Ray run nowhere without it."""
PATIENCE = 900
"""Seconds after which a test hangs; with coverage, on a busy machine, the limit of the project is soon reached."""
MOST = 1000
"""Tests of a mutant."""
FILE_SECONDS = 0.5
"""Time that a further file of tests takes to be imported and collected."""
SHARE = "import coverage, io, sys; c = coverage.Coverage(sys.argv[1], config_file=sys.argv[2]); c.load(); "


class Test(NamedTuple):
    """A test that passes without a mutant, and how many lines it runs."""

    name: str
    seconds: float
    lines: int

    @property
    def file(self) -> str:
        """The file it is in."""
        return self.name.partition("::")[0]


def path_of(root: Path, commit: str, tests: str) -> Path:
    """Where a map is kept: commits of equal product, tests and selection share it."""
    trees = [f"{commit}:{name}" for name in ("grpo_plus", "verifiers", "tests", "pyproject.toml")]
    found = subprocess.run(["git", "rev-parse", *trees], cwd=root, capture_output=True, text=True, check=True).stdout
    cached = Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser()
    return cached / "grpo_plus" / "mutants" / f"{hashlib.sha256(f'{found}{tests}'.encode()).hexdigest()[:16]}.sqlite"


def make(path: Path, copy: Path, variables: Mapping[str, str], tests: str, jobs: int) -> None:
    """Run the tests in a copy and write the map."""
    folder = copy.with_name("map")
    folder.mkdir()
    settings, data, record = folder / "settings.ini", folder / "lines", folder / "record.jsonl"
    source = "source = grpo_plus, grpo_verifiers\nrelative_files = true"
    settings.write_text(f"[run]\n{source}\ncore = {CORE}\ndata_file = {data}\n")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "benchmarks.mutants.recorder", "-p", "no:cacheprovider"]
    command += ["-n", str(jobs), "--dist", "worksteal", f"--timeout={PATIENCE}", f"--basetemp={folder / 'base'}"]
    environment = {**variables, "MUTANTS_RECORD": str(record), "MUTANTS_COVERAGE": str(settings)}
    command += shlex.split(tests)
    code = subprocess.run(command, cwd=copy, env=environment, check=False, stdout=sys.stderr).returncode
    if code not in {0, 1} or not record.exists():
        raise ValueError(
            f"--tests {tests!r}: pytest ended with {code} (see above), expected arguments that choose tests."
        )
    combine = [sys.executable, "-m", "coverage", "combine", "-q", f"--rcfile={settings}"]
    subprocess.run(combine, cwd=copy, check=True)
    seconds: dict[str, float] = {}
    outcomes: dict[str, set[str]] = {}
    for name, outcome, took in map(json.loads, record.read_text(encoding="utf-8").splitlines()):
        seconds[name] = seconds.get(name, 0.0) + took
        outcomes.setdefault(name, set()).add(outcome)
    share = [sys.executable, "-c", f"{SHARE}print(c.report(file=io.StringIO()))", str(data), str(settings)]
    covered = float(subprocess.run(share, cwd=copy, capture_output=True, text=True, check=True).stdout)
    with closing(sqlite3.connect(data)) as base, base:
        lines: dict[str, int] = {}
        for context, bits in base.execute(
            "SELECT context, numbits FROM line_bits JOIN context ON context.id = context_id"
        ):
            lines[context] = lines.get(context, 0) + int.from_bytes(bits, "little").bit_count()
        base.execute("CREATE TABLE tests (name TEXT, seconds REAL, lines INTEGER, failed INTEGER)")
        base.executemany(
            "INSERT INTO tests VALUES (?, ?, ?, ?)",
            [
                (name, seconds[name], lines.get(name, 0), "failed" in found)
                for name, found in sorted(outcomes.items())
                if "failed" in found or "skipped" not in found
            ],
        )
        base.execute("CREATE TABLE share AS SELECT ? AS covered", (covered,))
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(f".{os.getpid()}")
    partial.write_bytes(data.read_bytes())
    partial.replace(path)


class CoverageMap:
    """Which tests run a line."""

    def __init__(self, path: Path, root: Path) -> None:
        self._base = sqlite3.connect(path)
        rows = self._base.execute("SELECT name, seconds, lines FROM tests WHERE NOT failed ORDER BY name").fetchall()
        self.tests = [Test(*row) for row in rows]
        self._numbers = {test.name: number for number, test in enumerate(self.tests)}
        self.failed = [name for (name,) in self._base.execute("SELECT name FROM tests WHERE failed ORDER BY name")]
        self.covered: float = self._base.execute("SELECT covered FROM share").fetchone()[0]
        self.files = [name for (name,) in self._base.execute("SELECT path FROM file ORDER BY path")]
        self.by_line = cache(self._by_line)
        self.text = cache(lambda file: (root / file).read_text(encoding="utf-8"))

    def _by_line(self, file: str) -> dict[int, int]:
        """The tests that run each line of a file, as bits; lines that run while tests are collected have none."""
        found: dict[int, int] = {}
        query = "SELECT context, numbits FROM line_bits JOIN context ON context.id = context_id "
        for context, bits in self._base.execute(query + "JOIN file ON file.id = file_id WHERE path = ?", (file,)):
            number = self._numbers.get(context)
            for line in numbits_to_nums(bits):
                found[line] = found.get(line, 0) | (0 if number is None else 1 << number)
        return found

    def unseen(self, file: str) -> bool:
        """Whether a file mostly runs in processes that coverage does not see."""
        tested = sum(map(bool, self.by_line(file).values()))
        return bool(OTHER_PROCESSES.match(file)) and tested < 0.25 * self.text(file).count("\n")

    def runs(self, mutant: Mutant) -> bool:
        """Whether tests run a mutant's line, as far as coverage sees its file at all."""
        by_line = self.by_line(mutant.file)
        tested = any(map(by_line.get, mutant.lines)) if mutant.lines else mutant.line in by_line
        return tested or self.unseen(mutant.file)

    def nearest(self, mutant: Mutant, budget: float, without: set[str]) -> list[Test]:
        """Tests for a mutant, the most specific first, spread over functions, of so many seconds together."""
        by_line = self.by_line(mutant.file)
        covering = _any(by_line.get(line, 0) for line in mutant.lines)
        for files in ([mutant.file], self.files):
            covering = covering or _any(self._of_name(name, file) for name in mutant.names for file in files)
        covering = covering or _any(by_line.values())
        rooms = mutant.file.removeprefix("verifiers/").split("/")[1:-1]
        above = "verifiers/" if mutant.file.startswith("verifiers/") else ""
        folders = tuple(f"tests/{one}/" for room in rooms for one in (f"{above}{room}", *NEAR.get(room, ())))
        stem = Path(mutant.file).stem.strip("_")

        def order(test: Test) -> tuple[bool, bool, float]:
            return stem not in test.file, not test.file.startswith(folders), test.lines * (0.1 + test.seconds)

        known = [test for number, test in enumerate(self.tests) if covering >> number & 1 and test.name not in without]
        known.sort(key=order)
        chosen = _within((test for test in known if not all(order(test)[:2])), 0.6 * budget)
        taken = without | {test.name for test in chosen}
        rest = [test for test in known if test.name not in taken]
        rest.sort(key=lambda test: not all(order(test)[:2]))  # of other folders first
        if not chosen or self.unseen(mutant.file):
            taken |= {test.name for test in rest}
            near = [test for test in self.tests if test.name not in taken and test.file.startswith(folders)]
            rest += sorted(near, key=lambda test: (stem not in test.file, test.seconds))
        return (chosen + _within(rest, budget - seconds(chosen)))[:MOST]

    def _of_name(self, name: str, file: str) -> int:
        """The tests that run lines of a file with a name in them."""
        if name not in self.text(file):
            return 0
        rows = enumerate(self.text(file).splitlines(), start=1)
        lines = [number for number, row in rows if re.search(rf"\b{re.escape(name)}\b", row)]
        return _any(self.by_line(file).get(line, 0) for line in lines)


def seconds(tests: Iterable[Test]) -> float:
    """Time that tests take without a mutant."""
    found = list(tests)
    return sum(test.seconds for test in found) + FILE_SECONDS * len({test.file for test in found})


def _any(bits: Iterable[int]) -> int:
    return reduce(or_, bits, 0)


def _within(tests: Iterable[Test], budget: float) -> list[Test]:
    """Tests within a budget: in rounds, each takes the next of every test function."""
    functions: dict[str, list[Test]] = {}
    for test in tests:
        functions.setdefault(test.name.partition("[")[0], []).append(test)
    rounds = (cases[turn] for turn in range(MOST) for cases in functions.values() if turn < len(cases))
    chosen: list[Test] = []
    files: set[str] = set()
    for test in rounds:
        cost = test.seconds + (test.file not in files) * FILE_SECONDS
        if cost <= budget or not chosen:
            chosen.append(test)
            files.add(test.file)
            budget -= cost
    return chosen
