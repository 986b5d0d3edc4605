"""File and network rules (Landlock).

Programs read the interpreter and write their private folder. Workers read what they like and write theirs.
"""

import ctypes
import fcntl
import os
import struct
from collections.abc import Iterable

from .kernel import libc

_CREATE, _ADD, _ENTER = 444, 445, 446
_READ_FILE = 1 << 0 | 1 << 2
_READ = _READ_FILE | 1 << 3
_DEVICE = 1 << 1 | 1 << 2
# Everything but making devices and sockets.
_WRITE = _READ | 1 << 1 | 1 << 4 | 1 << 5 | 1 << 7 | 1 << 8 | 1 << 10 | 1 << 12
_WRITE_FILE, _REMOVE_AND_MAKE = 1 << 1, sum(1 << bit for bit in range(4, 13))
_REFER, _TRUNCATE, _IOCTL = 1 << 13, 1 << 14, 1 << 15


def version() -> int:
    """Version of Landlock that the kernel offers; 0 for none."""
    return max(0, int(libc.syscall(_CREATE, None, ctypes.c_size_t(0), ctypes.c_uint32(1))))


def restrict(
    rules: Iterable[tuple[int, int]], *, version: int, handled: int, network: int = 0, scoped: int = 0
) -> None:
    """Bind the calling process, which has given up new privileges; OSError where the kernel refuses.

    Args:
        rules: descriptors of folders and files, and what is allowed below each.
        version: that of the kernel; what it does not know is left out.
        handled: kinds of access that are denied where no rule allows them.
        network: kinds of TCP calls that are denied.
        scoped: 1 for abstract sockets, 2 for signals: none to processes outside.
    """
    request = struct.pack("=Q", handled)
    if version >= 4:
        request += struct.pack("=Q", network)
    if version >= 6:
        request += struct.pack("=Q", scoped)
    ruleset = libc.syscall(_CREATE, request, ctypes.c_size_t(len(request)), ctypes.c_uint32(0))
    if ruleset < 0:
        raise OSError(ctypes.get_errno(), "Landlock refused the rules")
    try:
        for fd, allowed in rules:
            rule = struct.pack("=Qi", allowed & handled, fd)
            if libc.syscall(_ADD, ruleset, 1, rule, ctypes.c_uint32(0)) != 0:
                raise OSError(ctypes.get_errno(), "Landlock refused a rule")
        if libc.syscall(_ENTER, ruleset, ctypes.c_uint32(0)) != 0:
            raise OSError(ctypes.get_errno(), "Landlock could not be entered")
    finally:
        os.close(ruleset)


def write_below(folder: str) -> int:
    """Deny every kind of writing but below a folder and to ``/dev/null``, and signals to processes outside.

    Returns the version of Landlock, which decides how much that is; OSError where there is none, or it refuses.
    """
    known = version()
    if not known:
        raise OSError("this kernel has no Landlock")
    file_writes = _WRITE_FILE | (_TRUNCATE if known >= 3 else 0)
    writes = file_writes | _REMOVE_AND_MAKE | (_REFER if known >= 2 else 0)
    places = [
        (os.open(path, os.O_PATH | os.O_CLOEXEC), kinds)
        for path, kinds in ((folder, writes), (os.devnull, file_writes))
    ]
    try:
        restrict(places, version=known, handled=writes, scoped=2)
    finally:
        for fd, _ in places:
            os.close(fd)
    return known


class Rules:
    """Prepared once, entered by each program in its own folder."""

    def __init__(
        self, readable: Iterable[str], devices: Iterable[str] = ("/dev/null", "/dev/zero", "/dev/urandom")
    ) -> None:
        """Open folders and files, which may be read and executed, and devices, which may be read and written."""
        self.version = version()
        handled = (1 << 13) - 1
        self._more = 0
        for since, bit in ((2, _REFER), (3, _TRUNCATE), (5, _IOCTL)):
            if self.version >= since:
                self._more |= bit
        self._handled = handled | self._more
        self.opened: list[tuple[int, int]] = []
        for path in dict.fromkeys(readable):
            if os.path.exists(path):  # noqa: PTH110 - no pathlib in the box
                allowed = _READ if os.path.isdir(path) else _READ_FILE  # noqa: PTH112 - same
                self.opened.append((_open_high(path), allowed))
        for path in devices:
            if os.path.exists(path):  # noqa: PTH110 - same
                self.opened.append((_open_high(path), _DEVICE | (self._more & _TRUNCATE)))

    def enter(self) -> None:
        """Bind the calling process, which has given up new privileges, to the rules; it may write where it stands."""
        own = os.open(".", os.O_PATH | os.O_CLOEXEC)
        rules = (*self.opened, (own, _WRITE | (self._more & (_REFER | _TRUNCATE))))
        # TCP: bind and connect.
        restrict(rules, version=self.version, handled=self._handled, network=3, scoped=3)
        os.close(own)


def _open_high(path: str) -> int:
    """Above the descriptors that a program is given."""
    low = os.open(path, os.O_PATH | os.O_CLOEXEC)
    high = fcntl.fcntl(low, fcntl.F_DUPFD_CLOEXEC, 20)
    os.close(low)
    return high
