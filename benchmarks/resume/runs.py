"""Child processes by fork from a parent that has imported everything: each run is its own session and process group."""

import ctypes
import importlib
import json
import os
import signal
import socket
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.processes import forked
from benchmarks.resume.places import Kill
from benchmarks.resume.scenarios import Scenario

HUNG = 120.0
"""Seconds after which a run counts as hung."""
GONE = 10.0
"""Seconds within which nothing of a killed run may be left."""
_SUBREAPER = 36
WARM = (
    "trl", "peft", "datasets", "transformers.models.qwen2.modeling_qwen2", "transformers.models.llama.modeling_llama",
    "transformers.integrations.bitsandbytes", "transformers.generation.utils", "transformers.trainer", "pandas",
    "bitsandbytes", "grpo_plus.trainer", "grpo_plus.config", "grpo_plus.testing.tiny", "grpo_plus.report.write",
    "benchmarks.resume.watch", "benchmarks.resume.compare",
)  # fmt: skip


def warm() -> None:
    """Import what every run imports, without starting a thread."""
    for name in WARM:
        importlib.import_module(name)


def _answered(work: Callable[[], Any], answer: Path) -> None:
    answer.write_text(json.dumps(work()))


def together(jobs: Iterable[tuple[Any, Callable[[], Any]]], folder: Path, width: int) -> Iterator[tuple[Any, Any]]:
    """Do jobs in processes, so many at a time; gives each name with what its job returned, in order of completion."""
    running: dict[int, tuple[Any, Path]] = {}
    waiting = iter(enumerate(jobs))
    while True:
        while len(running) < width and (job := next(waiting, None)) is not None:
            number, (name, work) = job
            answer = folder / f"answer_{number}.json"
            running[forked(partial(_answered, work, answer))] = name, answer
        if not running:
            return
        child, status = os.wait()
        if child in running:
            name, answer = running.pop(child)
            if status:
                raise RuntimeError(f"{name}: see above")
            yield name, json.loads(answer.read_text())


def run(
    scenario: Scenario, model: Path, folder: Path, kills: Sequence[Kill] = (), *, stock: bool = False
) -> str | None:
    """Train to the end, killed at each of ``kills`` and resumed, from a job's process; what went wrong, or None."""
    ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0)  # what a killed run leaves behind becomes a child of this process
    folder.mkdir(parents=True)
    for kill in (*kills, None):
        log = folder / "log.txt"
        child = forked(lambda kill=kill: _train(scenario, model, folder, kill, stock=stock), log=log)  # type: ignore[misc]
        status = _wait(child)
        if kill is None or os.WIFEXITED(status):
            if status == 0:
                return _left()
            return f"hung after {HUNG:.0f} s" if status == signal.SIGTERM else f"traceback: {_last_line(log)}"
        if left := _left():
            return left
    return None


def _train(scenario: Scenario, model: Path, folder: Path, kill: Kill | None, *, stock: bool) -> None:
    """The process of one attempt; with several ranks it has the others as children."""
    from benchmarks.resume.watch import train

    own = folder / "tmp"  # what cleans up behind a kill stays while others have folders in the same place
    own.mkdir(exist_ok=True)
    os.environ["TMPDIR"], tempfile.tempdir = str(own), None
    other = 0
    if scenario.ranks == 2:
        with socket.socket() as held:
            held.bind(("127.0.0.1", 0))
            port = held.getsockname()[1]
        os.environ |= {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        os.environ |= {"ACCELERATE_USE_CPU": "true", "RANK": "0", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2"}

        def second() -> None:
            os.environ |= {"RANK": "1", "LOCAL_RANK": "1"}
            train(scenario, folder, model, None, stock=stock, rank=1)

        other = forked(second, session=False)
    train(scenario, folder, model, kill, stock=stock, rank=0)
    if other and os.waitpid(other, 0)[1]:
        raise RuntimeError("the other rank failed")


def _wait(child: int) -> int:
    """The exit status; SIGTERM stands for a run that hangs."""
    end = time.monotonic() + HUNG
    while time.monotonic() < end:
        found, status = os.waitpid(child, os.WNOHANG)
        if found:
            return status
        time.sleep(0.005)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return signal.SIGTERM


def _left() -> str | None:
    """What is still there some seconds after a run has ended."""
    end = time.monotonic() + GONE
    while True:
        try:
            found, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return None
        if found:
            continue
        if time.monotonic() > end:
            return f"{_children()} left behind"
        time.sleep(0.005)


def _children() -> str:
    here = os.getpid()
    pids = Path(f"/proc/{here}/task/{here}/children").read_text().split()
    names = [Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")[:60] for pid in pids]
    for pid in pids:
        os.kill(int(pid), signal.SIGKILL)
    return ", ".join(names)


def _last_line(log: Path) -> str:
    lines = [line for line in log.read_text(errors="replace").splitlines() if line[:1].strip() and "Error" in line]
    return lines[-1][:160] if lines else "nothing said"
