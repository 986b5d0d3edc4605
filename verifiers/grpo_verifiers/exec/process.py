"""The trainer's side of one worker process: start it, talk without blocking, kill it with its descendants."""

import collections
import contextlib
import os
import secrets
import select
import site
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grpo_verifiers.errors import VerifierFailedError
from grpo_verifiers.exec.outcome import MARK
from grpo_verifiers.exec.wire import ReplyBuffer, WireError, pack_call
from grpo_verifiers.sandbox import confine
from grpo_verifiers.sandbox.children import disown, off_stdio, socket_pair
from grpo_verifiers.sandbox.crowd import MAX_PROCESSES, TOO_MANY
from grpo_verifiers.sandbox.inside import proc
from grpo_verifiers.sandbox.inside.wipe import wipe
from grpo_verifiers.sandbox.leftovers import OwnFolder

KEEP_VARIABLE = "GRPO_VERIFIERS_KEEP_ENV"
"""Names, separated by commas, of variables that workers of user checks keep although they look like secrets."""

SEND_SECONDS = 60.0
_DAY_MS = 86_400_000

_PACKAGE_PARENT = str(Path(__file__).resolve().parents[2])


class WorkerLost(Exception):  # noqa: N818 - an event of the protocol, for the scheduler only
    """The worker closed its end, died, or broke the protocol."""


class BellRang(Exception):  # noqa: N818 - an event as well
    """The wait for a worker is to end."""


@dataclass(frozen=True)
class WorkerKind:
    """The properties that all workers of a pool share.

    Attributes:
        confined: they give up network, writable files and privileges.
        memory: bytes of address space; None for no bound.
        env: variables that they keep although they look like secrets; None: not those of `KEEP_VARIABLE` either.
    """

    confined: bool
    memory: int | None
    env: tuple[str, ...] | None


def _environment(kind: WorkerKind, mark: str, folder: str) -> dict[str, str]:
    names = {*(kind.env or ()), *os.environ.get(KEEP_VARIABLE, "").replace(",", " ").split()}
    env = confine.clean_environment(os.environ, () if kind.confined or kind.env is None else names)
    env[MARK] = mark
    env["TMPDIR"] = folder
    if kind.confined:
        env.setdefault("HOME", folder)
    env["PYTHONPATH"] = python_path()
    return env


def python_path() -> str:
    """``PYTHONPATH`` for a process that runs this package, in any working directory."""
    sites = {str(Path(path).resolve()) for path in [*site.getsitepackages(), site.getusersitepackages()]}
    own = {_PACKAGE_PARENT} - sites  # a site folder on PYTHONPATH would come before the standard library
    inherited = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    return os.pathsep.join([*own, *(str(Path(each).absolute()) for each in inherited)])


def search_path() -> list[str]:
    """``sys.path`` of this process for one that may have another working directory."""
    return [str(Path(entry).absolute()) for entry in sys.path]


