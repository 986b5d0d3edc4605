"""Event loops in daemon threads: one for async checks, one for HTTP, in which no foreign code runs."""

import asyncio
import contextlib
import os
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")
HTTP_THREAD = "grpo-verifiers-http"
"""The thread that all requests run in."""


class LoopThread:
    """An event loop that runs until the process ends; it belongs to the process that created it."""

    def __init__(self, name: str) -> None:
        self.loop = asyncio.new_event_loop()
        self.owner = os.getpid()
        self.blocked = False
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def _run(self) -> None:
        """Run for ever: asyncio would leave the loop, with all other checks, when a check raises SystemExit."""
        while True:
            with contextlib.suppress(SystemExit, KeyboardInterrupt):
                self.loop.run_forever()
                return


_current: dict[str, LoopThread] = {}
_lock = threading.Lock()


def loop_thread(name: str) -> LoopThread:
    """The loop of that name in this process: a new one after a fork, and where the old one is blocked."""
    with _lock:
        current = _current.get(name)
        if current is None or current.blocked or current.owner != os.getpid():
            current = _current[name] = LoopThread(name)
        return current


def submit_http(coroutine: Coroutine[Any, Any, T]) -> Future[T]:
    """Run a coroutine of this package in the loop for HTTP; callable from any thread."""
    return asyncio.run_coroutine_threadsafe(coroutine, loop_thread(HTTP_THREAD).loop)


def wait_http(coroutine: Coroutine[Any, Any, T]) -> T:
    """Like `submit_http`, but wait for the result: for callers without a loop, or with a busy one."""
    future = submit_http(coroutine)
    try:
        return future.result()
    except BaseException:  # an interrupt too: the result is no longer needed
        future.cancel()
        raise


def _after_fork() -> None:
    global _lock  # noqa: PLW0603 - a thread of the parent may have locked the inherited one
    _lock = threading.Lock()
    _current.clear()


os.register_at_fork(after_in_child=_after_fork)
