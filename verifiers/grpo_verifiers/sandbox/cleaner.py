"""The process that removes the folders of a dead one; started by ``leftovers``, with the standard library alone."""

import contextlib
import fcntl
import os
import re
import select
import signal
import stat
import time
from collections.abc import Callable

NAME = re.compile(r"(?:grpo-box|grpo-verifiers|grpo-plus)\.(\d+)\.[0-9a-f]{12}")
"""A folder whose owner holds a lock on it: its kind, the owner's process id, and a random number."""
MARK = stat.S_ISVTX
"""A mode bit of such a folder from the start: no other folder has that name and this bit."""
_PAUSES = (0.0, 0.1, 0.2, 0.5, *[1.0] * 10)
"""Seconds between the sweeps after an owner's death while it has folders left: processes that write there end soon."""


def main(owner: int, pid: int, wipe: Callable[[str], None]) -> None:
    """Clean each place that is named on standard input, and once more after the end of the owner, process ``pid``.

    The descriptor ``owner`` is readable from then on; if it is -1, standard input ends then.
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
        if not any(NAME.fullmatch(name)[1] == str(pid) for name in left):  # type: ignore[index]  # all match
            return


def sweep(place: str, wipe: Callable[[str], None]) -> list[str]:
    """Remove the folders in ``place`` whose owners are dead; returns the names of the remaining ones."""
    try:
        names = os.listdir(place)  # noqa: PTH208 - as below
    except OSError:
        return []
    return [name for name in names if NAME.fullmatch(name) and not _remove(f"{place}/{name}", wipe)]


def _remove(path: str, wipe: Callable[[str], None]) -> bool:
    """True if a folder is removed, or was not created by this user and this package."""
    try:
        state = os.lstat(path)
        if state.st_uid != os.geteuid() or not stat.S_ISDIR(state.st_mode) or not state.st_mode & MARK:
            return True
        lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        return not os.path.lexists(path)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if _is_cgroup(path):
            _end_members(f"{path}/cgroup.procs")
            os.rmdir(path)  # noqa: PTH106 - as above
        else:
            wipe(path)
    except OSError:  # its owner lives, or something in it does
        return False
    finally:
        os.close(lock)
    return True


def _is_cgroup(path: str) -> bool:
    """True for a cgroup; a file of that name in another folder proves nothing."""
    if not os.path.exists(f"{path}/cgroup.procs"):  # noqa: PTH110 - as above
        return False
    device = os.lstat(path).st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    with open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as file:  # noqa: PTH123 - as above
        lines = [line.split() for line in file]
    return any(line[2] == number and line[line.index("-") + 1].startswith("cgroup") for line in lines)


def _end_members(path: str) -> None:
    """Kill the remaining processes of a box whose owner is dead."""
    with open(path, encoding="ascii") as file:  # noqa: PTH123 - as above
        for pid in map(int, file.read().split()):
            if pid > 0:  # 0 is a process that is invisible from here
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
