"""Confinement of programs, level by level: set up once in the zygote, entered by each program."""

import contextlib
import ctypes
import math
import os
import resource
import signal
import sys
import time
from collections.abc import Iterator
from typing import Any

from . import kernel, landlock, proc, seccomp
from .kernel import libc, must
from .wipe import wipe

_NO_SUID_NO_DEV, _PRIVATE = 6, 1 << 18 | 1 << 14
_INODES = 4096
_PRIVATE_FOLDER = "/box/tmp/own"
"""Mount point of each program's own file system at level full."""


class Stage:
    """Set up in the zygote; ``fork`` and ``enter`` once a program."""

    def __init__(self, plan: dict[str, Any]) -> None:
        """Set it by ``level``, ``uid`` (None: stay who we are), ``tmp``, ``read``, ``list`` and ``path``.

        Private folders are made in ``tmp``, but at level full. Programs may read what is in ``read``, list the folders
        of ``list``, and read those packages in the folders of ``path`` that are imported.
        """
        kernel.no_core_dumps()
        self._plan = plan
        self.level: str = plan["level"]
        self._uid: int | None = plan["uid"]
        self._tmp: str = plan["tmp"]
        self._count = 0
        self.reached: dict[str, str] = {"level": self.level}
        self._landlock: landlock.Rules | None = None
        self._seccomp = None
        self._base_tasks, self._counted = 0, -math.inf
        self._base_memory = 0
        if self.level == "full":
            self._own_namespaces()
        else:
            kernel.adopt_orphans()
            with contextlib.suppress(OSError):  # where we may; a program of another user sees which files were read
                kernel.keep_no_access_times()
        self._badness, self._own_badness = -1, b""
        with contextlib.suppress(OSError):
            self._badness = os.open("/proc/self/oom_score_adj", os.O_RDWR | os.O_CLOEXEC)
            self._own_badness = os.read(self._badness, 16)
        if self.level == "process" and self._uid is None and _is_root_outside():
            raise OSError("programs would run as root, whose processes the kernel does not bound")
        if self.level != "none":
            if not landlock.version():
                raise OSError("this kernel has no Landlock (Linux 5.13 or newer, with landlock among its LSMs)")
            self._seccomp = seccomp.build(alone=self.level == "full")
            if self._seccomp is None:
                raise OSError("no list of system calls for this machine (x86_64 and aarch64 have one)")
            self.reached["landlock"] = str(landlock.version())
            kernel.control(kernel.DUMPABLE, 0, "hiding the zygote's memory")

    def _own_namespaces(self) -> None:
        """Give up the real user, then take namespaces of our own and become the first process there."""
        if self._uid is not None:
            os.setgroups([])
            os.setresgid(self._uid, self._uid, self._uid)
            os.setresuid(self._uid, self._uid, self._uid)
        uid, gid = os.getuid(), os.getgid()
        kernel.control(kernel.DUMPABLE, 1, "prctl")  # else /proc/self would belong to root
        must(
            libc.unshare(
                kernel.NEW_USER | kernel.NEW_MOUNTS | kernel.NEW_PIDS | kernel.NEW_NET | kernel.NEW_IPC | kernel.NEW_UTS
            ),
            "new namespaces inside bubblewrap",
        )
        kernel.keep_user(uid, gid)
        pid = os.fork()
        if pid:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            _, status = os.waitpid(pid, 0)
            os._exit(os.waitstatus_to_exitcode(status) & 0xFF)
        must(libc.mount(b"none", b"/", None, ctypes.c_ulong(_PRIVATE), None), "a private mount tree")
        self._self_fd = os.pidfd_open(os.getpid())

    def finish(self) -> None:
        """After all imports: measure, and give up the rights that only the preparation needed."""
        with open("/proc/self/statm", encoding="ascii") as file:  # noqa: PTH123 - no pathlib in the box
            self._base_memory = int(file.read().split()[0]) * resource.getpagesize()
        if self.level != "none":
            readable = [*self._plan["read"], *_imported_paths(self._plan["path"])]
            folders = os.path.dirname(_PRIVATE_FOLDER) if self.level == "full" else self._tmp  # noqa: PTH120 - same
            self._landlock = landlock.Rules(readable, self._plan["list"], folders)
        if self.level != "full":
            return
        _at_home(_PRIVATE_FOLDER)
        # Over the /proc that was needed above: programs see none at all.
        must(
            libc.mount(b"tmpfs", b"/proc", b"tmpfs", ctypes.c_ulong(_NO_SUID_NO_DEV | 1), b"size=4k,mode=0555"),
            "covering /proc",
        )
        for number in range(64):
            libc.prctl(kernel.DROP_BOUNDING, number, 0, 0, 0)  # those that do not exist fail

    def folder(self) -> str:
        """A private folder for the next program."""
        if self.level == "full":
            return _PRIVATE_FOLDER
        self._count += 1
        if self.level == "process" and self._uid is None and time.monotonic() - self._counted > 2:
            # The kernel's limit counts every thread of this user, the trainer's among them.
            self._base_tasks, self._counted = _tasks_of(os.getuid()) + 8, time.monotonic()
        path = f"{self._tmp}/{self._count}"
        os.mkdir(path, 0o700)  # noqa: PTH102 - no pathlib in the box
        if self.level == "process" and self._uid is not None:
            os.chown(path, self._uid, self._uid)
        return path

    def fork(self) -> int:
        """``os.fork``, into a process namespace of its own at level full."""
        if self.level != "full":
            return self._fork()
        must(libc.unshare(kernel.NEW_PIDS), "a process namespace for a program")
        try:
            pid = self._fork()
        except OSError:
            libc.setns(self._self_fd, kernel.NEW_PIDS)
            raise
        if pid:
            must(libc.setns(self._self_fd, kernel.NEW_PIDS), "returning to the zygote's process namespace")
        return pid

    def _fork(self) -> int:
        """Should memory run out, a program is to go: not the zygote, which a cgroup holds too, and not the trainer."""
        self._offer(b"1000")
        try:
            return os.fork()
        finally:  # in the child as well, to no effect: the file is the zygote's
            self._offer(self._own_badness)

    def _offer(self, badness: bytes) -> None:
        """Set the out-of-memory score of this process and its future children."""
        with contextlib.suppress(OSError):
            os.pwrite(self._badness, badness, 0)

    def keep_only(self, first: int) -> None:
        """In the child: close every descriptor from ``first`` on, but those that Landlock still needs."""
        for fd in sorted(self._landlock.opened) if self._landlock else ():
            os.closerange(first, fd)
            first = fd + 1
        os.closerange(first, 1 << 20)

    def enter(self, folder: str, limits: dict[int, tuple[int, int]], memory: int, processes: int, disk: int) -> None:
        """In the child: give up all rights. Any failure here ends the child before it runs the program."""
        if self.level == "full":
            must(libc.unshare(kernel.NEW_MOUNTS), "a mount namespace for a program")
            options = f"size={disk},nr_inodes={_INODES},mode=0700".encode()
            must(
                libc.mount(b"tmpfs", _PRIVATE_FOLDER.encode(), b"tmpfs", ctypes.c_ulong(_NO_SUID_NO_DEV), options),
                "a private folder for a program",
            )
        os.chdir(folder)
        if self.level != "full":
            _at_home(folder)
        for kind, pair in limits.items():
            kernel.cap(kind, *pair)
        kernel.cap(resource.RLIMIT_AS, memory + self._base_memory, memory + self._base_memory)
        if self.level == "none":
            return
        # The zygote and the process above it count too.
        count = processes + (self._base_tasks or (2 if self.level == "full" else 0))
        kernel.cap(resource.RLIMIT_NPROC, count, count)
        if self.level == "process" and self._uid is not None:
            self._drop_user()
        else:
            kernel.set_capabilities(0)
        kernel.no_new_privileges()
        kernel.control(kernel.DUMPABLE, 0, "hiding memory")
        if self._landlock is None or self._seccomp is None:
            raise OSError("the confinement is not prepared")
        self._landlock.enter()
        for fd in self._landlock.opened:
            os.close(fd)
        self._seccomp()

    def _drop_user(self) -> None:
        """Change the user for one that RLIMIT_NPROC binds; keep reading folders that only root may enter."""
        kernel.control(kernel.KEEP_CAPABILITIES, 1, "prctl")
        uid = self._uid or 65534
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
        readable = os.access(sys.base_prefix, os.X_OK) and os.access(os.__file__, os.R_OK)
        # Landlock still holds reading to the interpreter's folders.
        kernel.set_capabilities(0 if readable else kernel.READ_SEARCH)

    def sweep(self, folder: str) -> None:
        """After a program: end its remaining processes, remove its folder. Level full needs neither."""
        if self.level == "full":
            return
        while proc.has_children():
            if self.level == "process" and self._uid is not None:
                _kill_all_of(self._uid)
            proc.end_descendants(os.getpid())
        wipe(folder)


