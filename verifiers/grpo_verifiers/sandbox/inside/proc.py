"""Find and end processes that checks have started: on Linux by ``/proc``, elsewhere by the process group."""

import contextlib
import math
import os
import signal
import time
from collections.abc import Collection, Iterable, Mapping

_GONE = (b"X", 0, 0)
_STILL = frozenset({b"T", b"t", b"Z", b"X"})
_LOOKS = 50
_WAITS = 50
_ROUNDS = 5


def has_children() -> bool:
    """True if this process has a child, dead or alive; takes a microsecond and reaps nothing."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def _pids() -> list[int]:
    """Every visible process; none if ``/proc`` belongs to another namespace, whose process ids differ."""
    with contextlib.suppress(OSError):
        if os.readlink("/proc/self") == str(os.getpid()):  # noqa: PTH115 - the fast one
            return [int(name) for name in os.listdir("/proc") if name.isdigit()]  # noqa: PTH208 - as above
    return []


def _stat(pid: int | str) -> tuple[bytes, int, int]:
    """State, parent and process group."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123 - the fast one
            # The command in parentheses may hold anything, parentheses too.
            state, parent, group = file.read().rpartition(b")")[2].split()[:3]
            return state, int(parent), int(group)
    except (OSError, ValueError):
        return _GONE


def descendants(root: int) -> set[int]:
    """Every process below ``root``, without itself."""
    return set(_in_order(root, (), _process_table()))


def _process_table() -> dict[int, tuple[int, int]]:
    """Parent and process group of every visible process."""
    return {pid: _stat(pid)[1:] for pid in _pids()}


def _in_order(root: int, keep: Collection[int], table: Mapping[int, tuple[int, int]]) -> list[int]:
    """Like `descendants`, parents before their children; without ``keep`` and their descendants."""
    children: dict[int, list[int]] = {}
    for pid, (parent, _) in table.items():
        children.setdefault(parent, []).append(pid)
    visited = {root, *keep}
    pids = [root]
    for parent in pids:
        fresh = [pid for pid in children.get(parent, ()) if pid not in visited]
        visited.update(fresh)
        pids += fresh
    return pids[1:]


def below(root: int, most: float = math.inf) -> set[int]:
    """Like `descendants`, by the kernel's lists of children, without a scan of ``/proc``.

    The search ends with more than ``most`` processes.
    """
    pids: set[int] = set()
    left = [root]
    while left and len(pids) <= most:
        try:
            children = _children(left.pop())
        except FileNotFoundError:  # a kernel without these lists
            return descendants(root)
        left += [child for child in children if child not in pids]
        pids.update(children)
    return pids


def _children(pid: int) -> list[int]:
    """The children of a process, of all its threads."""
    pids: list[int] = []
    try:
        threads = os.listdir(f"/proc/{pid}/task")  # noqa: PTH208 - fast
    except OSError:
        return []
    for thread in threads:
        try:
            with open(f"/proc/{pid}/task/{thread}/children", "rb") as file:  # noqa: PTH123 - fast
                pids += map(int, file.read().split())
        except FileNotFoundError:
            if thread == str(pid) and os.path.exists(f"/proc/{pid}/task/{pid}"):  # noqa: PTH110 - fast
                raise
        except OSError:
            continue
    return pids


def send(pids: Iterable[int], number: int) -> None:
    """Send a signal to the processes; missing and foreign ones are skipped."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def lower_priority(pids: Iterable[int]) -> None:
    """Give processes and their future children the lowest priority."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.setpriority(os.PRIO_PROCESS, pid, 19)


def _still(pid: int) -> bool:
    """True if no thread of a process can fork any more: all are stopped, traced or ended."""
    try:
        threads = os.listdir(f"/proc/{pid}/task")  # noqa: PTH208 - the fast one
    except OSError:
        return True
    return all(_stat(f"{pid}/task/{thread}")[0] in _STILL for thread in threads)


