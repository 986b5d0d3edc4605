"""The referee's own process: it takes jobs from the trainer, one at a time, and ends with it.

Messages of programs are read here. The trainer gets JSON with only the parts that it needs.
"""

import contextlib
import os
import resource
import select
import signal
import socket
import threading
import time
from pathlib import Path
from typing import Any

from grpo_verifiers.code.referee import BoxSet
from grpo_verifiers.exec.wire import pack_reply, read_call
from grpo_verifiers.sandbox import confine, leftovers
from grpo_verifiers.sandbox.inside import proc

_MEMORY = 4 << 30
"""Bytes of address space: of the question, and of one answer at a time."""
_LEAVING = 20.0
_LONG = 0.25
"""Seconds of processor time after which a job gives way: an honest program's takes milliseconds."""
_BEHIND = "10"
_SHARE = Path("/proc/self/autogroup")


class _TrainerEndedError(BaseException):
    """The trainer has ended."""


def main(connection_fd: int, trainer_fd: int) -> None:
    """Serve until the trainer closes the connection, or ends without."""
    confine.limit(None)
    confine.adopt_orphans()
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    # Started processes raise the limit again: boxes have bounds of their own.
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY if hard == resource.RLIM_INFINITY else min(_MEMORY, hard), hard))
    connection = socket.socket(fileno=connection_fd)
    connection.set_inheritable(False)
    os.set_inheritable(trainer_fd, False)
    signal.signal(signal.SIGUSR1, _leave)
    signal.signal(signal.SIGPROF, lambda *_: _step_back(_BEHIND))
    boxes = BoxSet()
    with contextlib.suppress(_TrainerEndedError):
        with contextlib.suppress(_TrainerEndedError):
            threading.Thread(target=_watch, args=(connection_fd, trainer_fd), daemon=True).start()
            _serve(connection, boxes)
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    boxes.end()
    # Orphans of a killed zygote are children of this process; remove the folders after their end.
    proc.end_descendants(os.getpid(), keep=leftovers.cleaners())
    boxes.close()
    os._exit(0)


def _leave(*_: object) -> None:
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    raise _TrainerEndedError


def _watch(connection_fd: int, trainer_fd: int) -> None:
    """Interrupt the job at the end of the trainer; boxes are closed on the way out."""
    poll = select.poll()
    poll.register(connection_fd, select.POLLRDHUP)
    poll.register(trainer_fd, select.POLLIN)
    poll.poll()
    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)
    time.sleep(_LEAVING)
    os._exit(1)


def _serve(connection: socket.socket, boxes: BoxSet) -> None:
    while (message := read_call(connection)) is not None:
        reply: dict[str, Any] = {"id": 0, "s": 0.0}
        signal.setitimer(signal.ITIMER_PROF, _LONG)
        try:
            job, question = message[0]
            reply["value"] = job(question, boxes)
        except Exception as error:  # noqa: BLE001 - reported to the trainer, which raises it
            reply |= {"error": type(error).__name__, "why": str(error)[:4000]}
        del message, question
        signal.setitimer(signal.ITIMER_PROF, 0)
        _step_back("0")
        with contextlib.suppress(ConnectionError):
            connection.sendall(pack_reply(reply))


def _step_back(nice: str) -> None:
    """Set the niceness of this session, if the kernel shares processors among sessions."""
    with contextlib.suppress(OSError):
        if f"nice {nice}\n" not in _SHARE.read_text(encoding="ascii"):
            _SHARE.write_text(nice, encoding="ascii")
