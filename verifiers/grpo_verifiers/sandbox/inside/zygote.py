"""The process that forks programs. It reads nothing that a program wrote, and no program can touch it.

Usage: the parent starts it with a control socket and a descriptor of itself, and sends how to set the stage. Each
further message starts one program, with that program's descriptors; the answer describes its end.
"""

import contextlib
import fcntl
import gc
import importlib
import json
import os
import resource
import select
import signal
import site
import socket
import sys
import time
from collections.abc import Callable
from typing import Any

from .stage import Stage

_READY = select.POLLIN | select.POLLHUP | select.POLLERR


def main(control_fd: int, parent_fd: int, guest: Callable[[socket.socket], None]) -> None:
    """Set the stage, then serve the parent, of which ``parent_fd`` is a pidfd, until it goes away.

    ``guest`` runs in each forked program, with its channel.
    """
    os.dup2(0, 1)  # nowhere
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (hard, hard))  # the starting process has a bound of its own
    control = socket.socket(fileno=control_fd)
    plan = json.loads(control.recv(1 << 20))
    try:
        stage = Stage(plan)
        sys.path += plan["path"]
        for name in plan["preload"]:
            importlib.import_module(name)
        sys.stdout.flush()  # before the fork, or every child prints the buffered output again
        stage.finish()
    except Exception as error:  # noqa: BLE001 - all of it is for the parent to report
        control.send(json.dumps({"failed": f"{type(error).__name__}: {error}"[:2000]}).encode())
        return
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    sys.argv[:] = ["program.py"]
    site.setquit()  # -S leaves exit and quit out
    site.sethelper()
    gc.collect()
    gc.freeze()
    control.send(json.dumps({"ready": stage.reached}).encode())
    _serve(control, parent_fd, stage, guest)


def _serve(control: socket.socket, parent_fd: int, stage: Stage, guest: Callable[[socket.socket], None]) -> None:
    watch = select.poll()
    watch.register(control, _READY)
    watch.register(parent_fd, _READY)
    while True:
        if any(fd == parent_fd for fd, _ in watch.poll()):
            return
        message, fds, _, _ = socket.recv_fds(control, 1 << 16, 8)
        if not message:
            return
        job = json.loads(message)
        if "run" not in job:  # a request to end a program that had ended by itself
            continue
        try:
            ending = _run(job, fds, control, parent_fd, stage, guest=guest)
        except OSError as error:
            ending = {"end": "failed", "why": f"{type(error).__name__}: {error}"}
        finally:
            for fd in fds:
                with contextlib.suppress(OSError):
                    os.close(fd)
        if ending is None:
            return
        ending["run"] = job["run"]
        control.send(json.dumps(ending).encode())


def _run(
    job: dict[str, Any],
    fds: list[int],
    control: socket.socket,
    parent_fd: int,
    stage: Stage,
    *,
    guest: Callable[[socket.socket], None],
) -> dict[str, Any] | None:
    """Fork one program and wait for its end; None if the parent has ended."""
    started = time.monotonic()
    folder = stage.folder()
    pid = stage.fork()
    if pid == 0:
        try:
            guest(_become(job, fds, stage, folder))
        finally:
            os._exit(0)
    while fds:
        os.close(fds.pop())
    pidfd = os.pidfd_open(pid)
    wait = select.poll()
    for fd in (pidfd, control.fileno(), parent_fd):
        wait.register(fd, _READY)
    ending: dict[str, Any] | None = {"end": "exit"}
    while True:
        left = job["wall"] - (time.monotonic() - started)
        ready = {fd for fd, _ in wait.poll(max(0, int(left * 1000) + 1))}
        if pidfd in ready:
            break
        if control.fileno() in ready:
            # During a run the parent only sends the number of the program to end.
            message = control.recv(1 << 16)
            if message and json.loads(message).get("stop") != job["run"]:
                continue
            ending = {"end": "stopped"} if message else None
            break
        if parent_fd in ready:
            ending = None
            break
        if left <= 0:
            ending = {"end": "timeout"}
            break
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    _, status, usage = os.wait4(pid, 0)
    os.close(pidfd)
    stage.sweep(folder)
    if ending is not None:
        ending["cpu"] = usage.ru_utime + usage.ru_stime
        ending["status"] = status
        ending["seconds"] = time.monotonic() - started
        if ending["end"] == "exit" and os.WIFSIGNALED(status) and os.WTERMSIG(status) in {9, signal.SIGXCPU}:
            # On a busy machine the limit counts clock ticks, which may be more than the time that is reported.
            ending["end"] = "timeout" if ending["cpu"] >= 0.5 * job["cpu"] else "killed"
    return ending


def _become(job: dict[str, Any], fds: list[int], stage: Stage, folder: str) -> socket.socket:
    """In the forked child: take the program's place; its channel."""
    roles = dict(zip(job["fds"], fds, strict=True))
    # Free the low descriptors before anything is put there.
    moved = {role: fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 100) for role, fd in roles.items()}
    try:
        os.setsid()
        # Not the zygote's own: an open file that two processes share has one offset and one lock.
        null = os.open("/dev/null", os.O_RDWR)
        for number, role in ((0, "stdin"), (1, "stdout"), (2, "stderr")):
            os.dup2(moved.get(role, null), number)
        channel = socket.socket(fileno=os.dup2(moved["channel"], 3, inheritable=False))
        setup = os.dup2(moved["setup"], 4, inheritable=False)
        moved["setup"] = setup
        stage.keep_only(5)
        limits = {
            resource.RLIMIT_CPU: (job["cpu"], job["cpu"]),
            resource.RLIMIT_FSIZE: (job["disk"], job["disk"]),
            resource.RLIMIT_NOFILE: (job["files"], job["files"]),
            resource.RLIMIT_MEMLOCK: (0, 0),
            resource.RLIMIT_MSGQUEUE: (0, 0),
        }
        stage.enter(folder, limits, job["memory"], job["processes"], job["disk"])
    except BaseException as error:  # noqa: BLE001 - reported to the parent while only this package's code has run
        os.write(moved["setup"], f"{type(error).__name__}: {error}"[:1000].encode("utf-8", "replace"))
        os._exit(1)
    os.close(setup)  # from here on no program can report a failure of the box
    gc.enable()
    return channel
