"""Worker processes for checks: started early, one item at a time, killed at its deadline and replaced.

Every submitted call gets an outcome, in order, even if a check kills its process. A closed runner leaves no
processes.
"""

import atexit
import os
import threading
from collections.abc import Sequence
from typing import Any, Self

from grpo_verifiers.exec.batch import Call, CallBatch
from grpo_verifiers.exec.isolation import ELSEWHERE
from grpo_verifiers.exec.process import WorkerKind
from grpo_verifiers.exec.scheduler import MEMORY_VARIABLE, Scheduler
from grpo_verifiers.exec.spec import CheckSpec

WORKERS_VARIABLE = "GRPO_VERIFIERS_WORKERS"
DEFAULT_MEMORY = 6 << 30
"""Bytes of address space; the import of a torch with CUDA maps 3 GiB without using them."""


def worker_count() -> int:
    """Workers of one training process: its share of the machine's cores, at least one."""
    wish = os.environ.get(WORKERS_VARIABLE)
    if wish is not None:
        if not wish.isdecimal() or int(wish) < 1:
            raise ValueError(f"{WORKERS_VARIABLE} is {wish!r}, expected an integer of at least 1.")
        return int(wish)
    cores = len(os.sched_getaffinity(0))
    ranks = os.environ.get("LOCAL_WORLD_SIZE", "1")
    return max(1, cores // max(1, int(ranks) if ranks.isdecimal() else 1))


def default_memory() -> int | None:
    """Address space of one worker in bytes: 6 GiB, or the value of the environment variable in GiB (0: no cap)."""
    wish = os.environ.get(MEMORY_VARIABLE)
    if wish is None:
        return DEFAULT_MEMORY
    try:
        gib = float(wish)
    except ValueError:
        gib = -1.0
    if not 0 <= gib < 1 << 20:
        raise ValueError(f"{MEMORY_VARIABLE} is {wish!r}, expected a number of GiB (0: no cap).")
    return int(gib * (1 << 30)) or None


class Runner:
    """A set of worker processes, started when first needed and grown to demand."""

    def __init__(self, workers: int | None = None) -> None:
        """Start nothing yet.

        Built-in checks and user checks run in two kinds of processes, at most ``workers`` of each; by default
        the process's share of the cores.
        """
        if workers is not None and (not isinstance(workers, int) or isinstance(workers, bool) or workers < 1):
            raise ValueError(f"workers is {workers!r}, expected an integer of at least 1, or None.")
        self.workers = workers if workers is not None else worker_count()
        self._scheduler: Any = None
        self.closed = False
        self._lock = threading.Lock()
        self._owner = os.getpid()

    def submit(
        self, spec: CheckSpec, calls: Sequence[Call | bytes], timeout: float, rows: Sequence[int | None] | None = None
    ) -> CallBatch:
        """Hand over calls without waiting; each may take ``timeout`` seconds from its own start.

        A call is the first argument, the keyword arguments, and for a batch function the expected number of results
        (None for a single completion); or the same pickled by ``pack``, with those numbers in ``rows``.
        """
        batch = CallBatch(spec, calls, timeout, rows)
        if batch.payloads:
            self._running().submit(_kind(spec), batch)
        return batch

    def warm(self, spec: CheckSpec) -> None:
        """Start workers and have them load a check, without waiting for it."""
        self._running().submit(_kind(spec), CallBatch(spec, [], 0.0), self.workers)

    @property
    def confinement(self) -> dict[str, str]:
        """Confinement of the built-in checks' worker that started last; empty before the first."""
        return dict(self._scheduler.confinement) if self._scheduler else {}

    def pids(self) -> list[int]:
        """Process ids of the live workers, or of their keepers."""
        return self._scheduler.pids() if self._scheduler else []

    def close(self) -> None:
        """Kill all workers and their descendants; open items get an outcome with that reason. Safe to repeat."""
        with self._lock:
            scheduler, self._scheduler, self.closed = self._scheduler, None, True
        if scheduler is not None and self._owner == os.getpid():
            scheduler.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _new_scheduler(self) -> Any:
        return Scheduler(self.workers)

    def _running(self) -> Any:
        with self._lock:
            if self.closed:
                raise RuntimeError(f"this {type(self).__name__} is closed: make a new one, or use the shared one.")
            if self._owner != os.getpid():
                raise RuntimeError(
                    f"this {type(self).__name__} belongs to the process that forked this one: make a new one here."
                )
            if self._scheduler is None or self._scheduler.closing:  # its thread has failed
                self._scheduler = self._new_scheduler()
            return self._scheduler

    def abandon(self) -> None:
        """In a forked child: close the connections to the parent's workers."""
        if self._scheduler is not None:
            self._scheduler.abandon()


def _kind(spec: CheckSpec) -> WorkerKind:
    return WorkerKind(spec.confined, spec.memory, spec.env)


_shared: dict[str, Runner] = {}
_shared_lock = threading.Lock()


def shared_runner(isolation: str = "process") -> Runner:
    """The runner that all verifiers of this process use; created on first use, shared by all steps.

    Its workers run on this machine, or in the place of another ``isolation``.
    """
    with _shared_lock:
        if isolation not in _shared or _shared[isolation].closed:
            _shared[isolation] = Runner() if isolation == "process" else ELSEWHERE.get(isolation)()
        return _shared[isolation]


def close_shared_runners() -> None:
    """Close the shared runners; the next use creates a new one. Runs automatically when Python exits."""
    with _shared_lock:
        runners = list(_shared.values())
        _shared.clear()
    for runner in runners:
        runner.close()


def _after_fork() -> None:
    """A forked child has no scheduler thread: forget the parent's workers, and hold none of their connections open."""
    global _shared_lock  # noqa: PLW0603 - a thread of the parent may have locked the inherited one
    _shared_lock = threading.Lock()
    for runner in _shared.values():
        runner.abandon()
    _shared.clear()


atexit.register(close_shared_runners)
os.register_at_fork(after_in_child=_after_fork)
