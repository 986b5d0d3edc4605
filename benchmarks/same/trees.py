"""Two trees of the project, and the process that runs jobs under each."""

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from queue import Queue

DRIVER = Path(__file__).with_name("driver.py")
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "PYTHONHASHSEED": "0",
    "CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error", "COLUMNS": "120",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1", "NO_COLOR": "1", "TERM": "dumb", "TORCH_CPP_LOG_LEVEL": "ERROR",
}  # fmt: skip
_PASSED = ("PATH", "HOME", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "VIRTUAL_ENV", "SYSTEMROOT")
_NEEDED = ("grpo_plus", "verifiers", "examples")
_LINES = 12


class TreeError(RuntimeError):
    """A tree that cannot be had, or does not run."""


@dataclass(frozen=True)
class Tree:
    """A version of the project in a folder; ``name`` is what the user called it."""

    name: str
    folder: Path


@contextlib.contextmanager
def trees(base: str, new: str | None, here: Path, room: Path) -> Iterator[tuple[Tree, Tree]]:
    """The old and the new tree, copied into ``room`` for as long as this lasts.

    ``base`` is a revision. ``new`` is a revision or a folder; None: ``here`` with what is not committed.

    Raises:
        TreeError: there is no such tree.
    """
    with contextlib.ExitStack() as stack:
        old = Tree(base, stack.enter_context(_worktree(base, "--base", here, room / "old-tree")))
        if new is None or Path(new).is_dir():
            yield old, Tree(new or "the working tree", _copied(Path(new or here), room / "new-tree"))
        else:
            yield old, Tree(new, stack.enter_context(_worktree(new, "--new", here, room / "new-tree")))


def _copied(source: Path, folder: Path) -> Path:
    """A copy, so that edits and paths of the original make no difference."""
    if lacks := [name for name in _NEEDED if not (source / name).is_dir()]:
        raise TreeError(f"--new {source}: no tree of the project: it has no {', '.join(lacks)}.")
    for name in _NEEDED:
        unwanted = shutil.ignore_patterns("__pycache__", "runs", "*.egg-info")
        shutil.copytree(source / name, folder / name, ignore=unwanted)
    return folder


@contextlib.contextmanager
def _worktree(revision: str, option: str, here: Path, folder: Path) -> Iterator[Path]:
    if shutil.which("git") is None:
        raise TreeError(f"{option} {revision}: git is not installed, or not on PATH.")
    inside = _git(here, "rev-parse", "--show-toplevel")
    if inside.returncode:
        raise TreeError(f"{option} {revision}: {here} is not in a git repository. Run this in a clone of the project.")
    commit = _git(here, "rev-parse", "--verify", "--quiet", f"{revision}^{{commit}}").stdout.strip()
    if not commit:
        raise TreeError(
            f"{option} {revision}: there is no such commit, branch or tag in {here}. See git log, or fetch it."
        )
    made = _git(here, "worktree", "add", "--detach", "--force", str(folder), commit)
    try:
        if made.returncode:
            raise TreeError(f"{option} {revision}: git worktree add failed:\n{made.stderr.strip()}")
        if lacks := [name for name in _NEEDED if not (folder / name).is_dir()]:
            raise TreeError(f"{option} {revision}: that commit has no {', '.join(lacks)}. Name a later one.")
        yield folder
    finally:
        _git(here, "worktree", "remove", "--force", str(folder))


def _git(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["git", "-C", str(folder), *arguments], capture_output=True, text=True, check=False)


class Driver:
    """The process that runs jobs under a tree; what it tells goes into a queue, with the name of its side."""

    def __init__(self, side: str, tree: Tree, home: Path, queue: "Queue[tuple[str, dict[str, Any]]]") -> None:
        self._side, self._tree, self._home, self._queue = side, tree, home, queue
        self._log = home / "driver.log"
        self._process: subprocess.Popen[str] | None = None

    def start(self, jobs: Sequence[Mapping[str, Any]], width: int, *, fork: bool) -> None:
        """Run the jobs, the first before the others, so many at a time."""
        work = self._home / "jobs.json"
        work.write_text(json.dumps({"jobs": jobs, "width": width, "fork": fork}))
        tree, temporary = self._tree.folder, self._home / "tmp"
        temporary.mkdir()
        environment = {
            **{name: os.environ[name] for name in _PASSED if name in os.environ},
            **ENVIRONMENT,
            "PYTHONPATH": os.pathsep.join(map(str, (tree, tree / "verifiers"))),
            "HF_HOME": str(self._home / "huggingface"),
            "TMPDIR": str(temporary),
        }
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-P", str(DRIVER), str(tree), str(work)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=environment,
                cwd=self._home,
                start_new_session=True,
            )
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._queue.put((self._side, json.loads(line)))
        self._queue.put((self._side, {"ended": self._process.wait()}))

    def problem(self, why: str) -> str:
        """What the process said last, under the reason for which it ended."""
        lines = self._log.read_text(errors="replace").splitlines()[-_LINES:]
        return f"the {self._side} tree ({self._tree.name}) does not run: {why}\n" + "\n".join(f"  {x}" for x in lines)

    def stop(self) -> None:
        """End the process and all runs that it has started."""
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(10)
            except subprocess.TimeoutExpired:
                self._process.kill()


def room() -> "tempfile.TemporaryDirectory[str]":
    """A folder for everything, with a short name: it is part of what runs print."""
    return tempfile.TemporaryDirectory(prefix="same-", ignore_cleanup_errors=True)
