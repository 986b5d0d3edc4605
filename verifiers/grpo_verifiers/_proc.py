"""Finding and ending processes that checks have started, on Linux through ``/proc``; elsewhere the process group."""

import contextlib
import os
import signal
import time
from collections.abc import Collection, Iterable
from pathlib import Path

_PROC = Path("/proc")
_GONE = (b"X", 0)
_STILL = frozenset({b"T", b"t", b"Z", b"X"})
_LOOKS = 200
_QUIET_LOOKS = 20


def has_children() -> bool:
    """Whether this process has any child, dead or alive; takes a microsecond and reaps nothing."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    except OSError:  # pragma: no cover - no waitid here: look the long way
        return bool(descendants(os.getpid()))
    return True


def _pids() -> list[int]:
    """Every process that can be seen."""
    with contextlib.suppress(OSError):
        return [int(name) for name in os.listdir(_PROC) if name.isdigit()]  # noqa: PTH208 - the fast one
    return []


def _state_and_parent(pid: int | str) -> tuple[bytes, int]:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123 - the fast one
            # The command in parentheses may hold anything, parentheses too.
            state, parent = file.read().rpartition(b")")[2].split()[:2]
            return state, int(parent)
    except (OSError, ValueError):
        return _GONE


def descendants(root: int, keep: Collection[int] = ()) -> set[int]:
    """Every process below ``root``, without itself, and without ``keep`` and what is below those."""
    children: dict[int, list[int]] = {}
    for pid in _pids():
        children.setdefault(_state_and_parent(pid)[1], []).append(pid)
    found: set[int] = set()
    left = [root]
    while left:
        for pid in children.get(left.pop(), ()):
            if pid not in found and pid not in keep:
                found.add(pid)
                left.append(pid)
    return found


def _signal(pids: Iterable[int], number: int) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def _still(pid: int) -> bool:
    """Whether no thread of a process can make a child any more: all are stopped, traced or ended."""
    try:
        threads = os.listdir(f"/proc/{pid}/task")  # noqa: PTH208 - the fast one
    except OSError:
        return True
    return all(_state_and_parent(f"{pid}/task/{thread}")[0] in _STILL for thread in threads)


def _freeze(root: int, keep: Collection[int] = (), *, with_root: bool = False) -> set[int]:
    """Stop everything below ``root``, on request ``root`` too, until nothing new appears; returns what is below.

    A stop takes effect when a system call ends, and a fork that has begun still makes its child: only if all were seen
    stopped before the last look did that look miss none. A parent that waits for a stopped child to call exec is never
    seen stopped, so the waiting has an end.
    """
    stopped = {root} if with_root else set()
    _signal(stopped, signal.SIGSTOP)
    quiet = 0
    for _ in range(_LOOKS):
        settled = all(map(_still, stopped))
        fresh = descendants(root, keep) - stopped
        if not fresh and (settled or quiet == _QUIET_LOOKS):
            break
        quiet = 0 if fresh else quiet + 1
        _signal(fresh, signal.SIGSTOP)
        stopped |= fresh
        if quiet:
            time.sleep(0.001)
    return stopped - {root}


def end_descendants(root: int, keep: Collection[int] = ()) -> None:
    """Kill everything below this process (``root``) but what is in ``keep`` or below that, and reap it."""
    while found := _freeze(root, keep):
        _signal(found, signal.SIGKILL)
        for pid in found:  # the grandchildren become children when their parents are dead
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        time.sleep(0.0005)


def end_tree(root: int) -> set[int]:
    """Kill a worker and everything it started; returns what that was.

    Its orphans are its children, so the tree is whole while it lives.
    """
    below = _freeze(root, with_root=True)
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
        left = [pid for pid in _pids() if pid != os.getpid() and _carries(pid, needle)]
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
