"""The threads of a runner, each with one worker process: they assign items, keep the deadlines, kill and replace."""

import collections
import contextlib
import pickle
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from grpo_verifiers.exec.batch import CallBatch, Item
from grpo_verifiers.exec.failure import outcome_of
from grpo_verifiers.exec.outcome import Outcome
from grpo_verifiers.exec.process import BellRang, WorkerKind, WorkerLost, WorkerProcess, search_path
from grpo_verifiers.exec.spec import CheckSpec
from grpo_verifiers.exec.wire import WireError, duration_of, from_rows
from grpo_verifiers.sandbox.children import socket_pair

BOOT_SECONDS = 120.0
LOAD_SECONDS = 600.0
BOOT_ATTEMPTS = 3
MEMORY_VARIABLE = "GRPO_VERIFIERS_MEMORY"
_RUNS = 2
"""Workers that an item may lose; the second loss is its own fault."""


class _NoWorkerError(Exception):
    """No worker process can be started."""


class _UnloadableError(Exception):
    """No worker can load a check."""

    def __init__(self, why: str, trace: str = "") -> None:
        super().__init__(f"a worker cannot load it: {why}")
        self.trace = trace


@dataclass(eq=False)
class _Pool:
    """The threads for workers of one kind, and the items that wait for them."""

    kind: WorkerKind
    queue: "collections.deque[Item]" = field(default_factory=collections.deque)
    threads: int = 0
    busy: int = 0
    failures: int = 0
    """Attempts to start a worker that failed in a row."""
    live: set[WorkerProcess] = field(default_factory=set)


class _Worker:
    """The worker of a thread: none before the first item, and after a loss."""

    def __init__(self) -> None:
        self.process: WorkerProcess | None = None
        self.loaded: set[str] = set()

    def usable(self) -> bool:
        """True if it lives and has sent nothing unasked."""
        with contextlib.suppress(WorkerLost):
            return self.process is not None and not self.process.dead() and not self.process.receive()
        return False


