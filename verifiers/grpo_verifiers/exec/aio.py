"""Async checks: all of one process run in a single event-loop thread, each with its own deadline."""

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from grpo_verifiers.exec.batch import Call, only_in
from grpo_verifiers.exec.failure import call, error_fields, outcome_of
from grpo_verifiers.exec.loop import LoopThread, loop_thread
from grpo_verifiers.exec.outcome import Outcome
from grpo_verifiers.exec.wire import from_rows, to_rows

GRACE = 2.0
"""Seconds past a deadline after which the event loop counts as blocked: only that delays a timer."""


class Gate:
    """A limit on the concurrent calls of one verifier, over all its batches."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._of: tuple[LoopThread, asyncio.Semaphore] | None = None

    def semaphore(self, loop: LoopThread) -> asyncio.Semaphore:
        """The semaphore for a loop; runs in that loop's thread."""
        if self._of is None or self._of[0] is not loop:
            self._of = (loop, asyncio.Semaphore(self.limit))
        return self._of[1]


class AsyncBatch:
    """Concurrent calls of one coroutine function."""

    def __init__(
        self, fn: Callable[..., Coroutine[Any, Any, Any]], calls: Sequence[Call], timeout: float, gate: Gate
    ) -> None:
        self._fn, self._calls, self._timeout, self._gate = fn, calls, timeout, gate
        self._outcomes: dict[int, Outcome] = {}
        self._started: dict[int, float] = {}
        self._tasks: dict[int, asyncio.Task[Any]] = {}
        self._moved = False
        self._done = threading.Event()
        self._submit(range(len(calls)))

    def wait(self) -> list[Outcome]:
        """Every outcome, in order; a check that blocks the event loop fails its own item only."""
        if not self._done.is_set():
            only_in(self._loop.owner)
        while not self._done.wait(0.1):
            late = [
                index
                for index, start in list(self._started.items())
                if index not in self._outcomes and time.monotonic() - start > self._timeout + GRACE
            ]
            if late or self._loop.blocked:
                self._leave(self._guilty(late))
        return [self._outcomes[index] for index in range(len(self._calls))]

    def _guilty(self, late: Sequence[int]) -> list[int]:
        """The late check that blocks the loop and all other checks in it.

        If an inner task blocks, its check is unknown: all are moved once, and blamed when late again.
        """
        stuck = asyncio.current_task(self._loop.loop)
        return [index for index in late if self._moved or (stuck is not None and self._tasks.get(index) is stuck)]

    def _leave(self, late: Sequence[int]) -> None:
        """Abandon a blocked loop; run the remaining checks in a new one."""
        self._loop.blocked = True
        self._moved = not late
        for index in late:
            message = f"blocked the event loop for {self._timeout:g} s: await instead, or isolation='process'"
            self._put(index, Outcome("timeout", message=message, seconds=self._timeout))
        self._started = {}
        self._submit([index for index in range(len(self._calls)) if index not in self._outcomes])

    def _submit(self, indices: Sequence[int]) -> None:
        loop = self._loop = loop_thread("grpo-verifiers-async")
        if not indices:
            self._done.set()
            return

        async def everything() -> None:
            gate = self._gate.semaphore(loop)
            await asyncio.gather(*(self._one(index, gate, self._started) for index in indices))

        asyncio.run_coroutine_threadsafe(everything(), loop.loop)

    async def _one(self, index: int, gate: asyncio.Semaphore, started: dict[int, float]) -> None:
        first, rest, rows = self._calls[index]
        async with gate:
            begin = started[index] = time.monotonic()
            try:
                task = self._tasks[index] = asyncio.create_task(_awaited(call(self._fn, first, rest)))
                await asyncio.wait({task}, timeout=self._timeout)
                if task.done():
                    verdicts = from_rows(to_rows(task.result(), rows), rows or 1)
                    outcome = Outcome("value", verdicts, seconds=time.monotonic() - begin)
                else:
                    task.cancel()  # not awaited: it may refuse to end
                    task.add_done_callback(_forget)
                    outcome = Outcome("timeout", message=f"no answer in {self._timeout:g} s", seconds=self._timeout)
            except BaseException as error:  # noqa: BLE001 - any exception is a failure of the check, SystemExit too
                outcome = outcome_of(error_fields(error), time.monotonic() - begin)
        self._put(index, outcome)

    def _put(self, index: int, outcome: Outcome) -> None:
        self._outcomes.setdefault(index, outcome)
        if len(self._outcomes) == len(self._calls):
            self._done.set()


async def _awaited(value: Any) -> Any:
    try:
        return await value
    except SystemExit as error:  # a task's would end the loop, and with it every other check
        raise RuntimeError(f"it ends the program: SystemExit: {error}") from error


def _forget(task: "asyncio.Future[Any]") -> None:
    """Retrieve a late exception, so that asyncio does not log it as never retrieved."""
    if not task.cancelled():
        task.exception()
