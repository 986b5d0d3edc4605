"""File and network rules (Landlock).

Programs read the interpreter and write their private folder. Workers read any file and write their private folder.
"""

import contextlib
import ctypes
import fcntl
import os
import struct
from collections.abc import Iterable

from .kernel import libc, must

_CREATE, _ADD, _ENTER = 444, 445, 446
_READ_FILE = 1 << 0 | 1 << 2
_READ = _READ_FILE | 1 << 3
_DEVICE = 1 << 1 | 1 << 2
# Everything but making devices and sockets.
_WRITE = _READ | 1 << 1 | 1 << 4 | 1 << 5 | 1 << 7 | 1 << 8 | 1 << 10 | 1 << 12
_LIST, _OF_FILES = 1 << 3, _READ_FILE | _DEVICE | 1 << 14
_DEVICES = ("/dev/null", "/dev/zero", "/dev/urandom")
_HIGH = 20
"""Above the descriptors of a program."""
_WRITE_FILE, _REMOVE_AND_MAKE = 1 << 1, sum(1 << bit for bit in range(4, 13))
_REFER, _TRUNCATE, _IOCTL = 1 << 13, 1 << 14, 1 << 15


def version() -> int:
    """Version of Landlock that the kernel offers; 0 for none."""
    return max(0, int(libc.syscall(_CREATE, None, ctypes.c_size_t(0), ctypes.c_uint32(1))))


def ruleset_of(version: int, handled: int, network: int = 0, scoped: int = 0) -> int:
    """A set of rules, as a descriptor; OSError if the kernel refuses.

    Args:
        version: that of the kernel; parts that it lacks are left out.
        handled: kinds of access that are denied where no rule allows them.
        network: kinds of TCP calls that are denied.
        scoped: 1 for abstract sockets, 2 for signals: none to processes outside.
    """
    request = struct.pack("=Q", handled)
    if version >= 4:
        request += struct.pack("=Q", network)
    if version >= 6:
        request += struct.pack("=Q", scoped)
    ruleset = int(libc.syscall(_CREATE, request, ctypes.c_size_t(len(request)), ctypes.c_uint32(0)))
    must(min(ruleset, 0), "rules of Landlock")
    return ruleset


def allow(ruleset: int, place: int, kinds: int) -> None:
    """Allow kinds of access to the file or folder of a descriptor, and to all below."""
    must(libc.syscall(_ADD, ruleset, 1, struct.pack("=Qi", kinds, place), ctypes.c_uint32(0)), "a rule of Landlock")


def enter(ruleset: int) -> None:
    """Add these rules to those of the calling process, which has ``no_new_privileges`` set."""
    must(libc.syscall(_ENTER, ruleset, ctypes.c_uint32(0)), "entering Landlock")


def _allow_at(ruleset: int, path: str, kinds: int) -> None:
    place = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        allow(ruleset, place, kinds if os.path.isdir(path) else kinds & _OF_FILES)  # noqa: PTH112 - no pathlib in the box
    finally:
        os.close(place)


def write_below(folder: str) -> int:
    """Deny every kind of writing but below a folder and to ``/dev/null``, and signals to processes outside.

    Returns the version of Landlock, which decides how much that is; OSError if there is none, or it refuses.
    """
    newest = version()
    if not newest:
        raise OSError("this kernel has no Landlock")
    file_writes = _WRITE_FILE | (_TRUNCATE if newest >= 3 else 0)
    writes = file_writes | _REMOVE_AND_MAKE | (_REFER if newest >= 2 else 0)
    ruleset = ruleset_of(newest, writes, scoped=2)
    try:
        _allow_at(ruleset, folder, writes)
        _allow_at(ruleset, os.devnull, file_writes)
        enter(ruleset)
    finally:
        os.close(ruleset)
    return newest


class Rules:
    """Rules of a box, for all its programs; each enters them, and a few more that leave it its own folder.

    So a program costs the same, however many places may be read.
    """

    def __init__(
        self, readable: Iterable[str], listed: Iterable[str], folders: str, devices: Iterable[str] = _DEVICES
    ) -> None:
        """Create them: paths to read and execute, to list; the folders of programs; devices to read and write."""
        newest = version()
        more = sum(bit for since, bit in ((2, _REFER), (3, _TRUNCATE), (5, _IOCTL)) if newest >= since)
        self._version, self._handled = newest, (1 << 13) - 1 | more
        self._device, self._own = _DEVICE | more & _TRUNCATE, _WRITE | more & (_REFER | _TRUNCATE)
        low = ruleset_of(newest, self._handled, network=3, scoped=3)  # network: bind and connect
        self._shared = fcntl.fcntl(low, fcntl.F_DUPFD_CLOEXEC, _HIGH)
        os.close(low)
        for paths, kinds in (
            (readable, _READ), (listed, _LIST), (devices, self._device), ((folders,), self._own)
        ):  # fmt: skip
            for path in paths:
                with contextlib.suppress(FileNotFoundError):
                    _allow_at(self._shared, path, kinds)
        self.opened = [self._shared]
        """Descriptors that a program needs until it has entered."""

    def enter(self) -> None:
        """Add the rules to the calling process, with ``no_new_privileges`` set; it may write in its directory."""
        enter(self._shared)
        own = ruleset_of(self._version, self._handled)
        try:
            _allow_at(own, "/", _READ)
            _allow_at(own, "/dev", self._device)
            _allow_at(own, ".", self._own)
            enter(own)
        finally:
            os.close(own)
