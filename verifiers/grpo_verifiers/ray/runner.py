"""The trainer's side of calls that run on the nodes of a Ray cluster.

The trainer starts one child (`bridge.py`) that speaks Ray, sends it calls, and reads JSON. Every call gets an
outcome, in order: where the child or the cluster is lost, all open calls fail with the reason.
"""

import collections
import contextlib
import os
import pickle
import selectors
import threading
import time
from collections.abc import Mapping
from typing import Any

from grpo_verifiers.errors import KeywordError
from grpo_verifiers.errors.messages import readable
from grpo_verifiers.exec.batch import CallBatch, Item
from grpo_verifiers.exec.process import Child, WorkerKind, WorkerLost, python_path
from grpo_verifiers.exec.runner import Runner
from grpo_verifiers.exec.scheduler import fail
from grpo_verifiers.exec.spec import CheckSpec
from grpo_verifiers.exec.wire import WireError
from grpo_verifiers.lazy import installed
from grpo_verifiers.ray.station import unpack_outcome
from grpo_verifiers.redaction import get_logger, redact_text
from grpo_verifiers.sandbox.children import disown, end_process, socket_pair

RESOURCE_VARIABLE = "GRPO_VERIFIERS_RAY_RESOURCE"
PATIENCE_VARIABLE = "GRPO_VERIFIERS_RAY_PATIENCE"
DEFAULT_PATIENCE = 120.0
BOOT_SECONDS = 60.0
"""Seconds that the child may take to import Ray and to join the cluster, however short the patience."""
CLOSING_SECONDS = 5.0

_log = get_logger("grpo_verifiers")


def ray_settings() -> dict[str, Any]:
    """The settings in the environment.

    ``resource`` is one that nodes must offer, or empty; calls wait ``patience`` seconds for a cluster without a running
    actor.
    """
    patience = os.environ.get(PATIENCE_VARIABLE, str(DEFAULT_PATIENCE))
    with contextlib.suppress(ValueError):
        if 1 <= float(patience) <= 86_400:
            return {"resource": os.environ.get(RESOURCE_VARIABLE, ""), "patience": float(patience)}
    raise KeywordError(f"{PATIENCE_VARIABLE} is {patience!r}, expected seconds from 1 to 86400.")


