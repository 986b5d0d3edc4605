"""Bounds that are polled from outside, because the kernel does not enforce them for all processes of a program.

Its folder and, without a cgroup, memory and processes of its process tree, each with a delay of at most 50 ms.
"""

import contextlib
import os
import time
from collections.abc import Iterator

from grpo_verifiers.sandbox import memory
from grpo_verifiers.sandbox.box import Box, Limits
from grpo_verifiers.sandbox.inside.proc import below

_SHARE = 20
"""A look at the folder is followed by a pause of so many times its duration: 5% of a core goes there, if it takes no
longer than honest ones do."""
_MISSING = (FileNotFoundError, NotADirectoryError)
_LONGEST_PAUSE = 0.5
_DEEPEST = 1000
"""Characters of a path in the folder beyond which a program has no business: looking there takes ever longer."""
_LEAST_FILE = 16_384
"""The least that a file counts: an empty one takes a place in the file system's table."""


class UsageMonitor:
    """Compare the use of one run with its bounds."""

    def __init__(self, box: Box, limits: Limits) -> None:
        """Measure the machine before the program starts."""
        self._box, self._limits = box, limits
        self._memory = memory.MemoryUse(box.zygote, limits) if box.cgroup is None else None
        self._next_disk = 0.0

    def overuse(self, *, now: bool = False) -> str:
        """The bound that the program exceeds; empty for none. ``now``: look at its folder, too, however soon."""
        self._next_disk *= not now
        cgroup = self._box.cgroup
        if cgroup is not None and cgroup.has_overflowed():
            return "memory"
        if cgroup is None or not cgroup.counts_processes:
            pids = below(self._box.pid)
            if self._memory is not None and self._memory.used(pids) > self._limits.memory:
                return "memory"
            if len(pids) > self._limits.processes + 3:  # bubblewrap's, and the zygote's two
                return "processes"
        return "disk" if self._box.folder and self._disk() > self._limits.disk else ""

    def _disk(self) -> int:
        """Bytes in the folder and in open files deleted from it; 0 if it is too soon to look again."""
        started = time.monotonic()
        if started < self._next_disk:
            return 0
        total = disk_used(self._box.folder, self._limits.disk)
        if total <= self._limits.disk:
            total += deleted_bytes(below(self._box.pid), self._box.folder)
        ended = time.monotonic()
        self._next_disk = ended + min(_LONGEST_PAUSE, _SHARE * (ended - started))
        return total


def disk_used(folder: str, limit: int) -> int:
    """Bytes in a folder, counted up to ``limit``; more than ``limit`` if a part of it is unreadable."""
    total, left, path = 0, [folder], folder
    try:
        while left and total <= limit:
            path = left.pop()
            if len(path) > len(folder) + _DEEPEST:
                return limit + 1
            with contextlib.suppress(*_MISSING), _open_folder(path) as place, os.scandir(place) as entries:
                for entry in entries:
                    with contextlib.suppress(*_MISSING):
                        status = entry.stat(follow_symlinks=False)
                        total += max(status.st_blocks * 512, _LEAST_FILE)
                        if entry.is_dir(follow_symlinks=False):
                            left.append(f"{path}/{entry.name}")
                    if total > limit:
                        break
    except OSError:  # closed to us and not countable: over the limit if the program itself closed it
        return limit + 1 if path.count("/", len(folder)) > 1 else total
    return total


@contextlib.contextmanager
def _open_folder(path: str) -> Iterator[int]:
    """A descriptor of a folder, to read its entries however long its path is."""
    place = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        yield place
    finally:
        os.close(place)


def deleted_bytes(pids: set[int], folder: str) -> int:
    """Bytes of files of the folder's file system that have no name any more and are open.

    The kernel shows a program's descriptors only to root with CAP_SYS_PTRACE. Never counted: a file whose descriptor is
    on its way through a socket, or that is mapped and closed.
    """
    sizes: dict[int, int] = {}
    with contextlib.suppress(OSError):
        device = os.stat(folder).st_dev  # noqa: PTH116 - fast
        for pid in pids:
            with contextlib.suppress(OSError), os.scandir(f"/proc/{pid}/fd") as entries:
                for entry in entries:
                    with contextlib.suppress(OSError):
                        status = entry.stat()
                        if status.st_nlink == 0 and status.st_dev == device:
                            sizes[status.st_ino] = status.st_blocks * 512
    return sum(sizes.values())
