"""System-call filters (seccomp).

Programs reach no other process, no network and no rare part of the kernel. Workers make no sockets.
"""

import ctypes
import errno
import platform
import struct
from collections.abc import Callable, Sequence

from .kernel import libc
from .syscalls import BY_ARGUMENT, CLONE3, DENIED, IGNORED, NEWEST, SHARED, UNSUPPORTED

_ARCHES = {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1)}
_LOAD, _JUMP, _EQUAL, _AT_LEAST, _ANY_BIT, _AND, _RETURN = 0x20, 0x05, 0x15, 0x35, 0x45, 0x54, 0x06
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
_BLOCK = 11
_NAMESPACES = 0x7E020080
_CORE_LIMIT = 4
_UNIX, _STREAM, _PACKET, _KIND_OF_SOCKET = 1, 1, 5, 0xF
_IOCTLS = (
    (0x5401, 0x5404), (0x540F, 0x5411), (0x5413, 0x5413), (0x541B, 0x541B), (0x5421, 0x5421), (0x5450, 0x5451),
    (0x4020940D, 0x4020940D), (0x40049409, 0x40049409), (0x80045200, 0x80045200), (0x80086601, 0x80086601),
    (0x802C542A, 0x802C542A), (0xC020660B, 0xC020660B),
)  # fmt: skip
"""Requests to terminals, pipes and copies of files. The remaining ones signal, or allocate past a file's limit."""
_FCNTLS = (
    (0, 5), (9, 9), (11, 12), (16, 17), (36, 36), (1025, 1025), (1027, 1028), (1030, 1030), (1032, 1035), (1037, 1037),
)  # fmt: skip
"""Flags, copies, questions about locks, seals. Not: owners of signals, leases and notices of files, sizes of pipes."""
_LOCKS = ((6, 7), (13, 14), (37, 38))
"""Locks of files, ``/dev/null`` among them, which all programs share: a lock would be a message."""
_PRCTLS_DENIED = ((4, 4), (22, 22), (35, 35), (62, 62), (0x59616D61, 0x59616D61))
"""Dumpable memory (it would go with a core dump), filters, the memory map, core scheduling, a tracer."""
_SOL_SOCKET = 1
_BUFFERS = ((7, 8), (32, 33))
"""Sizes that the kernel cuts to its own bounds without a word: they stay as they are, as quietly."""
_SOCKET_OPTIONS = ((2, 2), (9, 9), (13, 13), (16, 16), (20, 21), (66, 67))
"""Reuse, keepalive, linger, credentials, timeouts. The remaining ones attach filters or use memory."""


def build(*, alone: bool) -> Callable[[], None] | None:
    """A function that puts the calling process under the filter; None on a machine that has no list here.

    ``alone``: programs have process and mount namespaces of their own.
    """
    machine = _ARCHES.get(platform.machine())
    if machine is None:
        return None
    arch, column = machine
    return _loader(assemble(arch, column, denied_numbers(column, alone=alone)))


def build_without_sockets() -> Callable[[], None] | None:
    """The same for workers: ``socket`` and ``io_uring_setup`` fail, and nothing else."""
    machine = _ARCHES.get(platform.machine())
    if machine is None:
        return None
    arch, column = machine
    filters = _Filter()
    _begin(filters, arch)
    for name in ("socket", "io_uring_setup"):
        filters.line(_EQUAL, DENIED[name][column], "deny")
    filters.allow()
    filters.label("deny")
    filters.answer(errno.EPERM)
    return _loader(filters.pack())


