"""Single steps of confinement, for boxes and for workers: limits, capabilities, namespaces, privileges."""

import contextlib
import ctypes
import os
import resource
import struct

NEW_MOUNTS, NEW_UTS, NEW_IPC, NEW_USER, NEW_PIDS, NEW_NET = (
    0x00020000, 0x04000000, 0x08000000, 0x10000000, 0x20000000, 0x40000000,
)  # fmt: skip
DEATH_SIGNAL, DUMPABLE, KEEP_CAPABILITIES, DROP_BOUNDING, _SUBREAPER, _NO_NEW_PRIVS = 1, 4, 8, 24, 36, 38
READ_SEARCH = 1 << 2
"""The capability to read any file; as root only, for imports from other users' folders."""
_CAPABILITIES_3 = struct.pack("=Ii", 0x20080522, 0)
_MOUNT_SETATTR, _RECURSIVE, _NO_ATIME, _ATIMES, _PRIVATE = 442, 0x8000, 0x10, 0x70, 1 << 18
libc = ctypes.CDLL(None, use_errno=True)


def must(result: int, action: str) -> None:
    """Raise an OSError with the kernel's reason unless a call has returned 0."""
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{action}: {os.strerror(number)}")


def control(option: int, value: int, action: str) -> None:
    """``prctl`` with one argument; OSError if the kernel refuses."""
    must(libc.prctl(option, value, 0, 0, 0), action)


def adopt_orphans() -> None:
    """Make grandchildren whose parent exits children of this process, so that none escapes by ``setsid``."""
    control(_SUBREAPER, 1, "adopting orphans")


def no_new_privileges() -> None:
    """No program that is started from here on gains rights by its file."""
    control(_NO_NEW_PRIVS, 1, "giving up new privileges")


def no_core_dumps() -> None:
    """No core dump of this process or its children holds memory, wherever the kernel sends it.

    The limit stops files (too small) and pipes (1, and only 1, does); a dump to a socket, which ignores it, is left
    without a single mapping.
    """
    with contextlib.suppress(OSError, ValueError):  # a hard limit of 0, that only root may raise
        resource.setrlimit(resource.RLIMIT_CORE, (1, 1))
    with contextlib.suppress(OSError), open("/proc/self/coredump_filter", "w", encoding="ascii") as file:  # noqa: PTH123 - no pathlib in the box
        file.write("0")


def cap(kind: int, soft: int, hard: int) -> None:
    """Set a resource limit, never above the hard limit that holds already."""
    _, most = resource.getrlimit(kind)
    if most != resource.RLIM_INFINITY:
        soft, hard = min(soft, most), min(hard, most)
    resource.setrlimit(kind, (soft, hard))


def capabilities() -> int:
    """The permitted capabilities of this process, the first 32 of them."""
    sets = (ctypes.c_uint32 * 6)()
    must(libc.capget(_CAPABILITIES_3, sets), "reading capabilities")
    return sets[1]


def set_capabilities(remaining: int) -> None:
    """Give up all capabilities but ``remaining``."""
    must(libc.capset(_CAPABILITIES_3, struct.pack("=6I", remaining, remaining, 0, 0, 0, 0)), "dropping capabilities")


def keep_no_access_times() -> None:
    """Have reading leave no trace in files, for this process and those that it forks; OSError if that is forbidden."""
    must(libc.unshare(NEW_MOUNTS), "a mount namespace")
    change = struct.pack("=4Q", _NO_ATIME, _ATIMES, _PRIVATE, 0)
    must(libc.syscall(_MOUNT_SETATTR, -100, b"/", _RECURSIVE, change, ctypes.c_size_t(len(change))), "no access times")


def keep_user(uid: int, gid: int) -> None:
    """In a new user namespace: be the user that this process was outside."""
    for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
        with open(f"/proc/self/{name}", "w", encoding="ascii") as file:  # noqa: PTH123 - no pathlib in the box
            file.write(text)
