"""Requests in flight: a bound on their number, identical ones merged, successful ones remembered."""

import os
import queue
import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future
from functools import lru_cache

from grpo_verifiers.verdict import Verdict

_IDLE_SECONDS = 30.0


class Pool:
    """Up to ``concurrency`` daemon threads, none of which outlives the process or keeps it from ending.

    They belong to no event loop, so that the bound and the cache hold over all loops and calls of a process.
    """

    def __init__(self, concurrency: int, cache_size: int) -> None:
        self._concurrency = concurrency
        self._cache_size = cache_size
        self._lock = threading.Lock()
        self._threads = 0
        self._jobs: queue.SimpleQueue[tuple[str, Future[Verdict], Callable[[], Verdict]]] = queue.SimpleQueue()
        self._cache: OrderedDict[str, Verdict] = OrderedDict()
        self._pending: dict[str, Future[Verdict]] = {}

    def submit(self, key: str, job: Callable[[], Verdict]) -> Future[Verdict]:
        """The verdict of ``key``: a remembered one, that of the same request on its way, or a new one's."""
        with self._lock:
            if key in self._cache:
                self._cache.move_to_end(key)
                done: Future[Verdict] = Future()
                done.set_result(self._cache[key])
                return done
            pending = self._pending.get(key)
            if pending is not None and not pending.cancelled():
                return pending
            future: Future[Verdict] = Future()
            if self._cache_size:
                self._pending[key] = future
            self._jobs.put((key, future, job))
            if self._threads < self._concurrency:
                self._threads += 1
                threading.Thread(target=self._work, name="grpo-judge", daemon=True).start()
        return future

    def _settle(self, key: str, future: Future[Verdict], verdict: Verdict | None) -> None:
        """Remember a verdict before anybody is told of it, so that whoever asks next finds it."""
        with self._lock:
            if self._pending.get(key) is future:
                del self._pending[key]
            if self._cache_size and verdict is not None and verdict.score is not None:
                self._cache[key] = verdict
                while len(self._cache) > self._cache_size:
                    self._cache.popitem(last=False)

    def _work(self) -> None:
        while True:
            try:
                key, future, job = self._jobs.get(timeout=_IDLE_SECONDS)
            except queue.Empty:
                with self._lock:
                    if self._jobs.empty():
                        self._threads -= 1
                        return
                continue
            if not future.set_running_or_notify_cancel():
                self._settle(key, future, None)
                continue
            try:
                verdict = job()
            except BaseException as error:  # noqa: BLE001 - whoever waits gets it
                self._settle(key, future, None)
                future.set_exception(error)
            else:
                self._settle(key, future, verdict)
                future.set_result(verdict)
            del future, job  # a waiting thread must not keep the last request's texts alive


@lru_cache(maxsize=64)
def pool_of(url: str, concurrency: int, cache_size: int) -> Pool:  # noqa: ARG001 - one pool an endpoint
    """The pool that all judges of an endpoint with these bounds share."""
    return Pool(concurrency, cache_size)


# Threads do not survive a fork: a child that inherited the pools would wait for them forever.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=pool_of.cache_clear)