def _loader(program: bytes) -> Callable[[], None]:
    code = ctypes.create_string_buffer(program)
    filters = ctypes.create_string_buffer(struct.pack("@HP", len(program) // 8, ctypes.addressof(code)))

    def apply() -> None:
        # The buffers belong to this closure: the kernel reads them during the call.
        if len(code) and libc.prctl(22, 2, filters, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "the system-call filter was refused")

    return apply


def denied_numbers(column: int, *, alone: bool) -> list[int]:
    """Numbers of the calls that fail with any arguments, on the machine of a column."""
    table = DENIED if alone else {**DENIED, **SHARED}
    return [pair[column] for pair in table.values() if pair[column] >= 0]


class _Filter:
    """Lines of a filter; jumps go forward, by label or to the next line (None)."""

    def __init__(self) -> None:
        self._lines: list[tuple[int, str | None, str | None, int | str, str]] = []
        self._label = ""
        self._fresh = 0

    def label(self, name: str) -> None:
        """Name the line that comes next."""
        self._label = name

    def line(self, code: int, value: int | str, yes: str | None = None, no: str | None = None) -> None:
        self._lines.append((code, yes, no, value, self._label))
        self._label = ""

    def load(self, argument: int, *, high: bool = False) -> None:
        """Take half of an argument."""
        self.line(_LOAD, 16 + 8 * argument + 4 * high)

    def answer(self, number: int) -> None:
        self.line(_RETURN, _ERRNO | number)

    def allow(self) -> None:
        self.line(_RETURN, _ALLOW)

    def among(self, ranges: Sequence[tuple[int, int]], yes: str, no: str) -> None:
        """Jump to ``yes`` if the loaded value is in one of the sorted ranges, else to ``no``."""
        for low, high in ranges:
            if low == high:
                self.line(_EQUAL, low, yes)
            else:
                self._fresh += 1
                above = f"above {self._fresh}"
                self.line(_AT_LEAST, high + 1, above)
                self.line(_AT_LEAST, low, yes)
                self.label(above)
        self.line(_JUMP, no)

    def pack(self) -> bytes:
        places = {label: at for at, (*_, label) in enumerate(self._lines) if label}

        def way(at: int, target: str | None) -> int:
            return 0 if target is None else places[target] - at - 1

        return b"".join(
            struct.pack("=HBBI", code, way(at, yes), way(at, no), way(at, value) if isinstance(value, str) else value)
            for at, (code, yes, no, value, _) in enumerate(self._lines)
        )


def _begin(filters: _Filter, arch: int) -> None:
    """Load the number of the call, unless it is of another architecture or the x32 twin of one."""
    filters.line(_LOAD, 4)
    filters.line(_EQUAL, arch, None, "deny")
    filters.line(_LOAD, 0)
    filters.line(_AT_LEAST, 0x40000000, "deny")


def assemble(arch: int, column: int, numbers: Sequence[int]) -> bytes:
    """The filter as bytes."""
    filters = _Filter()
    line = filters.line
    _begin(filters, arch)
    line(_AT_LEAST, NEWEST + 1, "unknown", "existing")
    filters.label("deny")
    filters.answer(errno.EPERM)
    filters.label("unknown")
    filters.answer(errno.ENOSYS)
    filters.label("existing")
    targets = dict.fromkeys(numbers, "deny") | {pair[column]: special for special, pair in BY_ARGUMENT.items()}
    targets[CLONE3[column]] = "clone3"
    targets |= {pair[column]: "done" for pair in IGNORED.values()}
    targets |= {pair[column]: "unsupported" for pair in UNSUPPORTED.values()}
    # In blocks that one jump skips: as a filter is set, the kernel walks it once for every existing call.
    order = sorted(targets)
    for block in (order[first : first + _BLOCK] for first in range(0, len(order), _BLOCK)):
        past, deny = f"past {block[-1]}", f"deny {block[-1]}"
        line(_AT_LEAST, block[-1] + 1, past)
        for number in block:
            if targets[number] == "deny":
                line(_EQUAL, number, deny)
            else:  # too far away for a conditional jump
                line(_EQUAL, number, None, f"not {number}")
                line(_JUMP, targets[number])
                filters.label(f"not {number}")
        filters.allow()
        filters.label(deny)
        filters.answer(errno.EPERM)
        filters.label(past)
    filters.allow()
    _arguments(filters)
    return filters.pack()


def _arguments(filters: _Filter) -> None:
    """The calls that depend on their arguments."""
    line, load, label = filters.line, filters.load, filters.label
    label("clone")
    load(0)
    line(_ANY_BIT, _NAMESPACES, "no", "yes")
    label("socketpair")
    load(0)
    line(_EQUAL, _UNIX, None, "no")
    # Those of datagrams are not bound to their pair: they reach every socket file and abstract name.
    load(1)
    line(_AND, _KIND_OF_SOCKET)
    line(_EQUAL, _STREAM, "yes")
    line(_EQUAL, _PACKET, "yes", "no")
    label("fcntl")
    load(1)
    filters.among(_LOCKS, "done", "no lock")
    label("no lock")
    filters.among(_FCNTLS, "yes", "no")
    # Flags would tell whether a page is in memory; the counts of a child, whether one was read from a disk.
    for name in ("preadv2", "pwritev2"):
        label(name)
        load(5)
        line(_EQUAL, 0, "yes", "unsupported")
    for name, argument in (("wait4", 3), ("waitid", 4)):
        label(name)
        for high in (False, True):
            load(argument, high=high)
            line(_EQUAL, 0, None, "no")
        line(_JUMP, "yes")
    label("prctl")
    load(0)
    filters.among(_PRCTLS_DENIED, "no", "yes")
    # A core dump that is piped to a program is stopped by a limit of exactly 1: no other value may be set.
    label("setrlimit")
    load(0)
    line(_EQUAL, _CORE_LIMIT, "no", "yes")
    label("prlimit")
    load(0)
    line(_EQUAL, 0, None, "no")
    load(1)
    line(_EQUAL, _CORE_LIMIT, None, "yes")
    for high in (False, True):
        load(2, high=high)
        line(_EQUAL, 0, None, "no")
    line(_JUMP, "yes")
    label("setsockopt")
    load(1)
    line(_EQUAL, _SOL_SOCKET, None, "no")
    load(2)
    filters.among(_BUFFERS, "done", "other options")
    label("other options")
    filters.among(_SOCKET_OPTIONS, "yes", "no")
    label("ioctl")
    load(1)
    filters.among(_IOCTLS, "yes", "no such request")
    label("yes")
    filters.allow()
    label("no")
    filters.answer(errno.EPERM)
    label("done")
    filters.answer(0)
    label("unsupported")
    filters.answer(errno.EOPNOTSUPP)
    label("no such request")
    filters.answer(errno.ENOTTY)
    label("clone3")  # its flags lie in memory, where a filter cannot look; libc falls back
    filters.answer(errno.ENOSYS)
