"""A mutant in a copy of the repository, and its tests in a process that is forked from one with everything imported."""

import contextlib
import ctypes
import gc
import importlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import types
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]

from benchmarks.mutants import recorder
from benchmarks.mutants.coverage_map import CoverageMap, Test, seconds
from benchmarks.mutants.mutate import Mutant
from benchmarks.processes import forked

ENVIRONMENT = {
    "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1", "WANDB_MODE": "disabled", "CUDA_VISIBLE_DEVICES": "",
    "GRPO_PLUS_SAME_EXAMPLES": "1",
}  # fmt: skip
WARM = (
    "torch", "trl.trainer.grpo_trainer", "peft", "datasets", "transformers.models.qwen2.modeling_qwen2", "sympy",
    "transformers.models.llama.modeling_llama", "transformers.integrations.bitsandbytes", "pandas", "bitsandbytes",
    "transformers.generation.utils", "accelerate", "math_verify", "httpx", "yaml", "rich", "cloudpickle", "jsonschema",
    "hypothesis", "xdist", "pytest",
)  # fmt: skip
"""Imported once. Nothing of ours: each process must import the mutated source."""
OURS = ("grpo_plus", "grpo_verifiers", "benchmarks", "tests")
FORKS = hasattr(os, "fork")
_SUBREAPER, _PARENT_DEATH, _NEW_MOUNTS = 36, 1, 0x20000
_PRIVATE, _BIND, _READ_ONLY = 0x44000, 0x1000, 0x1021
_MISSING = 4
"""The exit status of pytest where a test of that name is not there."""


def warm() -> None:
    """Import what all tests import."""
    os.environ.update(ENVIRONMENT)
    for name in WARM:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    gc.collect()
    gc.freeze()


def make_copy(root: Path, commit: str, copy: Path) -> None:
    """Clone a commit; the repository itself stays as it is."""
    for words in (["clone", "-q", "--shared", "--no-checkout", root, copy], ["-C", copy, "checkout", "-q", commit]):
        subprocess.run(["git", *map(str, words)], check=True, capture_output=True)
    subprocess.run([sys.executable, "-m", "compileall", "-q", "grpo_plus", "verifiers"], cwd=copy, check=True)


def environment(copy: Path) -> dict[str, str]:
    """Variables for processes that run a copy, mutated or not."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "COV", "GRPO_PLUS_"))}
    paths = [str(copy), str(copy / "verifiers"), *filter(None, [os.environ.get("PYTHONPATH")])]
    return kept | ENVIRONMENT | {"PYTHONPATH": os.pathsep.join(paths)}


class Judge:
    """Runs the nearest tests of mutants in one copy."""

    def __init__(self, lines: CoverageMap, copy: Path, budget: float, passing: set[str]) -> None:
        self._map, self._copy, self._budget, self._passing = lines, copy, budget, passing
        self._folder = copy.with_name(f"{copy.name}-files")

    def judge(self, mutant: Mutant, serial: int) -> dict[str, Any]:
        """How a mutant's tests end. A test that fails alone without the mutant is named and does not count."""
        excluded: set[str] = set()
        passed: set[str] = set()
        begun, left = time.monotonic(), self._budget
        while True:
            tests = self._map.nearest(mutant, left, excluded | passed)
            with self._mutated(mutant, serial):
                status, failed = self._tests(tests) if tests else ("survived" if passed else "untested", None)
            took = time.monotonic() - begun
            left = self._budget - took
            answer = {"status": status, "by": failed, "tests": len(passed) + len(tests), "seconds": took}
            if status == "survived" and tests and left > 0.2 * self._budget:  # they were quicker than the map says
                passed |= {test.name for test in tests}
                continue
            if status in {"survived", "untested"} or failed in self._passing:
                return answer | {"excluded": sorted(excluded)}
            suspects = [test for test in tests if failed in {test.name, test.file}][:1] or tests
            again, wrong = self._tests(suspects)
            if again == "survived":
                return answer | {"excluded": sorted(excluded)}
            excluded |= {test.name for test in suspects if wrong in {None, test.name, test.file}}
            begun, left = time.monotonic(), self._budget

    @contextlib.contextmanager
    def _mutated(self, mutant: Mutant, serial: int) -> Iterator[None]:
        """The copy with the mutant. The time of the file is one of its own, so no compiled one of before fits it."""
        path = self._copy / mutant.file
        source, times = path.read_bytes(), path.stat()
        try:
            path.write_bytes(mutant.applied(source))
            os.utime(path, (times.st_atime, int(times.st_mtime) - 1000 - serial))
            yield
        finally:
            path.write_bytes(source)
            os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))

    def _tests(self, tests: Sequence[Test]) -> tuple[str, str | None]:
        """Run tests up to the first that fails; survived, found or time, and that test."""
        names = [test.name for test in tests]
        record, code = self._folder / "record.jsonl", None
        for chosen in (names, list(dict.fromkeys(name.partition("[")[0] for name in names))):
            shutil.rmtree(self._folder, ignore_errors=True)
            (self._folder / "tmp").mkdir(parents=True)
            record.touch()
            variables = environment(self._copy) | {"MUTANTS_RECORD": str(record), "TMPDIR": str(self._folder / "tmp")}
            options = ["-x", "-q", "-p", "no:cacheprovider", f"--basetemp={self._folder / 'base'}"]
            code = self._pytest([*options, *chosen], variables, limit=20 + 4 * seconds(tests))
            if code != _MISSING:  # else: a mutant has changed parameters, so the whole functions are run
                break
        ends = [(name, outcome) for name, outcome, _ in map(json.loads, record.read_text().splitlines())]
        failed = next((name for name, outcome in ends if outcome == "failed"), None)
        return ("time", None) if code is None else ("survived" if code in {0, 5} else "found", failed)

    def _pytest(self, arguments: list[str], variables: dict[str, str], limit: float) -> int | None:
        """The exit status of pytest, None where it takes too long. Nothing that it started is left."""
        with (self._folder / "log.txt").open("wb") as log:
            if FORKS:
                child = forked(lambda: self._in_child(arguments, variables, log.fileno()))
                wait: Callable[[], int | None] = lambda: _ended(child)  # noqa: E731
            else:
                command = [sys.executable, "-m", "pytest", "-p", "benchmarks.mutants.recorder", *arguments]
                wait = subprocess.Popen(command, cwd=self._copy, env=variables, stdout=log, stderr=log).poll
            end, code = time.monotonic() + limit, None
            while code is None and time.monotonic() < end:
                time.sleep(0.02)
                code = wait()
            end_children()
        return code

    def _in_child(self, arguments: list[str], variables: dict[str, str], log: int) -> int:
        """Run pytest in this process, as if it had begun in the copy."""
        import pytest

        for number, file in enumerate((os.open(os.devnull, os.O_RDONLY), log, log)):
            os.dup2(file, number)
        os.environ.clear()
        os.environ.update(variables)
        os.chdir(self._copy)
        for name in [one for one in sys.modules if one.partition(".")[0] in OURS]:
            del sys.modules[name]
        sys.path[:] = [str(self._copy), str(self._copy / "verifiers"), *sys.path[1:]]  # the first: where it began
        sys.modules["__main__"] = types.ModuleType("__main__")
        sys.argv[:] = ["pytest"]
        importlib.invalidate_caches()
        return int(pytest.main(["-W", "ignore::pytest.PytestAssertRewriteWarning", *arguments], plugins=[recorder]))


