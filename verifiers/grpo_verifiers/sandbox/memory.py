"""Memory of all processes of a program, measured from outside: the bound where no cgroup is possible.

Pages in page tables are exact, but for those that several processes share. Shared memory that is in no page table, and
bytes that wait in sockets, are bounded from above. Not counted: pipes, page tables, mappings: some MiB per process.
"""

import contextlib
import os
import re
import resource
from functools import cache
from pathlib import Path

from grpo_verifiers.sandbox.box import Limits

_PAGE = resource.getpagesize()
_IN_NO_FILE = (b"/dev/zero", b"/memfd:", b"/SYSV")
_ONE_PACKET = 33 << 10
"""Bytes that a socket may hold past its bound."""


class MemoryUse:
    """The memory of one run."""

    def __init__(self, zygote: int, limits: Limits) -> None:
        """Measure the machine before it starts."""
        self._zygote, self._limits = zygote, limits
        self._shared_before = _machine_shared()
        self._sockets_before = _sockets(zygote)

    def used(self, pids: set[int]) -> int:
        """Bytes of these processes; exact only close to the limit."""
        limit = self._limits.memory
        size, base, _ = _sizes(self._zygote)
        own = files = 0
        reserved: dict[int, int] = {}
        for pid in pids:
            mapped, anonymous, shared = _sizes(pid)
            # Pages of the zygote are shared: each fork of it holds them once more without taking any.
            own += max(0, anonymous - base)
            files += shared  # most are pages of libraries
            reserved[pid] = max(0, mapped - size)
        total = own + files
        if total > limit:
            total = own + sum(_kilobytes(f"/proc/{pid}/status", rb"^RssShmem:\s*(\d+) kB") for pid in pids)
        if total <= limit < own + sum(reserved.values()):
            total = max(total, own + self._shared(reserved))
        return total if total > limit else total + self._in_sockets(len(pids), limit - total)

    def _shared(self, reserved: dict[int, int]) -> int:
        """Bytes of shared memory, in a page table or not: exact as root, else at most the machine's increase."""
        exact: dict[bytes, int] = {}
        extents: dict[bytes, int] = {}
        unseen = 0
        for pid, most in reserved.items():
            try:
                for file, extent, size in _shared_mappings(pid):
                    if size is None:
                        extents[file] = max(extents.get(file, 0), extent)
                    else:
                        exact[file] = size
            except PermissionError:  # memory that is hidden from us
                unseen += most
            except OSError:
                continue
        guessed = sum(extent for file, extent in extents.items() if file not in exact) + unseen
        return sum(exact.values()) + min(guessed, max(0, _machine_shared() - self._shared_before))

    def _in_sockets(self, processes: int, room: int) -> int:
        """Bytes that may wait in sockets, if that could fill ``room``: all new sockets, counted as full."""
        most = processes * self._limits.files
        each = _socket_buffer()
        if most * each <= room:
            return 0
        return min(most, max(0, _sockets(self._zygote) - self._sockets_before)) * each


def _sizes(pid: int) -> tuple[int, int, int]:
    """Bytes of a process: mapped, anonymous, of files and shared memory."""
    with contextlib.suppress(OSError, ValueError), open(f"/proc/{pid}/statm", "rb") as file:  # noqa: PTH123 - fast
        size, resident, shared, *_ = map(int, file.read().split())
        return size * _PAGE, (resident - shared) * _PAGE, shared * _PAGE
    return 0, 0, 0


def _machine_shared() -> int:
    """Bytes of shared memory and of files in memory on this machine."""
    return _kilobytes("/proc/meminfo", rb"^Shmem:\s*(\d+) kB")


def _kilobytes(path: str, pattern: bytes) -> int:
    with contextlib.suppress(OSError), open(path, "rb") as file:  # noqa: PTH123 - same
        match = re.search(pattern, file.read(), re.MULTILINE)
        return int(match[1]) * 1024 if match else 0
    return 0


def _shared_mappings(pid: int) -> list[tuple[bytes, int, int | None]]:
    """Shared memory that a process has mapped: its file, its end, and its bytes if the kernel reports them."""
    mappings: list[tuple[bytes, int, int | None]] = []
    with open(f"/proc/{pid}/maps", "rb") as file:  # noqa: PTH123 - same
        for line in file:
            addresses, rights, offset, device, inode, *path = line.split(None, 5)
            if rights[3:4] == b"s" and path and path[0].startswith(_IN_NO_FILE):
                first, last = (int(each, 16) for each in addresses.split(b"-"))
                size = None
                with contextlib.suppress(OSError):
                    size = os.stat(f"/proc/{pid}/map_files/{first:x}-{last:x}").st_blocks * 512  # noqa: PTH116 - same
                mappings.append((device + inode, int(offset, 16) + last - first, size))
    return mappings


def _sockets(pid: int) -> int:
    """Sockets in a process's network namespace."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/net/sockstat", "rb") as file:  # noqa: PTH123 - same
        return int(file.readline().split()[-1])
    return 0


@cache
def _socket_buffer() -> int:
    """Bytes that one socket may hold: its filter lets no program choose."""
    with contextlib.suppress(OSError, ValueError):
        return int(Path("/proc/sys/net/core/wmem_default").read_text(encoding="ascii")) + _ONE_PACKET
    return 212_992 + _ONE_PACKET
