"""The thread that owns all workers of a runner: it starts them, assigns items, keeps the deadlines, kills and replaces.

It must be one long-lived thread: the kernel ties a worker's life to the thread that started it.
"""

import collections
import contextlib
import pickle
import secrets
import selectors
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from grpo_verifiers.exec.batch import CallBatch, Item
from grpo_verifiers.exec.failure import outcome_of
from grpo_verifiers.exec.outcome import Outcome
from grpo_verifiers.exec.process import WorkerKind, WorkerLost, WorkerProcess, search_path
from grpo_verifiers.exec.spec import CheckSpec
from grpo_verifiers.exec.wire import WireError, duration_of, from_rows
from grpo_verifiers.sandbox.children import socket_pair

BOOT_SECONDS = 120.0
LOAD_SECONDS = 600.0
SEND_SECONDS = 60.0
BOOT_ATTEMPTS = 3
KEPT_SPECS = 8
MEMORY_VARIABLE = "GRPO_VERIFIERS_MEMORY"


@dataclass(eq=False)
class _Worker:
    process: WorkerProcess
    pool: "_Pool"
    deadline: float
    state: Literal["booting", "idle", "sending", "loading", "running"] = "booting"
    item: Item | None = None
    loading: CheckSpec | None = None
    loaded: set[str] = field(default_factory=set)
    ticket: int = 0


@dataclass(eq=False)
class _Pool:
    kind: WorkerKind
    workers: list[_Worker] = field(default_factory=list)
    queue: "collections.deque[Item]" = field(default_factory=collections.deque)
    idle: list[_Worker] = field(default_factory=list)
    specs: dict[str, CheckSpec] = field(default_factory=dict)
    boot_failures: int = 0
    retry_at: float = 0.0
    minimum: int = 0