def _ended(child: int) -> int | None:
    found, status = os.waitpid(child, os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if found else None


def end_children() -> None:
    """End all processes below this one."""
    while below := psutil.Process().children(recursive=True):
        for one in below:
            with contextlib.suppress(psutil.NoSuchProcess):
                one.kill()
        psutil.wait_procs(below, timeout=1)
        with contextlib.suppress(ChildProcessError, AttributeError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass


def together(
    jobs: Iterable[tuple[Mutant, int]], judges: Sequence[Judge], folder: Path, passing: set[str]
) -> Iterator[tuple[Mutant, dict[str, Any]]]:
    """Judge mutants, one a copy at a time, each in a process that collects what its tests leave behind."""
    if not FORKS:
        yield from ((mutant, judges[0].judge(mutant, serial)) for mutant, serial in jobs)
        return
    free, waiting = list(judges), iter(jobs)
    running: dict[int, tuple[Judge, Mutant, Path]] = {}
    try:
        while True:
            while free and (job := next(waiting, None)) is not None:
                judge, answer = free.pop(), folder / f"answer_{job[1]}.json"
                running[_supervised(judge, *job, answer)] = judge, job[0], answer
            if not running:
                return
            child, status = os.wait()
            if child in running:
                judge, mutant, answer = running.pop(child)
                free.append(judge)
                if status:
                    raise RuntimeError(f"{mutant.file}:{mutant.line}: its tests could not be run, see above")
                found = json.loads(answer.read_text(encoding="utf-8"))
                passing |= {found["by"]} - {None}
                yield mutant, found
    finally:
        for child in running:
            os.kill(child, signal.SIGTERM)
            os.waitpid(child, 0)


def _protect(*folders: Path) -> None:
    """Make folders read-only for this process where it may: some mutants remove other folders than they should."""
    system = ctypes.CDLL(None)
    if system.unshare(_NEW_MOUNTS) == 0:
        system.mount(b"none", b"/", None, _PRIVATE, None)
        for folder in map(os.fsencode, folders):
            system.mount(folder, folder, None, _BIND, None)
            system.mount(None, folder, None, _READ_ONLY, None)


def _supervised(judge: Judge, mutant: Mutant, serial: int, answer: Path) -> int:
    parent = os.getpid()

    def end(*_: object) -> None:
        end_children()
        os._exit(1)

    def work() -> int:
        signal.signal(signal.SIGTERM, end)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        if sys.platform == "linux":  # orphans become its children, and it ends with its parent
            ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0)
            ctypes.CDLL(None).prctl(_PARENT_DEATH, signal.SIGTERM, 0, 0, 0)
            _protect(Path(__file__).parents[2], Path(sys.prefix))
        if os.getppid() == parent:
            answer.write_text(json.dumps(judge.judge(mutant, serial)), encoding="utf-8")
        return 0

    return forked(work, session=False)