class Scheduler:
    """The pools of workers of a runner."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.confinement: dict[str, str] = {}
        """Of the built-in checks' worker that started last; empty before the first."""
        self.closing = ""
        self._pools: dict[WorkerKind, _Pool] = {}
        self._processes: set[WorkerProcess] = set()
        self._threads: set[threading.Thread] = set()
        self._changed = threading.Condition()
        # Start workers gradually: short batches finish before a full pool is up.
        self._starting = threading.Semaphore(max(2, limit // 4))
        self._bell, self._ringer = socket_pair()

    # -- called from any thread

    def submit(self, kind: WorkerKind, batch: CallBatch, workers: int = 0) -> None:
        """Queue every call of a batch; for an empty one start ``workers`` workers, which load its check."""
        items = [Item(batch, index) for index in range(len(batch.payloads))] or [Item(batch, -1)] * workers
        with self._changed:
            if not self.closing:
                pool = self._pools.setdefault(kind, _Pool(kind))
                pool.queue.extend(items)
                self._grow(pool)
                self._changed.notify_all()
                return
        fail(items, self.closing)

    def close(self) -> None:
        """Kill every worker and fail every open item."""
        with self._changed:
            self.closing = "the runner was closed"
            left = [item for pool in self._pools.values() for item in pool.queue]
            threads = list(self._threads)
            self._changed.notify_all()
        self._ringer.send(b"!")  # stays unread: it ends every wait
        fail(left, self.closing)
        for thread in threads:
            thread.join(30)

    def pids(self) -> list[int]:
        """Process ids of the workers alive, or of their keepers."""
        return [process.pid for process in list(self._processes)]

    def abandon(self) -> None:
        """In a forked child: close the connections to the parent's workers."""
        for process in self._processes:
            with contextlib.suppress(OSError):
                process.close()

    # -- the threads

    def _grow(self, pool: _Pool) -> None:
        """Start a thread for each waiting item that no free thread will take, up to the limit."""
        for _ in range(min(len(pool.queue) + pool.busy, self.limit) - pool.threads):
            pool.threads += 1
            thread = threading.Thread(target=self._work, args=(pool,), name="grpo-verifiers", daemon=True)
            self._threads.add(thread)
            thread.start()

    def _work(self, pool: _Pool) -> None:
        worker = _Worker()
        try:
            with self._starting:
                if pool.queue and not self.closing:
                    self._start(pool, worker)
            while worker.process is not None and (item := self._take(pool)) is not None:
                try:
                    self._run(pool, worker, item)
                finally:
                    with self._changed:
                        pool.busy -= 1
        except BellRang:
            pass
        except _NoWorkerError as error:
            with self._changed:
                pool.failures = 0
                hopeless = self.closing or not pool.live
                left = [pool.queue.popleft() for _ in range(len(pool.queue))] if hopeless else []
            fail(left, self.closing or str(error))
        finally:
            self._end(pool, worker)
            with self._changed:
                pool.threads -= 1
                self._threads.discard(threading.current_thread())
                if not self.closing:
                    self._grow(pool)

    def _take(self, pool: _Pool) -> Item | None:
        """The next item; None once the runner is closed."""
        with self._changed:
            self._changed.wait_for(lambda: pool.queue or self.closing)
            if self.closing:
                return None
            pool.busy += 1
            return pool.queue.popleft()

    def _start(self, pool: _Pool, worker: _Worker, item: Item | None = None) -> None:
        """Start a worker process while ``item``, or any item in the queue, needs one."""
        while item is not None or pool.queue:
            why = self._attempt(pool, worker)
            with self._changed:
                pool.failures = pool.failures + 1 if why else 0
                if not why:
                    return
                if pool.failures >= BOOT_ATTEMPTS:
                    raise _NoWorkerError(f"no worker process could be started: {why}")
                if self._changed.wait_for(lambda: self.closing, 0.2 * pool.failures):
                    raise BellRang

    def _attempt(self, pool: _Pool, worker: _Worker) -> str:
        """Start a worker process; the reason why that failed."""
        try:
            process = WorkerProcess(pool.kind)
        except Exception as error:  # noqa: BLE001 - no memory, no descriptors, no Python: all mean no worker
            return f"{type(error).__name__}: {error}"
        worker.process, worker.loaded = process, set()
        self._processes.add(process)
        try:
            first = process.answer(BOOT_SECONDS, self._bell.fileno())
        except (WorkerLost, TimeoutError) as error:
            log = process.boot_log()
            why = self._end(pool, worker, grace=0.5) or str(error)
            return f"{why}. It printed: {log}" if log else why
        process.finish_boot(first)
        with self._changed:
            pool.live.add(process)
        level = first.get("ready")
        if pool.kind.confined and isinstance(level, dict):
            self.confinement = {str(name): str(reached) for name, reached in level.items()}
        return ""

    def _end(self, pool: _Pool, worker: _Worker, grace: float = 0.0) -> str:
        """End the worker process, if there is one; how it ended on its own, if it did."""
        process, worker.process = worker.process, None
        if process is None:
            return ""
        with self._changed:
            pool.live.discard(process)
        how = process.kill(grace)
        self._processes.discard(process)
        return how

    def _run(self, pool: _Pool, worker: _Worker, item: Item) -> None:
        """The outcome of one item; if its worker is lost, it gets one retry on a fresh worker."""
        losses = {"load": 0, "run": 0}
        while True:
            step, started = "load", 0.0
            try:
                if not worker.usable():
                    self._end(pool, worker)
                    self._start(pool, worker, item)
                self._load(worker, item.batch.spec)
                step, started = "run", time.monotonic()
                if item.index >= 0:
                    item.put(self._answer(worker, item))
            except TimeoutError:
                if step == "load":
                    self._unloadable(pool, item, _UnloadableError(f"it takes longer than {LOAD_SECONDS:g} s"))
                message = f"killed after {item.batch.timeout:g} s"
                item.put(Outcome("timeout", message=message, seconds=time.monotonic() - started))
                self._end(pool, worker)
            except WorkerLost as error:
                why = self._end(pool, worker, grace=0.5) or str(error)
                losses[step] += 1
                if losses["load"] == BOOT_ATTEMPTS:
                    self._unloadable(pool, item, _UnloadableError(f"the worker was lost while loading: {why}"))
                elif losses["run"] < _RUNS:
                    continue
                item.put(Outcome("died", message=f"two workers were lost: {why}"))
            except _UnloadableError as error:
                self._unloadable(pool, item, error)
            except _NoWorkerError:  # another thread may have one
                with self._changed:
                    pool.queue.appendleft(item)
                raise
            except BaseException as error:  # of any kind: no caller may wait for ever
                item.put(Outcome("broken", message=self.closing or f"{type(error).__name__}: {error}"))
                raise
            return

    def _load(self, worker: _Worker, spec: CheckSpec) -> None:
        """Have the worker import a check, unless it has."""
        if spec.key in worker.loaded:
            return
        assert worker.process is not None
        # With the search path of now: a notebook may have extended it since the worker started.
        reply = worker.process.ask(
            "load", spec.key, search_path(), pickle.dumps(spec), seconds=LOAD_SECONDS, bell=self._bell.fileno()
        )
        if "e" in reply or "m" in reply:
            failure = reply.get("e")
            failure = failure if isinstance(failure, dict) else {"type": "MemoryError", "message": _cap(spec)}
            raise _UnloadableError(f"{failure.get('type')}: {failure.get('message')}", str(failure.get("trace", "")))
        worker.loaded.add(spec.key)

    def _answer(self, worker: _Worker, item: Item) -> Outcome:
        assert worker.process is not None
        batch = item.batch
        reply = worker.process.ask(
            "run",
            batch.spec.key,
            batch.timeout,
            batch.payloads[item.index],
            seconds=batch.timeout,
            bell=self._bell.fileno(),
        )
        if reply.get("m"):
            raise WorkerLost(f"it ran out of memory ({_cap(batch.spec)})")
        return _outcome(item, reply)

    def _unloadable(self, pool: _Pool, item: Item, error: _UnloadableError) -> None:
        """Fail all items of a check that cannot be imported: the next worker could not either."""
        key = item.batch.spec.key
        with self._changed:
            same = [each for each in pool.queue if each.batch.spec.key == key]
            pool.queue = collections.deque(each for each in pool.queue if each.batch.spec.key != key)
        fail([item, *same], str(error), error.trace)


def fail(items: Iterable[Item], message: str, trace: str = "") -> None:
    """Answer items that no worker can take."""
    for item in items:
        item.put(Outcome("broken", message=message, trace=trace))


def _cap(spec: CheckSpec) -> str:
    memory = spec.memory
    return "no memory limit" if memory is None else f"{memory / (1 << 20):g} MiB; set memory= or {MEMORY_VARIABLE}"


def _outcome(item: Item, reply: Mapping[str, Any]) -> Outcome:
    try:
        seconds = duration_of(reply)
        if seconds > item.batch.timeout:  # late by its own clock
            return Outcome("timeout", message=f"took {seconds:.3g} s of {item.batch.timeout:g} s", seconds=seconds)
        failure = reply.get("e")
        if isinstance(failure, dict):
            return outcome_of(failure, seconds)
        return Outcome("value", from_rows(reply.get("v"), item.batch.rows[item.index] or 1), seconds=seconds)
    except WireError as error:
        raise WorkerLost(f"it {error}") from error
