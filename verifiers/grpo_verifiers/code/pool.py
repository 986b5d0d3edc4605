"""Threads that wait for referees, one process each, up to the machine's share of cores.

They compute nothing: an event loop would have to wait for the start of boxes, and a referee's answer may come late.
"""

import asyncio
import atexit
import contextlib
import functools
import os
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from grpo_verifiers.code.levels import SandboxError, choose, probe, try_box
from grpo_verifiers.code.referee import Referee
from grpo_verifiers.exec.runner import worker_count
from grpo_verifiers.sandbox.box import BoxError, BoxKind, Level
from grpo_verifiers.verdict import Verdict, blamed

Job = Callable[[Referee], Any]


class Pool:
    """Daemon threads, so that none keeps the process from ending; started as work comes."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._lock = threading.Lock()
        self._referees: list[Referee] = []
        self._open = 0  # submitted jobs that have not ended: each may need a box
        self._jobs: queue.SimpleQueue[tuple[Future[Any], Job] | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []

    def submit(self, job: Job) -> Future[Any]:
        """Run a job with an own referee; if its box breaks, run it again with a new one."""
        future: Future[Any] = Future()
        with self._lock:
            self._open += 1
            self._jobs.put((future, job))
            if len(self._referees) < min(self._open, self._size):
                referee = Referee()
                self._referees.append(referee)
                thread = threading.Thread(target=self._work, args=(referee,), name="grpo-code", daemon=True)
                self._threads.append(thread)
                thread.start()
        return future

    def _work(self, referee: Referee) -> None:
        try:
            while (item := self._jobs.get()) is not None:
                future, job = item
                answer = _attempt(job, referee) if future.set_running_or_notify_cancel() else None
                with self._lock:
                    self._open -= 1  # before the answer is set: its receiver may submit the next job at once
                if answer:
                    answer(future)
                del future, job, item, answer  # a waiting thread must not keep the last program's texts alive
        finally:
            referee.close()

    def close(self) -> None:
        """End every box and every thread; cancel the waiting jobs."""
        with contextlib.suppress(queue.Empty):
            while (left := self._jobs.get_nowait()) is not None:
                left[0].cancel()
        for _ in self._threads:
            self._jobs.put(None)
        for thread in self._threads:
            thread.join(10)

    def forget(self) -> None:
        """In a forked child: drop the parent's referees."""
        for referee in self._referees:
            referee.forget()


def _attempt(job: Job, referee: Referee) -> Callable[[Future[Any]], None]:
    """Run a job, twice if its box breaks; returns a function that sets the result of its future."""
    try:
        try:
            result = job(referee)
        except BoxError:
            referee.close()
            result = job(referee)
    except BaseException as error:  # noqa: BLE001 - set on the future
        referee.close()
        return functools.partial(Future.set_exception, exception=error)
    return functools.partial(Future.set_result, result=result)


_shared: list[Pool] = []
_lock = threading.Lock()


def shared_pool() -> Pool:
    """The pool of this process, created on first use."""
    with _lock:
        if not _shared:
            _shared.append(Pool(worker_count()))
        return _shared[0]


async def blame_for_box(error: BoxError, lowest: Level, highest: Level, preload: tuple[str, ...]) -> Verdict:
    """The verdict on a program on which two boxes in a row failed; SandboxError if a harmless one fails, too."""

    def try_again(referee: Referee) -> None:
        try_box(referee, BoxKind(choose(lowest, highest), preload))

    try:
        await asyncio.wrap_future(shared_pool().submit(try_again))
    except BoxError as again:
        raise SandboxError(f"code: the sandbox does not work: {again}\n{probe(highest).story()}") from again
    return blamed(f"broke its box twice: {error}"[:400])


def close_pool() -> None:
    """End every box of this process; the next use starts new ones. Registered with `atexit`."""
    with _lock:
        pools, _shared[:] = list(_shared), []
    for pool in pools:
        pool.close()


def _after_fork() -> None:
    global _lock  # noqa: PLW0603 - the inherited one may be locked by a thread that does not exist here
    _lock = threading.Lock()
    for pool in _shared:
        pool.forget()
    _shared.clear()


atexit.register(close_pool)
os.register_at_fork(after_in_child=_after_fork)