def _stop(pids: Collection[int]) -> None:
    """Stop processes, and wait until they have stopped: a fork in progress still creates its child.

    Not for long, as one that waits for its stopped child to call exec never is; and one may continue another.
    """
    for _ in range(_WAITS):
        send(pids, signal.SIGSTOP)
        pids = [pid for pid in pids if not _still(pid)]
        if not pids:
            break
        time.sleep(0.0001)


def freeze(root: int) -> set[int] | None:
    """Stop everything below ``root`` and return it; None if something still runs."""
    stopped: set[int] = set()
    for _ in range(_LOOKS):
        _stop(stopped)
        fresh = below(root)
        if fresh == stopped and all(map(_still, stopped)):
            return stopped
        stopped = fresh
    return None


def _freeze(root: int, keep: Collection[int] = (), frozen: Collection[int] = ()) -> list[int]:
    """Stop everything below ``root`` until no new process appears; returns those that are not in ``frozen``.

    All visible processes are stopped before the wait for any of them: meanwhile the rest would continue to fork.
    """
    stopped, moving = dict.fromkeys(frozen), list[int]()
    for _ in range(_LOOKS):
        table = _process_table()
        pids = _in_order(root, keep, table)
        fresh = [pid for pid in pids if pid not in stopped]
        if fresh:
            _stop_groups(fresh, table.keys() - pids, table)
            send(fresh, signal.SIGSTOP)
            stopped.update(dict.fromkeys(fresh))
            moving += fresh
        elif moving:
            _stop(moving)
            moving = []
        else:
            break
    return list(stopped)[len(frozen) :]


def _stop_groups(pids: Iterable[int], outside: Iterable[int], table: Mapping[int, tuple[int, int]]) -> None:
    """Stop the process groups that have no process outside of ``pids``: at once, including forks in progress.

    One by one, processes that fork without end are stopped slower than they grow.
    """
    groups = {table[pid][1] for pid in pids} - {table[pid][1] for pid in outside}
    for group in groups:
        if group > 1:  # 0: one that has ended, or of another namespace
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(group, signal.SIGSTOP)


def end_descendants(root: int, keep: Collection[int] = ()) -> None:
    """Kill everything below this process (``root``) except ``keep`` and its descendants, and reap it.

    The child of a fork in progress is an orphan after its parent's death, and the next look detects it.
    """
    while pids := _freeze(root, keep):
        send(pids, signal.SIGKILL)
        reap(pids)


def end_tree(root: int) -> list[int]:
    """Kill a worker and its descendants; returns the descendants.

    Its orphans are its children, so the tree is complete while it lives, and is read until nothing in it is new.
    """
    _stop([root])
    below: list[int] = []
    for _ in range(_ROUNDS):
        fresh = _freeze(root, frozen=below)
        if not fresh:
            break
        send(fresh, signal.SIGKILL)
        below += fresh
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(root, signal.SIGKILL)  # a worker leads its own group
    send((root, *below), signal.SIGKILL)
    return below


def reap(pids: Iterable[int]) -> None:
    """Collect killed processes, parents first: then their orphans are children of this process, if it adopts them.

    A worker does, and a trainer that is process 1 of a container.
    """
    for pid in pids:
        pause = 0.0002
        with contextlib.suppress(ChildProcessError):  # a trainer's usual case: the system's init has them
            while os.waitpid(pid, os.WNOHANG) == (0, 0) and pause < 0.5:
                time.sleep(pause)
                pause *= 2


def end_marked(mark: str) -> set[int]:
    """Kill the remaining processes of a dead worker, which have its mark in their environment; returns them."""
    needle = mark.encode()
    killed: set[int] = set()
    for _ in range(20):
        left = [pid for pid in _pids() if pid != os.getpid() and _carries(pid, needle)]
        if not left:
            break
        killed.update(left)
        send(left, signal.SIGSTOP)
        send(left, signal.SIGKILL)
    return killed


def _carries(pid: int, needle: bytes) -> bool:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:  # noqa: PTH123 - the fast one
            return needle in file.read()
    except OSError:
        return False