def _imported_paths(places: list[str]) -> Iterator[str]:
    """Imported packages of these folders, with their metadata, and libraries of all."""
    tops = {name.partition(".")[0] for name in sys.modules}
    for place in places:
        for name in os.listdir(place):  # noqa: PTH208 - no pathlib in the box
            first = name.partition(".")[0].partition("-")[0]
            if first in tops or name.endswith(".libs"):
                yield f"{place}/{name}"


def _at_home(folder: str) -> None:
    os.environ["HOME"] = os.environ["TMPDIR"] = folder


def _is_root_outside() -> bool:
    """True if this user is root outside of all namespaces, whom RLIMIT_NPROC does not bound."""
    with open("/proc/self/uid_map", encoding="ascii") as file:  # noqa: PTH123 - no pathlib in the box
        ranges = [[int(part) for part in line.split()] for line in file]
    return any(first <= os.getuid() < first + count and start + os.getuid() == first for first, start, count in ranges)


def _kill_all_of(uid: int) -> None:
    """Kill every process of a user that only this box has, in one step that no fork can outrun."""
    pid = os.fork()
    if pid == 0:
        try:
            os.setresuid(uid, uid, uid)
            os.kill(-1, signal.SIGKILL)
        finally:
            os._exit(0)
    os.waitpid(pid, 0)


def _tasks_of(uid: int) -> int:
    """Threads of a user, all of which RLIMIT_NPROC counts."""
    count = 0
    for name in filter(str.isdigit, os.listdir("/proc")):  # noqa: PTH208 - same
        with contextlib.suppress(OSError):
            if os.stat(f"/proc/{name}").st_uid == uid:  # noqa: PTH116 - same
                count += len(os.listdir(f"/proc/{name}/task"))  # noqa: PTH208 - same
    return count
