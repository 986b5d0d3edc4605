"""Processes that this one starts with `subprocess`, and the descriptors that connect them."""

import contextlib
import fcntl
import os
import socket
import subprocess

from grpo_verifiers.sandbox.inside import proc


def off_stdio(fd: int) -> int:
    """Move a descriptor above 2: with stdin closed the next socket would be descriptor 0 and replace it."""
    if fd > 2:
        return fd
    moved = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3)
    os.close(fd)
    return moved


def socket_pair(kind: int = socket.SOCK_STREAM) -> tuple[socket.socket, socket.socket]:
    """Two connected sockets, neither of them on a standard descriptor."""
    near, far = socket.socketpair(socket.AF_UNIX, kind)
    return socket.socket(fileno=off_stdio(near.detach())), socket.socket(fileno=off_stdio(far.detach()))


def end_process(process: "subprocess.Popen[bytes]", patience: float) -> None:
    """Wait ``patience`` seconds for the end of a process, then kill it with its descendants, and reap it.

    Not even SIGKILL ends a process inside a hanging disk operation: rather leave it than hang with it.
    """
    try:
        process.wait(patience)
    except subprocess.TimeoutExpired:
        proc.end_tree(process.pid)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(5)


def disown(process: "subprocess.Popen[bytes]") -> None:
    """In a forked child: drop the parent's process, or the interpreter complains that it still runs."""
    process.returncode = 0
