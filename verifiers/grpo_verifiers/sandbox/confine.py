"""What a worker gives up before it sees model text, as far as the machine allows; each level reached is reported.

Every worker: its own session, no tokens in the environment, no GPU, capped memory, no memory in core dumps. Workers of
built-in checks also: no network, no writable files outside a private folder, no capabilities.
"""

import contextlib
import ctypes
import os
import platform
import resource
import signal
import struct
import sys
from collections.abc import Collection, Mapping
from pathlib import Path

from grpo_verifiers.redaction.names import is_secret_variable

_SET = {
    **dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS"), "1"),
    **dict.fromkeys(("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"), ""),
    "TOKENIZERS_PARALLELISM": "false",
    "PYTHONHASHSEED": "0",  # the order of sets must not differ between one worker and the next
}
_DROP = {"PYTHONINSPECT", "PYTHONSTARTUP", "PYTHONBREAKPOINT"}
_CLONE_NEWUSER, _CLONE_NEWNET = 0x10000000, 0x40000000
_PDEATHSIG, _SECCOMP, _SUBREAPER, _NO_NEW_PRIVS = 1, 22, 36, 38
_DAC_READ_SEARCH = 2
_SOCKET = {"x86_64": (0xC000003E, 41), "aarch64": (0xC00000B7, 198)}
_IO_URING_SETUP = 425
MAX_FILE = 64 << 20


def clean_environment(env: Mapping[str, str], keep: Collection[str] = ()) -> dict[str, str]:
    """The environment of a worker: no secrets (but those named in ``keep``), no GPU, one thread for each library."""
    kept = {
        name: value for name, value in env.items() if name in keep or not (is_secret_variable(name) or name in _DROP)
    }
    return {**kept, **_SET}


def die_with(parent: int) -> None:
    """Have the kernel kill this process when the thread that started it ends, however the trainer dies."""
    if sys.platform == "linux":
        _libc().prctl(_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it died before the request was made
        os._exit(0)


def adopt_orphans() -> bool:
    """Let grandchildren whose parent exits become children of this process, so that none escapes by ``setsid``."""
    return sys.platform == "linux" and bool(_libc().prctl(_SUBREAPER, 1, 0, 0, 0) == 0)


def limit(memory: int | None) -> None:
    """Cap the address space and keep memory out of core dumps."""
    no_core_dumps()
    if memory is not None:
        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        cap = memory if hard == resource.RLIM_INFINITY else min(memory, hard)
        with contextlib.suppress(ValueError, OSError):  # macOS refuses
            resource.setrlimit(resource.RLIMIT_AS, (cap, cap))


def no_core_dumps() -> None:
    """A limit of 1 stops core dumps to files and, as no other does, to pipes; what goes elsewhere holds no memory."""
    with contextlib.suppress(ValueError, OSError):  # a hard limit of 0, that only root may raise
        resource.setrlimit(resource.RLIMIT_CORE, (1, 1))
    with contextlib.suppress(OSError):
        Path("/proc/self/coredump_filter").write_text("0", encoding="ascii")


def confine(folder: str) -> dict[str, str]:
    """Give up network, files and privileges; returns the level reached of each.

    Args:
        folder: the only place that stays writable.
    """
    resource.setrlimit(resource.RLIMIT_FSIZE, (MAX_FILE, MAX_FILE))
    if sys.platform != "linux":
        return {"network": "none", "files": "none", "privileges": "none"}
    network = [_no_network_namespace()]
    _libc().prctl(_NO_NEW_PRIVS, 1, 0, 0, 0)
    files = _landlock(folder)
    privileges = "dropped" if _drop_capabilities() else "none"
    network.append(_no_sockets())  # also closes the way to path-named unix sockets, which a namespace leaves open
    return {"network": ", ".join(filter(None, network)) or "none", "files": files or "none", "privileges": privileges}


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _no_network_namespace() -> str:
    libc = _libc()
    if libc.unshare(_CLONE_NEWNET) == 0:
        return "namespace"
    uid, gid = os.geteuid(), os.getegid()
    if libc.unshare(_CLONE_NEWUSER | _CLONE_NEWNET) != 0:
        return ""
    with contextlib.suppress(OSError):
        Path("/proc/self/setgroups").write_text("deny", encoding="ascii")
        Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1", encoding="ascii")
        Path("/proc/self/gid_map").write_text(f"{gid} {gid} 1", encoding="ascii")
    return "namespace"


def _landlock(folder: str) -> str:
    """Deny every kind of writing but below ``folder`` and to ``/dev/null``; reading stays free."""
    libc = _libc()
    version = libc.syscall(444, None, ctypes.c_size_t(0), ctypes.c_uint32(1))
    if version < 1:
        return ""
    file_writes = 1 << 1 | (1 << 14 if version > 2 else 0)
    writes = file_writes | sum(1 << bit for bit in range(4, 13)) | (1 << 13 if version > 1 else 0)
    # From version 6 on also: no signals to processes outside, the trainer among them.
    request = struct.pack("=QQQ", writes, 0, 2) if version > 5 else struct.pack("=Q", writes)
    rules = libc.syscall(444, request, ctypes.c_size_t(len(request)), ctypes.c_uint32(0))
    if rules < 0:
        return ""
    try:
        for path, allowed in ((folder, writes), (os.devnull, file_writes)):
            beneath = os.open(path, os.O_PATH | os.O_CLOEXEC)
            added = libc.syscall(445, rules, 1, struct.pack("=Qi", allowed, beneath), ctypes.c_uint32(0))
            os.close(beneath)
            if added != 0:
                return ""
        return f"landlock {version}" if libc.syscall(446, rules, ctypes.c_uint32(0)) == 0 else ""
    finally:
        os.close(rules)


def _drop_capabilities() -> bool:
    """Keep only the right to read, which a root user's imports from other users' folders need."""
    header = struct.pack("=Ii", 0x20080522, 0)
    kept = 1 << _DAC_READ_SEARCH
    had = (ctypes.c_uint32 * 6)()
    libc = _libc()
    if libc.capget(header, had) != 0:
        return False
    low = had[1] & kept
    return bool(libc.capset(header, struct.pack("=6I", low, low, 0, 0, 0, 0)) == 0)


def _no_sockets() -> str:
    """A system-call filter under which ``socket`` and ``io_uring_setup`` fail with EPERM."""
    known = _SOCKET.get(platform.machine())
    if known is None:
        return ""
    arch, socket = known
    load, equal, above, answer = 0x20, 0x15, 0x35, 0x06
    deny, allow = 0x00050001, 0x7FFF0000
    program = [
        (load, 0, 0, 4),  # the architecture of the call
        (equal, 0, 5, arch),  # another one: deny
        (load, 0, 0, 0),  # the number of the call
        (above, 3, 0, 0x40000000),  # the x32 twin of a call: deny
        (equal, 2, 0, socket),
        (equal, 1, 0, _IO_URING_SETUP),
        (answer, 0, 0, allow),
        (answer, 0, 0, deny),
    ]
    code = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *line) for line in program))
    filters = ctypes.create_string_buffer(struct.pack("@HP", len(program), ctypes.addressof(code)))
    return "seccomp" if _libc().prctl(_SECCOMP, 2, filters, 0, 0) == 0 else ""
