"""A process that grades programs for a thread of the trainer, which reads no data of a program."""

import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from socket import SHUT_RDWR
from typing import TYPE_CHECKING, Any

from grpo_verifiers.code.levels import SandboxError
from grpo_verifiers.code.tests import BadTestsError
from grpo_verifiers.exec.wire import ReplyBuffer, WireError, pack_call, receive_replies
from grpo_verifiers.sandbox import confine
from grpo_verifiers.sandbox.box import START_SECONDS, Box, BoxError, BoxKind
from grpo_verifiers.sandbox.children import disown, end_process, off_stdio, socket_pair

if TYPE_CHECKING:
    from socket import socket

_PACKAGES = str(Path(__file__).resolve().parents[2])
# After the standard library, and before another copy of this package that may be installed.
_BOOT = (
    "import sys; at = [path.endswith('-packages') for path in sys.path] + [True]; "
    "sys.path.insert(at.index(True), sys.argv[1]); from grpo_verifiers.code._referee_process import main; "
    "main(int(sys.argv[2]), int(sys.argv[3]))"
)
_CLOSING = 5.0
_GRACE = 2 * START_SECONDS + 30
"""Seconds beyond the time of all runs after which a referee must be broken: it may have to start two boxes first."""
_RECYCLE = 20_000
"""Programs after which a box is replaced, to drop any accumulated state."""
_ERRORS: dict[str, type[Exception]] = {kind.__name__: kind for kind in (BoxError, BadTestsError, SandboxError)}


class BoxSet:
    """One box for programs, and, from its first use on, one for tests."""

    def __init__(self) -> None:
        self._boxes: dict[tuple[BoxKind, str], Box] = {}
        self._uses: dict[tuple[BoxKind, str], int] = {}

    def box(self, plan: BoxKind, purpose: str = "programs") -> Box:
        """The box for a purpose, started at first use."""
        key = (plan, purpose)
        self._uses[key] = self._uses.get(key, 0) + 1
        if self._uses[key] > _RECYCLE and key in self._boxes:
            self._boxes.pop(key).close()
            self._uses[key] = 1
        if key not in self._boxes:
            self._boxes[key] = Box(plan)
        return self._boxes[key]

    def end(self) -> None:
        """End the processes of all boxes, without removing their folders."""
        for box in self._boxes.values():
            box.end()

    def close(self) -> None:
        """End all boxes and remove their folders; the next use starts new ones."""
        while self._boxes:
            self._boxes.popitem()[1].close()


class Referee:
    """The handle of a referee process, started with its first job; for one thread at a time."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket | None = None

    def run(self, job: Callable[[Any, BoxSet], Any], question: Any, seconds: float) -> Any:
        """The result of ``job(question, boxes)`` in the referee. It answers in JSON.

        The job, a function of a module, has ``seconds`` plus the time to start boxes. BoxError if a box or the
        referee failed; BadTestsError and SandboxError if the job raised them.
        """
        message = pack_call((job, question))
        until = time.monotonic() + seconds + _GRACE
        if self._process is None or self._process.poll() is not None:
            self.close()
            self._start()
        try:
            reply = self._exchange(message, until)
        except (OSError, WireError) as error:
            self.close()
            raise BoxError(f"the process that grades programs failed ({error})") from error
        if "value" in reply:
            return reply["value"]
        raise _ERRORS.get(str(reply.get("error")), RuntimeError)(str(reply.get("why"))[:4000])

    def _start(self) -> None:
        self._socket, theirs = socket_pair()
        me = off_stdio(os.pidfd_open(os.getpid()))
        try:
            self._process = subprocess.Popen(  # noqa: S603 - our own module
                [sys.executable, "-I", "-c", _BOOT, _PACKAGES, str(theirs.fileno()), str(me)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env={**confine.clean_environment(os.environ), "TMPDIR": tempfile.gettempdir()},
                pass_fds=(theirs.fileno(), me),
                start_new_session=True,
            )
        except BaseException:
            self.close()
            raise
        finally:
            theirs.close()
            os.close(me)

    def _exchange(self, message: bytes, until: float) -> dict[str, Any]:
        connection = self._socket
        if connection is None:
            raise OSError("it is closed")
        connection.settimeout(max(0.01, until - time.monotonic()))
        connection.sendall(message)
        return receive_replies(connection, ReplyBuffer(), until)[0]

    def close(self) -> None:
        """End the process with its boxes; the next job starts a new one."""
        if self._socket is not None:
            self._socket.close()  # it sees that, and closes its boxes
            self._socket = None
        if self._process is not None:
            end_process(self._process, _CLOSING)
            self._process = None

    def interrupt(self) -> None:
        """From another thread: make the current job fail."""
        connection = self._socket
        if connection is not None:
            with contextlib.suppress(OSError):
                connection.shutdown(SHUT_RDWR)

    def forget(self) -> None:
        """In a forked child: drop the parent's referee without changing it."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        if self._process is not None:
            disown(self._process)
            self._process = None