class Scheduler:
    """The thread, its inbox and its pools of workers; a subclass may run the calls in another way."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.confinement: dict[str, str] = {}
        self._inbox: collections.deque[tuple[WorkerKind, CheckSpec, list[Item], int]] = collections.deque()
        self._pools: dict[WorkerKind, _Pool] = {}
        self._selector = selectors.DefaultSelector()
        self._bell, self._ringer = socket_pair()
        self._bell.setblocking(False)
        self._ringer.setblocking(False)
        self._selector.register(self._bell, selectors.EVENT_READ, None)
        self._lock = threading.Lock()
        self.closing = ""
        self._thread = threading.Thread(target=self._main, name="grpo-verifiers", daemon=True)
        self._thread.start()

    # -- called from any thread

    def submit(self, kind: WorkerKind, batch: CallBatch, workers: int = 0) -> None:
        """Queue every call of a batch; ``workers`` workers are started, even for an empty one."""
        items = [Item(batch, index) for index in range(len(batch.payloads))]
        with self._lock:
            closed = self.closing
            if not closed:
                self._inbox.append((kind, batch.spec, items, workers))
        if closed:
            for item in items:
                item.batch.put(item.index, Outcome("broken", message=closed))
        else:
            self._ring()

    def close(self) -> None:
        """Kill every worker and fail every open item."""
        with self._lock:
            self.closing = self.closing or "the runner was closed"
        self._ring()
        if threading.current_thread() is not self._thread:
            self._thread.join(30)

    def pids(self) -> list[int]:
        """Process ids of the workers alive, or of their keepers."""
        return [worker.process.pid for pool in list(self._pools.values()) for worker in list(pool.workers)]

    def abandon(self) -> None:
        """In a forked child: close the connections to the parent's workers."""
        for pool in self._pools.values():
            for worker in pool.workers:
                with contextlib.suppress(OSError):
                    worker.process.close()

    def _ring(self) -> None:
        with contextlib.suppress(OSError):  # full: it rings already; closed: the thread has ended
            self._ringer.send(b"!")

    # -- the thread

    def _main(self) -> None:
        reason = "the runner was closed"
        try:
            while True:
                self._take()
                if self.closing:  # checked after the bell is drained, because closing rings it too
                    break
                self._go_on()
                for key, events in self._selector.select(self._pause()):
                    self._event(key, events)
                self._expire()
        except BaseException as error:  # of any kind: no caller may wait for ever
            reason = f"the runner's thread failed: {type(error).__name__}: {error}"
            raise
        finally:
            with self._lock:
                self.closing = reason
            self._take()
            self._end(reason)
            self._selector.close()
            self._bell.close()
            self._ringer.close()

    def _take(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while self._bell.recv(4096):
                pass
        while self._inbox:
            self._accept(*self._inbox.popleft())

    def _accept(self, kind: WorkerKind, spec: CheckSpec, items: list[Item], workers: int) -> None:
        pool = self._pools.setdefault(kind, _Pool(kind))
        pool.queue.extend(items)
        pool.minimum = min(self.limit, max(pool.minimum, workers))
        if workers:
            pool.specs[spec.key] = spec
            for worker in list(pool.idle):
                pool.idle.remove(worker)
                self._next(worker)

    def _go_on(self) -> None:
        for pool in self._pools.values():
            self._feed(pool)

    def _end(self, reason: str) -> None:
        for pool in self._pools.values():
            for worker in list(pool.workers):
                self._remove(worker)
                if worker.item is not None:
                    pool.queue.append(worker.item)
            while pool.queue:
                item = pool.queue.popleft()
                item.batch.put(item.index, Outcome("broken", message=reason))

    def _feed(self, pool: _Pool) -> None:
        while pool.queue and pool.idle:
            key = pool.queue[0].batch.spec.key
            worker = next((worker for worker in reversed(pool.idle) if key in worker.loaded), pool.idle[-1])
            pool.idle.remove(worker)
            self._assign(worker, pool.queue.popleft())
        if len(pool.workers) >= self.limit or (not pool.queue and len(pool.workers) >= pool.minimum):
            return
        if pool.boot_failures and time.monotonic() < pool.retry_at:
            return
        busy = sum(worker.item is not None for worker in pool.workers)
        target = min(self.limit, max(pool.minimum, busy + len(pool.queue)))
        booting = sum(worker.state == "booting" for worker in pool.workers)
        # Start workers gradually: short batches finish before a full pool is up.
        while len(pool.workers) < target and booting < max(2, self.limit // 4):
            if not self._start(pool):
                return
            booting += 1

    def _start(self, pool: _Pool, item: Item | None = None) -> bool:
        """Start a worker; ``item`` waits for this one, not for any."""
        try:
            process = WorkerProcess(pool.kind)
        except Exception as error:  # noqa: BLE001 - no memory, no descriptors, no Python: all mean no worker
            self._no_worker(pool, f"{type(error).__name__}: {error}", item)
            return False
        worker = _Worker(process, pool, time.monotonic() + BOOT_SECONDS, item=item)
        pool.workers.append(worker)
        self._selector.register(process.sock, selectors.EVENT_READ, worker)
        self._selector.register(process.death_fd, selectors.EVENT_READ, worker)
        return True

    def _no_worker(self, pool: _Pool, why: str, item: Item | None) -> None:
        """Retry a failed start with backoff; fail all waiting items once no worker is left."""
        pool.boot_failures += 1
        pool.retry_at = time.monotonic() + 0.2 * pool.boot_failures
        if item is not None:
            pool.queue.appendleft(item)
        if pool.boot_failures >= BOOT_ATTEMPTS and all(worker.state == "booting" for worker in pool.workers):
            pool.boot_failures = pool.minimum = 0
            self._break(pool, f"no worker process could be started: {why}")

    @staticmethod
    def _break(pool: _Pool, message: str, trace: str = "", key: str | None = None) -> None:
        """Fail all queued items, or those of one check."""
        queued, pool.queue = pool.queue, collections.deque()
        for item in queued:
            if key is None or item.batch.spec.key == key:
                item.batch.put(item.index, Outcome("broken", message=message, trace=trace))
            else:
                pool.queue.append(item)

    def _assign(self, worker: _Worker, item: Item) -> None:
        worker.item = item
        spec = item.batch.spec
        if spec.key not in worker.loaded:
            self._load(worker, spec)
            return
        worker.state = "sending"
        payload = item.batch.payloads[item.index]
        self._ask(worker, "run", spec.key, item.batch.timeout, payload, limit=SEND_SECONDS)

    def _load(self, worker: _Worker, spec: CheckSpec) -> None:
        worker.state, worker.loading = "loading", spec
        worker.pool.specs[spec.key] = spec
        while len(worker.pool.specs) > KEPT_SPECS:
            del worker.pool.specs[next(iter(worker.pool.specs))]
        # With the search path of now: a notebook may have extended it since the worker started.
        self._ask(worker, "load", spec.key, search_path(), pickle.dumps(spec), limit=LOAD_SECONDS)

    def _ask(self, worker: _Worker, kind: str, key: str, extra: Any, payload: bytes, *, limit: float) -> None:
        # Random: an earlier check left running could guess the next number and answer for a foreign item.
        worker.ticket = secrets.randbits(62)
        worker.deadline = time.monotonic() + limit
        try:
            if worker.process.send((kind, worker.ticket, key, extra), payload):
                self._on_sent(worker)
            else:
                self._selector.modify(worker.process.sock, selectors.EVENT_READ | selectors.EVENT_WRITE, worker)
        except WorkerLost as error:
            self._on_lost(worker, str(error))

    @staticmethod
    def _on_sent(worker: _Worker) -> None:
        """Start an item's clock once the worker has all of it."""
        if worker.state == "sending" and worker.item is not None:
            worker.state = "running"
            worker.deadline = time.monotonic() + worker.item.batch.timeout

    def _event(self, key: selectors.SelectorKey, events: int) -> None:
        worker: _Worker | None = key.data
        if worker is None or worker not in worker.pool.workers:
            return
        try:
            if events & selectors.EVENT_WRITE and worker.process.flush():
                self._selector.modify(worker.process.sock, selectors.EVENT_READ, worker)
                self._on_sent(worker)
            if events & selectors.EVENT_READ:
                self._receive(worker)
                if key.fd == worker.process.death_fd:
                    self._on_lost(worker, "it ended")
        except WorkerLost as error:
            self._on_lost(worker, str(error))

    def _receive(self, worker: _Worker) -> None:
        for reply in worker.process.receive():
            if reply.get("id") != worker.ticket or worker.state in {"idle", "sending"}:
                raise WorkerLost("it sent an unexpected reply")
            if worker.state == "booting":
                self._on_booted(worker, reply)
            elif worker.state == "loading":
                self._on_loaded(worker, reply)
            else:
                self._on_answered(worker, reply)

    def _on_booted(self, worker: _Worker, reply: Mapping[str, Any]) -> None:
        worker.process.finish_boot(reply)
        worker.pool.boot_failures = 0
        level = reply.get("ready")
        if worker.pool.kind.confined and isinstance(level, dict):
            self.confinement = {str(name): str(reached) for name, reached in level.items()}
        self._next(worker)

    def _on_loaded(self, worker: _Worker, reply: Mapping[str, Any]) -> None:
        spec = worker.loading
        assert spec is not None
        if "e" in reply or "m" in reply:
            failure = reply.get("e")
            failure = failure if isinstance(failure, dict) else {"type": "MemoryError", "message": _cap(worker)}
            self._unloadable(worker, f"{failure.get('type')}: {failure.get('message')}", str(failure.get("trace", "")))
        else:
            worker.loaded.add(spec.key)
        self._next(worker)

    def _unloadable(self, worker: _Worker, why: str, trace: str = "") -> None:
        """Fail all items of a check that cannot be imported: the next worker could not either."""
        spec, item = worker.loading, worker.item
        assert spec is not None
        worker.pool.specs.pop(spec.key, None)
        message = f"a worker cannot load it: {why}"
        if item is not None:
            worker.item = None
            item.batch.put(item.index, Outcome("broken", message=message, trace=trace))
            self._break(worker.pool, message, trace, spec.key)

    def _on_answered(self, worker: _Worker, reply: Mapping[str, Any]) -> None:
        item = worker.item
        assert item is not None
        if reply.get("m"):
            self._on_lost(worker, f"it ran out of memory ({_cap(worker)})")
            return
        outcome = _outcome(item, reply)
        worker.item = None
        item.batch.put(item.index, outcome)
        self._next(worker)

    def _next(self, worker: _Worker) -> None:
        """Assign an idle worker its own item, the next of the queue, or a check to load."""
        pool = worker.pool
        if worker not in pool.workers:
            return
        worker.loading = None
        if worker.item is not None:
            self._assign(worker, worker.item)
        elif pool.queue:
            self._assign(worker, pool.queue.popleft())
        elif (spec := next((spec for key, spec in pool.specs.items() if key not in worker.loaded), None)) is not None:
            self._load(worker, spec)
        else:
            worker.state = "idle"
            pool.idle.append(worker)

    def _pause(self) -> float | None:
        workers = [worker for pool in self._pools.values() for worker in pool.workers]
        ends = [worker.deadline for worker in workers if worker.state != "idle"]
        ends += [pool.retry_at for pool in self._pools.values() if pool.boot_failures and (pool.queue or pool.minimum)]
        return max(0.0, min(ends) - time.monotonic()) if ends else None

    def _expire(self) -> None:
        now = time.monotonic()
        overdue: list[_Worker] = []
        for pool in self._pools.values():
            for worker in list(pool.workers):
                if worker.state == "idle" or now < worker.deadline:
                    continue
                try:
                    self._receive(worker)  # its answer may have arrived: this thread was late, not the worker
                except WorkerLost as error:
                    self._on_lost(worker, str(error))
                    continue
                if worker in pool.workers and worker.state != "idle" and time.monotonic() >= worker.deadline:
                    overdue.append(worker)
                    self._record_timeout(worker)
        for worker in overdue:
            self._on_late(worker)

    @staticmethod
    def _record_timeout(worker: _Worker) -> None:
        """Record timeouts before any worker is killed: killing takes time, and would delay the records."""
        item = worker.item
        if worker.state == "running" and item is not None:
            worker.item = None
            limit = item.batch.timeout
            took = limit + time.monotonic() - worker.deadline
            item.batch.put(item.index, Outcome("timeout", message=f"killed after {limit:g} s", seconds=took))

    def _on_late(self, worker: _Worker) -> None:
        if worker.state == "running":
            self._remove(worker)
            self._start(worker.pool)
        elif worker.state == "loading":
            self._unloadable(worker, f"it takes longer than {LOAD_SECONDS:g} s")
            self._remove(worker)
        else:
            self._on_lost(worker, "it did not respond in time")

    def _on_lost(self, worker: _Worker, why: str) -> None:
        """Replace a worker that died or broke the protocol. Its item gets one retry on a fresh worker."""
        pool, item = worker.pool, worker.item
        if worker not in pool.workers:
            return
        log = worker.process.boot_log()
        state = worker.state
        how = self._remove(worker, grace=0.5)
        why = how or why
        if state == "booting":
            self._no_worker(pool, f"{why}. It printed: {log}" if log else why, item)
        elif state == "loading":
            if item is not None and item.lost_loads < BOOT_ATTEMPTS - 1:
                item.lost_loads += 1
                self._start(pool, item)
            else:
                self._unloadable(worker, f"the worker was lost while loading: {why}")
        elif item is not None and not item.died:
            item.died = True
            self._start(pool, item)
        elif item is not None:
            item.batch.put(item.index, Outcome("died", message=f"two workers were lost: {why}"))
            self._start(pool)

    def _remove(self, worker: _Worker, grace: float = 0.0) -> str:
        pool, process = worker.pool, worker.process
        if worker in pool.idle:
            pool.idle.remove(worker)
        pool.workers.remove(worker)
        self._selector.unregister(process.sock)
        self._selector.unregister(process.death_fd)
        return process.kill(grace)


def _cap(worker: _Worker) -> str:
    memory = worker.pool.kind.memory
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
