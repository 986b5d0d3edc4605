"""Threads that run programs, each with boxes of its own, up to the machine's share of cores."""

import atexit
import contextlib
import functools
import os
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from grpo_verifiers.code._box import Box, BoxError, Plan
from grpo_verifiers.runner import worker_count

_RECYCLE = 20_000
"""Programs after which a box is replaced: whatever a long life gathers ends there."""


class Slot:
    """The boxes of one thread: one for programs, and, from its first use on, one for tests."""

    def __init__(self) -> None:
        self._boxes: dict[tuple[Plan, str], Box] = {}
        self._uses: dict[tuple[Plan, str], int] = {}

    def box(self, plan: Plan, purpose: str = "programs") -> Box:
        """The box for a purpose, started where there is none."""
        key = (plan, purpose)
        self._uses[key] = self._uses.get(key, 0) + 1
        if self._uses[key] > _RECYCLE and key in self._boxes:
            self._boxes.pop(key).close()
            self._uses[key] = 1
        if key not in self._boxes:
            self._boxes[key] = Box(plan)
        return self._boxes[key]

    def close(self) -> None:
        """End them all; the next use starts new ones."""
        while self._boxes:
            self._boxes.popitem()[1].close()

    def forget(self) -> None:
        """In a forked child: let go of the parent's."""
        for box in self._boxes.values():
            box.forget()
        self._boxes.clear()


Job = Callable[[Slot], Any]


class Pool:
    """Daemon threads, so that none keeps the process from ending; started as work comes."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._lock = threading.Lock()
        self._slots: list[Slot] = []
        self._idle = 0
        self._jobs: queue.SimpleQueue[tuple[Future[Any], Job] | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []

    def submit(self, job: Job) -> Future[Any]:
        """Run a job with a slot of its own; one whose box breaks is run once more with a new one."""
        future: Future[Any] = Future()
        self._jobs.put((future, job))
        with self._lock:
            if self._idle < self._jobs.qsize() and len(self._slots) < self._size:
                slot = Slot()
                self._slots.append(slot)
                thread = threading.Thread(target=self._work, args=(slot,), name="grpo-code", daemon=True)
                self._threads.append(thread)
                thread.start()
        return future

    def _work(self, slot: Slot) -> None:
        try:
            while True:
                with self._lock:
                    self._idle += 1
                taken = self._jobs.get()
                with self._lock:
                    self._idle -= 1
                if taken is None:
                    return
                future, job = taken
                if future.set_running_or_notify_cancel():
                    _settle(future, job, slot)
                del future, job, taken  # a waiting thread must not keep the last program's texts alive
        finally:
            slot.close()

    def close(self) -> None:
        """End every box and every thread; what still waits is cancelled."""
        with contextlib.suppress(queue.Empty):
            while (left := self._jobs.get_nowait()) is not None:
                left[0].cancel()
        for _ in self._threads:
            self._jobs.put(None)
        for thread in self._threads:
            thread.join(10)

    def forget(self) -> None:
        """In a forked child."""
        for slot in self._slots:
            slot.forget()


def _settle(future: Future[Any], job: Job, slot: Slot) -> None:
    try:
        try:
            result = job(slot)
        except BoxError:
            slot.close()
            result = job(slot)
    except BaseException as error:  # noqa: BLE001 - whoever waits gets it
        slot.close()
        future.set_exception(error)
    else:
        future.set_result(result)


_shared: list[Pool] = []
_lock = threading.Lock()


def shared_pool() -> Pool:
    """The pool of this process; made on first use."""
    with _lock:
        if not _shared:
            _shared.append(Pool(worker_count()))
        return _shared[0]


@functools.cache
def remote_pool(size: int) -> Pool:
    """Threads that only wait for a server."""
    return Pool(size)


def close_pool() -> None:
    """End every box of this process; the next use starts new ones. Runs by itself when Python exits."""
    with _lock:
        pools, _shared[:] = list(_shared), []
    for pool in pools:
        pool.close()


def _after_fork() -> None:
    global _lock  # noqa: PLW0603 - the inherited one may be held by a thread that does not exist here
    _lock = threading.Lock()
    for pool in _shared:
        pool.forget()
    _shared.clear()
    remote_pool.cache_clear()


atexit.register(close_pool)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
