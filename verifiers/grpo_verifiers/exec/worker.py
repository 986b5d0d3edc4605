"""The process that runs checks: ``python -m grpo_verifiers.exec.worker``, never started by a file's path.

It takes one item at a time from the socket it inherited, runs the check, and answers in JSON. It trusts the trainer,
which does not trust it: the trainer keeps the deadline, and kills it by SIGKILL.
"""

import contextlib
import importlib
import os
import pickle
import select
import signal
import socket
import sys
import time
from collections.abc import Callable
from typing import Any, NoReturn

from grpo_verifiers.exec.failure import error_fields, result
from grpo_verifiers.exec.printed import OutputCapture
from grpo_verifiers.exec.wire import pack_reply, read_call, to_rows
from grpo_verifiers.sandbox import confine
from grpo_verifiers.sandbox.crowd import LOOK, MAX_PROCESSES, TOO_MANY, YIELD, Crowd
from grpo_verifiers.sandbox.inside import kernel, proc
from grpo_verifiers.sandbox.inside.wipe import wipe


def _silence() -> None:
    """Send output by descriptor to nowhere; the protocol has its own socket."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(nowhere, fd)
    if nowhere > 2:
        os.close(nowhere)


def silence_again() -> None:
    """Reopen the output streams if a check closed them, so that the next one can print."""
    try:
        for fd in (0, 1, 2):
            os.fstat(fd)
    except OSError:
        _silence()


def _run(fn: Callable[..., Any], payload: bytes) -> list[list[Any] | str]:
    first, rest, rows = pickle.loads(payload)  # noqa: S301 - from the trainer, which started this process
    return to_rows(result(fn, first, rest), rows)


def _serve(sock: socket.socket) -> None:
    """Answer calls until the connection is closed."""
    checks: dict[str, Callable[..., Any]] = {}
    me = os.getpid()
    helpers: set[int] = set()
    while (message := read_call(sock)) is not None:
        (kind, number, key, extra), payload = message
        reply: dict[str, Any] = {"id": number}
        printed = OutputCapture()
        started = time.perf_counter()
        try:
            if kind == "load":
                sys.path[:] = extra
                importlib.invalidate_caches()
                checks[key] = pickle.loads(payload).load()  # noqa: S301 - from the trainer
            else:
                reply["v"] = printed.after_first(_run(checks[key], payload))
        except MemoryError:
            reply["m"] = True
        except BaseException as error:  # noqa: BLE001 - SystemExit and KeyboardInterrupt of a check are its failure
            fields = error_fields(error)
            reply["e"] = dict(fields, message=printed.after(fields["message"]))
        if os.getpid() != me:  # a check forked and its child came back here
            os._exit(0)
        if kind == "load":
            helpers = proc.descendants(me)  # started while importing: they live as long as this worker
        elif proc.has_children():
            proc.end_descendants(me, keep=helpers)
        silence_again()
        reply["s"] = time.perf_counter() - started
        sock.sendall(pack_reply(reply))


def keep(
    worker: int,
    trainer: int,
    *,
    most: int | None = MAX_PROCESSES,
    overrun: Callable[[], None] | None = None,
    folder: str = "",
) -> NoReturn:
    """Wait for the end of the worker or of the trainer (a pidfd), then end everything below; end as the worker did.

    No check runs here, so none can block this process. Beyond ``most`` processes below this one all are
    ended at once, and ``overrun`` is called. ``folder`` is removed at the end: the trainer may be dead.
    """
    kernel.adopt_orphans()
    watch = select.poll()
    ended = os.pidfd_open(worker)
    for fd in (ended, trainer):
        watch.register(fd, select.POLLIN)
    crowd = None if most is None else Crowd(most)
    while not (ready := {fd for fd, _ in watch.poll(None if crowd is None else LOOK)}):
        if crowd is not None and crowd.too_large():
            proc.end_descendants(os.getpid())
            if overrun is not None:
                overrun()
            os._exit(TOO_MANY)
    status = os.waitpid(worker, 0)[1] if ended in ready else 0
    proc.end_descendants(os.getpid())
    if folder:
        with contextlib.suppress(OSError):
            wipe(folder)
    if os.WIFSIGNALED(status):
        with contextlib.suppress(OSError):  # SIGKILL
            signal.signal(os.WTERMSIG(status), signal.SIG_DFL)
        os.kill(os.getpid(), os.WTERMSIG(status))
    os._exit(os.waitstatus_to_exitcode(status) & 0xFF)


def _fork_keeper(parent: int, most: int | None) -> int:
    """Continue in a child, with this process as its keeper, whose process id is returned."""
    folder, keeper, trainer = os.environ["TMPDIR"], os.getpid(), -1
    with contextlib.suppress(ProcessLookupError):
        trainer = os.pidfd_open(parent)
    if trainer < 0 or os.getppid() != parent:  # it died, and its number may be another's by now
        wipe(folder)
        os._exit(0)
    confine.limit(None)
    worker = os.fork()
    if worker:
        os.closerange(3, trainer)
        os.closerange(trainer + 1, 1 << 16)
        _silence()
        keep(worker, trainer, most=most, folder=folder)
    os.setpgid(0, 0)  # without its keeper, so that all of a group can be stopped at once
    os.close(trainer)
    return keeper


def main(
    fd: int, parent: int, serve: Callable[[socket.socket], None] = _serve, *, most: int | None = MAX_PROCESSES
) -> None:
    """Set up the process from the first message, then serve; ``most`` as for `keep`."""
    confine.die_with(_fork_keeper(parent, most))
    sock = socket.socket(fileno=fd)
    sock.set_inheritable(False)
    boot = read_call(sock)
    if boot is None:
        return
    _, number, _, stage = boot[0]
    confine.limit(stage["memory"])
    kernel.adopt_orphans()
    if serve is _serve and not stage["folder"]:
        os.nice(YIELD)
    level = confine.confine(stage["folder"]) if stage["folder"] else {}
    sys.path[:] = stage["path"]
    sys.argv = [""]
    _silence()
    os.register_at_fork(after_in_child=lambda: os.close(sock.detach()) if sock.fileno() >= 0 else None)
    sock.sendall(pack_reply({"id": number, "s": 0.0, "ready": level, "group": os.getpgrp()}))
    with contextlib.suppress(ConnectionError):
        serve(sock)
    proc.end_descendants(os.getpid())


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
