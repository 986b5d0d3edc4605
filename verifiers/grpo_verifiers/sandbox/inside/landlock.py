"""File and network rules of programs (Landlock): read the interpreter, write the private folder, nothing else."""

import ctypes
import fcntl
import os
import struct
from collections.abc import Iterable

_READ_FILE = 1 << 0 | 1 << 2
_READ = _READ_FILE | 1 << 3
_DEVICE = 1 << 1 | 1 << 2
# Everything but making devices and sockets.
_WRITE = _READ | 1 << 1 | 1 << 4 | 1 << 5 | 1 << 7 | 1 << 8 | 1 << 10 | 1 << 12
_REFER, _TRUNCATE, _IOCTL = 1 << 13, 1 << 14, 1 << 15


def version() -> int:
    """Version of Landlock that the kernel offers; 0 for none."""
    return max(0, int(_libc().syscall(444, None, ctypes.c_size_t(0), ctypes.c_uint32(1))))


class Rules:
    """Prepared once, entered by each program in its own folder."""

    def __init__(
        self, readable: Iterable[str], devices: Iterable[str] = ("/dev/null", "/dev/zero", "/dev/urandom")
    ) -> None:
        """Open what programs may read.

        Args:
            readable: folders and files, read and executed.
            devices: read and written.
        """
        self.version = version()
        handled = (1 << 13) - 1
        self._more = 0
        for since, bit in ((2, _REFER), (3, _TRUNCATE), (5, _IOCTL)):
            if self.version >= since:
                self._more |= bit
        self._handled = handled | self._more
        self._request = struct.pack("=Q", self._handled)
        if self.version >= 4:
            self._request += struct.pack("=Q", 3)  # TCP: bind and connect
        if self.version >= 6:
            self._request += struct.pack("=Q", 3)  # abstract sockets of, and signals to, processes outside
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
        libc = _libc()
        rules = libc.syscall(444, self._request, ctypes.c_size_t(len(self._request)), ctypes.c_uint32(0))
        if rules < 0:
            raise OSError(ctypes.get_errno(), "Landlock refused the rules")
        own = os.open(".", os.O_PATH | os.O_CLOEXEC)
        for fd, allowed in (*self.opened, (own, _WRITE | (self._more & (_REFER | _TRUNCATE)))):
            rule = struct.pack("=Qi", allowed & self._handled, fd)
            if libc.syscall(445, rules, 1, rule, ctypes.c_uint32(0)) != 0:
                raise OSError(ctypes.get_errno(), "Landlock refused a rule")
        if libc.syscall(446, rules, ctypes.c_uint32(0)) != 0:
            raise OSError(ctypes.get_errno(), "Landlock could not be entered")
        os.close(rules)
        os.close(own)


def _open_high(path: str) -> int:
    """Above the descriptors that a program is given."""
    low = os.open(path, os.O_PATH | os.O_CLOEXEC)
    high = fcntl.fcntl(low, fcntl.F_DUPFD_CLOEXEC, 20)
    os.close(low)
    return high


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)