class _Link(Child):
    """The child that speaks Ray."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        # Ray puts its working folder on the search path of every actor.
        super().__init__("grpo_verifiers.ray.bridge", {**os.environ, "PYTHONPATH": python_path()}, cwd="/")
        ranks = os.environ.get("WORLD_SIZE", "1")
        self.queue(("boot", 0, "", {**settings, "ranks": int(ranks) if ranks.isdecimal() else 1}))

    def end(self) -> None:
        """Close the connection, and end it if it does not end by itself."""
        self.sock.close()
        self._log.close()
        end_process(self.process, CLOSING_SECONDS)

    def forget(self) -> None:
        """In a forked child: release it without any message."""
        self.sock.close()
        self._log.close()
        disown(self.process)


class RayRunner(Runner):
    """Runs calls as a `Runner` does, on the nodes of a Ray cluster. Its child is started when first needed."""

    def __init__(self) -> None:
        super().__init__(1)
        self.settings = ray_settings()

    @staticmethod
    def problem() -> str:
        """A problem of ``isolation: ray`` that is visible without a connection; empty if there is none."""
        if not installed("ray"):
            return "isolation is 'ray', which needs the package ray: pip install 'ray>=2.40'."
        if (os.environ.get("RAY_ADDRESS") or "").startswith("ray://"):
            return (
                f"isolation is 'ray', and RAY_ADDRESS is {os.environ['RAY_ADDRESS']!r}: Ray's client is not supported; "
                "join the cluster (ray start --address=HOST:6379 --num-cpus=0) and set RAY_ADDRESS to HOST:6379."
            )
        try:
            ray_settings()
        except KeywordError as error:
            return str(error)
        return ""

    def _new_scheduler(self) -> "_Cluster":
        return _Cluster(self.settings)


class _Cluster:
    """The thread that owns the child: an inbox and a selector. It ends with the child; the next call starts another."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self.settings = settings
        self.confinement: dict[str, str] = {}
        self.closing = ""
        self._link: _Link | None = None
        self._answered_at = 0.0
        self._patience = max(settings["patience"], BOOT_SECONDS)
        self._specs: set[str] = set()
        self._open: dict[int, Item] = {}
        self._number = 0
        self._why = ""
        self._inbox: collections.deque[tuple[CheckSpec, list[Item]]] = collections.deque()
        self._selector = selectors.DefaultSelector()
        self._bell, self._ringer = socket_pair()
        self._bell.setblocking(False)
        self._ringer.setblocking(False)
        self._selector.register(self._bell, selectors.EVENT_READ, None)
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._main, name="grpo-verifiers", daemon=True)
        self._thread.start()

    # -- called from any thread

    def submit(self, kind: WorkerKind, batch: CallBatch, workers: int = 0) -> None:  # noqa: ARG002 - no workers here
        """Queue every call of a batch; the first batch, even an empty one, starts the child."""
        items = [Item(batch, index) for index in range(len(batch.payloads))]
        with self._lock:
            closed = self.closing
            if not closed:
                self._inbox.append((batch.spec, items))
        if closed:
            fail(items, closed)
        else:
            self._ring()

    def close(self) -> None:
        """End the child and fail every open item."""
        with self._lock:
            self.closing = self.closing or "the runner was closed"
        self._ring()
        self._thread.join(30)

    def pids(self) -> list[int]:
        link = self._link
        return [link.process.pid] if link is not None else []

    def abandon(self) -> None:
        """In a forked child: close the parent's connection."""
        if self._link is not None:
            self._link.forget()

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
                self._flush()
                for key, events in self._selector.select(0.5 if self._link else None):
                    if key.data is not None and events & selectors.EVENT_READ:
                        self._receive(key.data)
                if self._link is not None and time.monotonic() - self._answered_at > self._patience:
                    self._lose(f"the process that speaks Ray was silent for {self._patience:g} s")
        except BaseException as error:  # of any kind: no caller may wait for ever
            reason = f"the runner's thread failed: {type(error).__name__}: {error}"
            raise
        finally:
            with self._lock:
                self.closing = reason
            self._take()
            link, self._link = self._link, None
            if link is not None:
                with contextlib.suppress(Exception):
                    link.end()
            fail(self._open.values(), self._why or reason)
            self._selector.close()
            self._bell.close()
            self._ringer.close()

    def _take(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while self._bell.recv(4096):
                pass
        while self._inbox:
            self._accept(*self._inbox.popleft())

    def _accept(self, spec: CheckSpec, items: list[Item]) -> None:
        new = dict(enumerate(items, self._number + 1))
        self._number += len(items)
        self._open |= new  # all of them before one fails to be sent
        if self.closing:
            return
        if self._link is None:
            try:
                self._link = _Link(self.settings)
            except Exception as error:  # noqa: BLE001 - no memory, no descriptors: all mean no child
                self._lose(f"the process that speaks Ray cannot be started: {type(error).__name__}: {error}")
                return
            self._answered_at = time.monotonic()
            self._selector.register(self._link.sock, selectors.EVENT_READ, self._link)
        if spec.identity not in self._specs:
            self._specs.add(spec.identity)
            self._link.queue(("spec", 0, spec.identity, None), pickle.dumps(spec))
        for number, item in new.items():
            about = "run", number, spec.identity, (item.batch.timeout, item.batch.rows[item.index])
            self._link.queue(about, item.batch.payloads[item.index])

    def _flush(self) -> None:
        if self._link is not None:
            try:
                sent = self._link.flush()
            except WorkerLost:
                self._lose("the process that speaks Ray ended")
                return
            events = selectors.EVENT_READ | (0 if sent else selectors.EVENT_WRITE)
            self._selector.modify(self._link.sock, events, self._link)

    def _receive(self, link: _Link) -> None:
        self._answered_at, self._patience = time.monotonic(), self.settings["patience"]
        try:
            data = link.sock.recv(1 << 18)
            for reply in link.replies.feed(data):
                self._reply(reply)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        except WireError as error:
            self._lose(f"the process that speaks Ray {error}")
        if not data:
            self._lose("the process that speaks Ray ended")

    def _reply(self, reply: Mapping[str, Any]) -> None:
        if "id" in reply:
            number = reply["id"] if type(reply["id"]) is int else 0
            if (item := self._open.get(number)) is not None:
                outcome = unpack_outcome(reply, item.batch.rows[item.index])
                del self._open[number]
                item.batch.put(item.index, outcome)
        elif "note" in reply:
            _log.warning("verifiers on Ray: %s", readable(redact_text(str(reply["note"])), 2000))
        elif "gone" in reply:
            self._lose(redact_text(str(reply["gone"])))

    def _lose(self, why: str) -> None:
        """End with the child; the first reason counts, and is that of all open calls."""
        if self._why:
            return
        printed = readable(self._link.printed(), 2000) if self._link is not None else ""
        self._why = (
            f"the Ray cluster does not run its calls: {why.rstrip('. ')}. Look after the cluster (ray start "
            "--head starts one) and RAY_ADDRESS, or leave isolation out."
        ) + (f" It printed: {printed}" if printed else "")
        if not self._open:
            _log.warning("verifiers on Ray: %s", readable(self._why, 3000))
        with self._lock:
            self.closing = self.closing or self._why
