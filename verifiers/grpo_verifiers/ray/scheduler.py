"""The thread of a runner whose calls run elsewhere: an inbox and a selector."""

import collections
import contextlib
import selectors
import threading
from collections.abc import Callable

from grpo_verifiers.exec.batch import CallBatch, Item
from grpo_verifiers.exec.outcome import Outcome
from grpo_verifiers.exec.process import WorkerKind
from grpo_verifiers.exec.spec import CheckSpec
from grpo_verifiers.sandbox.children import socket_pair


class Scheduler:
    """The thread and its inbox; a subclass runs the calls."""

    _accept: Callable[[WorkerKind, CheckSpec, list[Item], int], None]
    _go_on: Callable[[], None]
    _pause: Callable[[], float | None]
    _event: Callable[[selectors.SelectorKey, int], None]
    _expire: Callable[[], None]
    _end: Callable[[str], None]

    def __init__(self, limit: int) -> None:  # noqa: ARG002 - workers here
        self.confinement: dict[str, str] = {}
        self._inbox: collections.deque[tuple[WorkerKind, CheckSpec, list[Item], int]] = collections.deque()
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
