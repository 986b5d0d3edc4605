"""The trainer's side of the process that has imported the tools, and of its forks: ask, wait, kill.

Their own code is in `tools.nursery` and `tools.guest`.
"""

import contextlib
import json
import pickle
import secrets
import socket
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

from grpo_verifiers.errors import VerifierFailedError
from grpo_verifiers.exec.process import SEND_SECONDS, WorkerKind, WorkerLost, WorkerProcess, search_path
from grpo_verifiers.exec.scheduler import BOOT_ATTEMPTS, BOOT_SECONDS, LOAD_SECONDS
from grpo_verifiers.exec.wire import ReplyBuffer, WireError, receive_replies
from grpo_verifiers.sandbox.children import socket_pair
from grpo_verifiers.sandbox.crowd import MAX_PROCESSES
from grpo_verifiers.tools.part import ToolPart


class ProcessLostError(Exception):
    """A process did not answer; the message has the reason."""

    def __init__(self, status: Any, why: str) -> None:
        super().__init__(why)
        self.status = status


class Nursery:
    """The process that has imported the tools; started again if a tool ended it."""

    def __init__(self, parts: Sequence[ToolPart], memory: int | None) -> None:
        self._parts, self._memory = parts, memory
        self._lock = threading.Lock()
        self._process: WorkerProcess | None = None
        self._closed = False

    def start(self) -> None:
        """Start it now; VerifierFailedError where a tool cannot be imported."""
        with self._lock:
            self._ensure_started()

    def fork(self) -> "Fork":
        """A process that has imported the tools."""
        with self._lock:
            for attempt in range(BOOT_ATTEMPTS):
                process = self._ensure_started()
                near, far = socket_pair()
                try:
                    reply = self._ask(process, "fork", self._memory, fd=far.fileno(), seconds=SEND_SECONDS)
                    return Fork(near, self, process, int(reply["pid"]))
                except (WorkerLost, KeyError, TypeError, ValueError) as error:
                    near.close()
                    self._drop()
                    if attempt == BOOT_ATTEMPTS - 1:
                        raise ProcessLostError("died", f"no process could be started for it: {error}") from error
                finally:
                    far.close()
        raise AssertionError

    def end(self, process: WorkerProcess, pid: int) -> None:
        """End a fork with everything below it."""
        with self._lock:
            if process is self._process:  # the forks of one that has ended have ended with it
                try:
                    self._ask(process, "end", pid, seconds=SEND_SECONDS)
                except WorkerLost:
                    self._drop()

    def close(self) -> None:
        """End it with all its forks."""
        with self._lock:
            self._closed = True
            self._drop()

    def forget(self) -> None:
        """In a forked child of the trainer."""
        self._lock, self._closed = threading.Lock(), True
        if self._process is not None:
            self._process.close()
            self._process = None

    def _drop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process = None

    def _ensure_started(self) -> WorkerProcess:
        if self._closed:
            raise ProcessLostError("died", "the run is ending")
        if self._process is not None and self._process.dead():
            self._drop()
        if self._process is None:
            try:
                process = WorkerProcess(WorkerKind(False, None, ()), "grpo_verifiers.tools.nursery")
            except Exception as error:
                raise VerifierFailedError(f"no process for tools could be started: {error}") from error
            try:
                first = process.answer(BOOT_SECONDS)
                payload = pickle.dumps(self._parts)
                reply = self._ask(process, "load", search_path(), payload, seconds=LOAD_SECONDS)
            except (WorkerLost, TimeoutError) as error:
                log = process.boot_log()
                how = process.kill(0.5) or str(error)
                raise VerifierFailedError(f"the process for tools did not start: {how}. {log}".strip()) from error
            if "e" in reply:
                process.kill()
                failure = reply["e"]
                raise VerifierFailedError(
                    f"a tool cannot be loaded in its process: {failure.get('type')}: {failure.get('message')}\n"
                    f"{failure.get('trace', '')}".rstrip()
                )
            process.finish_boot(first)
            self._process = process
        return self._process

    def _ask(
        self, process: WorkerProcess, kind: str, extra: Any, payload: bytes = b"", *, seconds: float, fd: int = -1
    ) -> Mapping[str, Any]:
        try:
            return process.ask(kind, "", extra, payload, seconds=seconds, fd=fd)
        except OSError as error:
            raise WorkerLost(str(error) or "it did not respond in time") from error


class Fork:
    """A fork of the nursery; used by one thread at a time."""

    def __init__(self, sock: socket.socket, nursery: Nursery, process: WorkerProcess, pid: int) -> None:
        self._sock, self._nursery, self._process, self._pid = sock, nursery, process, pid
        self._replies = ReplyBuffer()

    def ask(self, question: Mapping[str, Any], timeout: float) -> Mapping[str, Any]:
        """Return its answer; after a `ProcessLostError` it must be ended."""
        number = secrets.randbits(62)
        body = json.dumps({**question, "id": number}).encode("ascii")
        try:
            self._sock.settimeout(SEND_SECONDS)
            self._sock.sendall(len(body).to_bytes(4, "big") + body)
            replies = receive_replies(self._sock, self._replies, time.monotonic() + timeout)
        except TimeoutError:
            raise ProcessLostError("late", f"it took longer than {timeout:g} s and was ended") from None
        except (OSError, WireError):
            raise ProcessLostError("died", "its process ended") from None
        if replies[-1].get("over"):  # the last message of its keeper
            raise ProcessLostError("died", f"it started more than {MAX_PROCESSES} processes and was ended")
        if len(replies) != 1 or replies[0].get("id") != number:
            raise ProcessLostError("died", "its process broke the protocol and was ended")
        if replies[0].get("m"):
            raise ProcessLostError("died", "it ran out of memory")
        return replies[0]

    def interrupt(self) -> None:
        """From another thread: end the wait for an answer."""
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)

    def end(self) -> None:
        """End it with everything below it."""
        self._sock.close()
        self._nursery.end(self._process, self._pid)

    def forget(self) -> None:
        """In a forked child of the trainer."""
        self._sock.close()