class Child:
    """A child process connected by a socket, with its printed output; every method returns at once."""

    def __init__(self, module: str, env: Mapping[str, str], cwd: str | None = None) -> None:
        if not sys.executable:
            raise VerifierFailedError("sys.executable is empty: there is no Python to start verifier workers with.")
        self.replies = ReplyBuffer()
        self.out: collections.deque[memoryview] = collections.deque()
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as it prints
        self.sock, theirs = socket_pair()
        self.sock.setblocking(False)
        try:
            self.process = subprocess.Popen(  # noqa: S603 - our own module
                [sys.executable, "-P", "-m", module, str(theirs.fileno()), str(os.getpid())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self._log,
                env=env,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
                cwd=cwd,
            )
        except BaseException:
            self.sock.close()
            self._log.close()
            raise
        finally:
            theirs.close()

    def queue(self, head: tuple[Any, ...], payload: bytes = b"") -> None:
        """Queue a message for ``flush``."""
        self.out.append(memoryview(pack_call(head, payload)))

    def flush(self) -> bool:
        """Send as much as the socket takes; True once all is sent. WorkerLost if the connection is closed."""
        while self.out:
            try:
                sent = self.sock.send(self.out[0])
            except BlockingIOError:
                return False
            except OSError as error:
                raise WorkerLost(str(error)) from error
            self.out[0] = self.out[0][sent:]
            if not self.out[0]:
                self.out.popleft()
        return True

    def printed(self) -> str:
        """The end of its printed output."""
        self._log.seek(0, os.SEEK_END)
        self._log.seek(max(0, self._log.tell() - 2000))
        return self._log.read().decode("utf-8", "replace").strip()


class WorkerProcess(Child):
    """A started worker."""

    def __init__(self, kind: WorkerKind, module: str = "grpo_verifiers.exec.worker") -> None:
        """Start a worker that runs ``module``; its first reply reports that it is ready."""
        self.mark = f"{MARK}-{uuid.uuid4().hex}"
        self._own = OwnFolder(tempfile.gettempdir(), "grpo-verifiers.")
        self.folder = self._own.path
        try:
            super().__init__(module, _environment(kind, self.mark, self.folder))
        except BaseException:
            self._drop_folder()
            raise
        self.pid = self._group = self.process.pid
        self.death_fd = off_stdio(os.pidfd_open(self.pid))
        stage = {"memory": kind.memory, "folder": self.folder if kind.confined else "", "path": search_path()}
        self.queue(("boot", 0, "", stage))

    def receive(self) -> list[Mapping[str, Any]]:
        """The replies so far. WorkerLost if it closed the connection or sent an invalid reply."""
        replies: list[Mapping[str, Any]] = []
        while True:
            try:
                data = self.sock.recv(1 << 18)
            except BlockingIOError:
                return replies
            except OSError as error:
                raise WorkerLost(str(error)) from error
            if not data:
                if replies:
                    return replies  # the end is reported again on the next call
                raise WorkerLost("it closed the connection")
            try:
                replies += self.replies.feed(data)
            except WireError as error:
                raise WorkerLost(f"it broke the protocol: {error}") from error
            if len(data) < 1 << 18:
                return replies

    def ask(
        self, kind: str, key: str, extra: Any, payload: bytes = b"", *, seconds: float, bell: int = -1, fd: int = -1
    ) -> Mapping[str, Any]:
        """Send a message, and a descriptor after it, and return its answer; errors as of ``answer``."""
        # Random: an earlier check left running could guess the next number and answer for a foreign item.
        number = secrets.randbits(62)
        self.queue((kind, number, key, extra), payload)
        reply = self.answer(seconds, bell, fd)
        if reply.get("id") != number:
            raise WorkerLost("it sent an unexpected reply")
        return reply

    def answer(self, seconds: float, bell: int = -1, fd: int = -1) -> Mapping[str, Any]:
        """Send queued messages, then ``fd``, and return the next reply.

        TimeoutError after ``seconds``, which begin once the worker has the message; WorkerLost if it ends or
        breaks the protocol; BellRang once the descriptor ``bell`` is readable.
        """
        poll = select.poll()
        for each in (self.death_fd, bell):
            if each >= 0:
                poll.register(each, select.POLLIN)
        sent, until = False, time.monotonic() + SEND_SECONDS
        while True:
            if not sent and self.flush():
                sent, until = True, time.monotonic() + seconds
                if fd >= 0:
                    socket.send_fds(self.sock, [b"F"], [fd])
            poll.register(self.sock, select.POLLIN | (0 if sent else select.POLLOUT))
            left = until - time.monotonic()
            ready = {each for each, _ in poll.poll(min(max(0.0, left) * 1000, _DAY_MS))}
            if bell in ready:
                raise BellRang
            if replies := self.receive():
                if len(replies) > 1 or not sent:
                    raise WorkerLost("it sent an unexpected reply")
                return replies[0]
            if self.death_fd in ready:
                raise WorkerLost("it ended")
            if not ready and left <= 0:
                raise TimeoutError if sent else WorkerLost("it did not respond in time")

    def finish_boot(self, first: Mapping[str, Any]) -> None:
        """Drop the log of the start; ``first``, the first reply, has the group of the worker."""
        group = first.get("group")
        self._group = group if isinstance(group, int) and group > 1 else self.pid
        self._log.close()

    def boot_log(self) -> str:
        """The end of the worker's printed output during its start."""
        return "" if self._log.closed else self.printed()

    def dead(self) -> bool:
        """True once the process has ended, even if a child of it holds the socket open."""
        return self.process.poll() is not None

    def kill(self, grace: float = 0.0) -> str:
        """End and reap it with everything it started. Return how it ended on its own, if it did.

        A process with a closed connection gets ``grace`` seconds to end, so that its exit status can be read.
        """
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(grace)
        alone = self.process.poll()
        if alone is None:
            left: Iterable[int] = proc.end_tree(self.pid)
            # Not even SIGKILL ends a process inside a hanging disk operation: rather leave it than hang with it.
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(5)
        else:
            left = proc.end_marked(self.mark)
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._group, 9)  # processes that cleared their environment, but stayed in the group
        proc.reap(left)
        self.close()
        self._log.close()
        self._drop_folder()
        if alone is None:
            return ""
        if alone == TOO_MANY:
            return f"it had started more than {MAX_PROCESSES} processes and was ended"
        return f"killed by signal {-alone}" if alone < 0 else f"exited with code {alone}"

    def close(self) -> None:
        """Close this side's descriptors; a live worker then sees the end of the connection."""
        self.sock.close()
        if self.death_fd >= 0:
            os.close(self.death_fd)
            self.death_fd = -1

    def forget(self) -> None:
        """In a forked child: drop the parent's worker without changing it."""
        self.close()
        self._own.release()
        disown(self.process)

    def _drop_folder(self) -> None:
        with contextlib.suppress(OSError):
            wipe(self.folder)
        self._own.release()
