"""Confinement of workers before they see model text, as far as the machine allows; each level is reported.

Every worker: its own session, no tokens in the environment, no GPU, capped memory, no memory in core dumps. Workers of
built-in checks also: no network, no writable files outside a private folder, no capabilities.
"""

import contextlib
import os
import resource
import signal
from collections.abc import Collection, Mapping

from grpo_verifiers.redaction.names import is_secret_variable
from grpo_verifiers.sandbox.inside import kernel, landlock, seccomp

_SET = {
    **dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS"), "1"),
    **dict.fromkeys(("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"), ""),
    "TOKENIZERS_PARALLELISM": "false",
    "PYTHONHASHSEED": "0",  # the order of sets must not differ between one worker and the next
}
_DROP = {"PYTHONINSPECT", "PYTHONSTARTUP", "PYTHONBREAKPOINT"}
MAX_FILE = 64 << 20


def clean_environment(env: Mapping[str, str], keep: Collection[str] = ()) -> dict[str, str]:
    """The environment of a worker: no secrets (but those named in ``keep``), no GPU, one thread for each library."""
    allowed = {
        name: value for name, value in env.items() if name in keep or not (is_secret_variable(name) or name in _DROP)
    }
    return {**allowed, **_SET}


def die_with(parent: int) -> None:
    """Have the kernel kill this process when the thread that started it ends, however the trainer dies."""
    kernel.control(kernel.DEATH_SIGNAL, signal.SIGKILL, "dying with the trainer")
    if os.getppid() != parent:  # it died before the request
        os._exit(0)


def limit(memory: int | None) -> None:
    """Cap the address space and keep memory out of core dumps."""
    kernel.no_core_dumps()
    if memory is not None:
        kernel.cap(resource.RLIMIT_AS, memory, memory)


def confine(folder: str) -> dict[str, str]:
    """Give up network, privileges and all writing but in ``folder``; returns the level reached of each."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (MAX_FILE, MAX_FILE))
    network = [_no_network()]
    files = privileges = "none"
    with contextlib.suppress(OSError):
        kernel.no_new_privileges()
    with contextlib.suppress(OSError):
        files = f"landlock {landlock.write_below(folder)}"
    with contextlib.suppress(OSError):
        # The right to read stays: a root user's imports from other users' folders need it.
        kernel.set_capabilities(kernel.capabilities() & kernel.READ_SEARCH)
        privileges = "dropped"
    network.append(_no_sockets())  # also closes the way to path-named unix sockets, which a namespace leaves open
    return {"network": ", ".join(filter(None, network)) or "none", "files": files, "privileges": privileges}


def _no_network() -> str:
    """Enter a network namespace without a network."""
    if kernel.libc.unshare(kernel.NEW_NET) == 0:
        return "namespace"
    uid, gid = os.geteuid(), os.getegid()
    if kernel.libc.unshare(kernel.NEW_USER | kernel.NEW_NET) != 0:
        return ""
    with contextlib.suppress(OSError):
        kernel.keep_user(uid, gid)
    return "namespace"


def _no_sockets() -> str:
    """Put this process under a filter of system calls."""
    enter = seccomp.build_without_sockets()
    if enter is None:
        return ""
    try:
        enter()
    except OSError:
        return ""
    return "seccomp"
