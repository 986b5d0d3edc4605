"""Checks in processes of their own, side by side where cores and the card's memory allow, each with its limits."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil

from benchmarks.gpu.check import GIB, Check
from benchmarks.gpu.results import Result

PATIENCE = 3.0
"""A check is ended after so many times the seconds that it usually takes."""
TINY = 150.0
"""Seconds after which a tiny check is ended."""
OUTSIDE = 0.7
"""GiB of the card that CUDA takes for each process, outside PyTorch."""


@dataclass(frozen=True)
class Room:
    """What there is for all checks together: cores, GiB of the card (None without one), GiB of main memory for each."""

    cores: int
    card: float | None
    memory: float


@dataclass
class _Running:
    check: Check
    process: subprocess.Popen[bytes]
    folder: tempfile.TemporaryDirectory[str]
    begun: float
    limit: float
    cut: bool
    looked: float = 0.0

    @property
    def place(self) -> Path:
        return Path(self.folder.name)


class Schedule:
    """Runs checks in order of importance until the time is over.

    ``device`` and ``size`` are handed to each. ``ends`` is the moment, by `time.monotonic`, when all must be over.
    """

    def __init__(self, room: Room, *, device: str, size: str, ends: float) -> None:
        self._room, self._device, self._size, self._ends = room, device, size, ends
        self._running: list[_Running] = []

    def run(self, checks: Sequence[Check], done: Callable[[Result], None]) -> Iterator[tuple[Check, str]]:
        """Run what fits, tell ``done`` of each result at once, and give what was not run, with the reason."""
        waiting = list(checks)
        try:
            while waiting or self._running:
                for running in list(self._running):
                    if (ended := self._look(running)) is not None:
                        self._running.remove(running)
                        running.folder.cleanup()
                        if isinstance(ended, Result):
                            done(ended)
                        else:
                            yield running.check, ended
                for check in list(waiting):
                    if (why := self._late(check)) is not None:
                        waiting.remove(check)
                        yield check, why
                while (check := self._next(waiting)) is not None:  # type: ignore[assignment]
                    waiting.remove(check)
                    self._running.append(self._start(check))
                time.sleep(0.05)
        finally:
            for running in self._running:
                _end(running.process)
                running.folder.cleanup()

    def _late(self, check: Check) -> str | None:
        left = self._ends - time.monotonic()
        usual = 1.0 if self._size == "tiny" else check.seconds
        return f"takes about {usual:.0f} s, and {max(0, left):.0f} s were left" if usual > left else None

    def _next(self, waiting: Sequence[Check]) -> Check | None:
        """The most important check that there is room for; one that is timed waits until it is alone."""
        if any(self._alone(running.check) for running in self._running):
            return None
        cores = self._room.cores - sum(self._cores(running.check) for running in self._running)
        card = self._room.card
        if card is not None:
            card -= sum(running.check.gib + OUTSIDE for running in self._running)
        for check in waiting:
            if not self._running:
                return check
            if self._alone(check):
                return None
            if self._cores(check) <= cores and (card is None or check.gib + OUTSIDE <= card):
                return check
        return None

    def _alone(self, check: Check) -> bool:
        return check.alone and self._size != "tiny"

    def _cores(self, check: Check) -> int:
        return 1 if self._size == "tiny" else min(check.cores, self._room.cores)

    def _start(self, check: Check) -> _Running:
        limit = TINY if self._size == "tiny" else PATIENCE * check.seconds
        left = self._ends - time.monotonic()
        cut, limit = left < limit, min(limit, left)
        folder = tempfile.TemporaryDirectory(prefix="gpu-check-", ignore_cleanup_errors=True)
        place = Path(folder.name)
        command = [
            sys.executable,
            "-m",
            "benchmarks.gpu.child",
            json.dumps(asdict(check)),
            "--device",
            self._device,
            "--size",
            self._size,
        ]
        command += ["--seconds", str(limit), "--answer", str(place / "answer.jsonl")]
        threads = str(self._cores(check))
        environment = {
            **os.environ,
            "OMP_NUM_THREADS": threads,
            "TOKENIZERS_PARALLELISM": "false",
            "HF_HUB_OFFLINE": "1",
        }
        environment |= {"TMPDIR": str(place), "PYTHONUNBUFFERED": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
        with (place / "log").open("wb") as log:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment, start_new_session=True
            )
        return _Running(check, process, folder, time.monotonic(), limit, cut)

    def _look(self, running: _Running) -> Result | str | None:
        """The result of a check that has ended, or is ended now; why it has none; None while it runs."""
        now = time.monotonic()
        spent = now - running.begun
        if running.process.poll() is None:
            if spent > running.limit:
                _end(running.process)
                if running.cut:
                    return f"the time was over after {spent:.0f} s of it"
                return _result(running, spent, "timeout", f"ended after {spent:.0f} s")
            if now - running.looked > 1:
                running.looked = now
                if (taken := _memory(running.process.pid)) > self._room.memory:
                    _end(running.process)
                    return _result(running, spent, "memory", f"took {taken:.1f} GiB of main memory: ended")
            return None
        _end(running.process)
        return _result(running, spent)


def _result(running: _Running, spent: float, status: str = "", why: str = "") -> Result:
    """What a check told until it ended."""
    answer, log = running.place / "answer.jsonl", _end_of(running.place / "log")
    figures: dict[str, Any] = {}
    found: dict[str, Any] = {"failed": []}
    for line in answer.read_text(encoding="utf-8").splitlines() if answer.exists() else []:
        try:
            told = json.loads(line)
        except ValueError:
            continue  # it was killed as it wrote
        figures |= told.pop("figures", {})
        if "failed" in told:
            found["failed"].append(told.pop("failed"))
        found |= told
    if not status:
        if not found.get("ended"):
            status, why = "crashed", f"exit code {running.process.returncode}: {_last(log)}"
        elif "error" in found:
            status, why = "error", found["error"]
        elif found["failed"]:
            status, why = "failed", "; ".join(found["failed"])
        else:
            status, why = ("skipped", found["skipped"]) if "skipped" in found else ("passed", "")
    name, peak = running.check.name, found.get("peak")
    tail = "" if status in {"passed", "skipped"} else log[-3000:]
    return Result(name, status, round(spent, 1), figures, found.get("headline", ""), peak, why[:1000], tail)


def _end_of(log: Path) -> str:
    """What was printed last, however much it was."""
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - 10_000))
        return file.read().decode("utf-8", errors="replace")


def _last(log: str) -> str:
    lines = [line for line in log.splitlines() if line.strip()]
    return lines[-1][:300] if lines else "it printed nothing"


def _memory(process: int) -> float:
    """GiB of main memory that a process takes with all below it; pages that they share count for each."""
    total = 0
    with contextlib.suppress(psutil.NoSuchProcess):
        top = psutil.Process(process)
        for one in [top, *top.children(recursive=True)]:
            with contextlib.suppress(psutil.NoSuchProcess):
                memory = one.memory_info()
                total += memory.rss - getattr(memory, "shared", 0)
    return total / GIB


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a check with everything that it has started."""
    below = []
    with contextlib.suppress(psutil.NoSuchProcess):
        below = psutil.Process(process.pid).children(recursive=True)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    for one in below:
        with contextlib.suppress(psutil.NoSuchProcess):
            one.kill()
    process.wait()
