"""Finding and ending processes that checks have started, on Linux through ``/proc``; elsewhere the process group."""

import contextlib
import os
import signal
import time
from collections.abc import Collection, Iterable
from pathlib import Path

_PROC = Path("/proc")


def has_children() -> bool:
    """Whether this process has any child, dead or alive; takes a microsecond and reaps nothing."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    except OSError:  # pragma: no cover - no waitid here: look the long way
        return bool(descendants(os.getpid()))
    return True


def _parents() -> dict[int, int]:
    """Parent of every process that can be seen."""
    found = {}
    with contextlib.suppress(OSError):
        for name in os.listdir(_PROC):  # noqa: PTH208 - the fast one
            if name.isdigit():
                found[int(name)] = _parent(name)
    return found


def _parent(pid: str) -> int:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123 - the fast one
            # The command in parentheses may hold anything, parentheses too.
            return int(file.read().rpartition(b")")[2].split()[1])
    except (OSError, ValueError, IndexError):  # it has ended meanwhile
        return 0


def descendants(root: int) -> set[int]:
    """Every process below ``root``, without itself."""
    children: dict[int, list[int]] = {}
    for pid, parent in _parents().items():
        children.setdefault(parent, []).append(pid)
    found: set[int] = set()
    left = [root]
    while left:
        for pid in children.get(left.pop(), ()):
            if pid not in found:
                found.add(pid)
                left.append(pid)
    return found


def _signal(pids: Iterable[int], number: int) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def _freeze(root: int, keep: Collection[int] = ()) -> set[int]:
    """Stop everything below ``root`` until nothing new appears: what is stopped cannot fork any more."""
    frozen: set[int] = set()
    for _ in range(50):
        fresh = descendants(root) - frozen - set(keep)
        if not fresh:
            break
        _signal(fresh, signal.SIGSTOP)
        frozen |= fresh
    return frozen


def end_descendants(root: int, keep: Collection[int] = ()) -> None:
    """Kill everything below this process (``root``) but what is in ``keep``, and reap it."""
    kept = set(keep)
    for pid in keep:
        kept |= descendants(pid)
    _signal(_freeze(root, kept), signal.SIGKILL)
    while _PROC.is_dir():  # without /proc nothing was found, and waiting for the living would never end
        try:
            seen = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT | (os.WNOHANG if kept else 0))
        except ChildProcessError:
            return
        if seen is None or seen.si_pid in kept:
            return
        with contextlib.suppress(ChildProcessError):
            os.waitpid(seen.si_pid, 0)


def end_tree(root: int) -> set[int]:
    """Kill a worker and everything it started; returns what that was.

    Its orphans are its children, so the tree is whole while it lives.
    """
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(root, signal.SIGSTOP)
    below = _freeze(root)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(root, signal.SIGKILL)  # a worker leads its own group
    _signal((root, *below), signal.SIGKILL)
    return below


def reap(pids: Iterable[int]) -> None:
    """Collect killed orphans: where the trainer is process 1 of a container, they have become its own children."""
    for pid in pids:
        for _ in range(100):
            try:
                if os.waitpid(pid, os.WNOHANG) != (0, 0):
                    break
            except ChildProcessError:  # the usual case: the system's init has them
                break
            time.sleep(0.01)


def end_marked(mark: str) -> set[int]:
    """Kill what a dead worker left behind, the processes whose environment carries its mark; returns them."""
    needle = mark.encode()
    found: set[int] = set()
    for _ in range(20):
        left = [pid for pid in _parents() if pid != os.getpid() and _carries(pid, needle)]
        if not left:
            break
        found.update(left)
        _signal(left, signal.SIGSTOP)
        _signal(left, signal.SIGKILL)
    return found


def _carries(pid: int, needle: bytes) -> bool:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:  # noqa: PTH123 - the fast one
            return needle in file.read()
    except OSError:
        return False
