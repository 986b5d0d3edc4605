"""The process that removes the folders of a dead one; started by ``leftovers``, with the standard library alone."""

import contextlib
import fcntl
import os
import select
import signal
import time
from collections.abc import Callable

KINDS = ("grpo-box.", "grpo-verifiers.", "grpo-plus.")
"""Prefixes of folders whose owner holds a lock on them; its process id comes next, and a point."""
_PAUSES = (0.0, 0.1, 0.2, 0.5, *[1.0] * 10)
"""Seconds between the looks after an owner's death, while folders of its own are left: what writes there ends soon."""


def main(owner: int, pid: int, wipe: Callable[[str], None]) -> None:
    """Clean each place that is named on standard input, and once more after the end of the owner, process ``pid``.

    The descriptor ``owner`` is readable from then on; where it is -1, the end of standard input says it.
    """
    places: list[str] = []
    watch = select.poll()
    for fd in filter(lambda fd: fd >= 0, (0, owner)):
        watch.register(fd, select.POLLIN)
    text = b""
    ready: set[int] = set()
    while owner not in ready:
        ready = {fd for fd, _ in watch.poll()}
        if 0 in ready:  # first: a place may have been named just before the end
            data = os.read(0, 1 << 16)
            if not data:
                break
            *fresh, text = (text + data).split(b"\0")
            for place in map(os.fsdecode, fresh):
                places.append(place)
                sweep(place, wipe)
    for pause in _PAUSES:
        time.sleep(pause)
        left = [name for place in places for name in sweep(place, wipe)]
        if not any(name.split(".")[1] == str(pid) for name in left):
            return


def sweep(place: str, wipe: Callable[[str], None]) -> list[str]:
    """Remove the folders in ``place`` whose owners are dead; returns the names of the others."""
    try:
        names = os.listdir(place)  # noqa: PTH208 - as below
    except OSError:
        return []
    return [name for name in names if name.startswith(KINDS) and not _removed(f"{place}/{name}", wipe)]


def _removed(path: str, wipe: Callable[[str], None]) -> bool:
    """True if a folder is removed, or belongs to another user."""
    try:
        if os.lstat(path).st_uid != os.geteuid():
            return True
        lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        return not os.path.lexists(path)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.exists(f"{path}/cgroup.procs"):  # noqa: PTH110 - as above
            _end_members(f"{path}/cgroup.procs")
            os.rmdir(path)  # noqa: PTH106 - as above
        else:
            wipe(path)
    except OSError:  # its owner lives, or something in it does
        return False
    finally:
        os.close(lock)
    return True


def _end_members(path: str) -> None:
    """Kill what is left of a box: its owner is dead."""
    with open(path, encoding="ascii") as file:  # noqa: PTH123 - as above
        for pid in map(int, file.read().split()):
            if pid > 0:  # 0 stands for a process that cannot be seen from here
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
