"""Private folders and cgroups of a process; those of a killed one go as the next process creates one there.

The owner holds a lock on each, which the kernel releases when the owner dies. ``fcntl`` and not ``filelock``: the
folder itself is locked.
"""

import contextlib
import fcntl
import os
import re
import secrets
import stat
from pathlib import Path

from grpo_verifiers.sandbox.children import off_stdio
from grpo_verifiers.sandbox.inside import proc
from grpo_verifiers.sandbox.inside.wipe import wipe

_NAME = re.compile(r"(?:grpo-box|grpo-verifiers|grpo-plus)\.\d+\.[0-9a-f]{12}")
"""A folder whose owner holds a lock on it: its kind, the owner's process id, and a random number."""
MARK = stat.S_ISVTX
"""A mode bit of such a folder from the start: no other folder has that name and this bit."""
_ATTEMPTS = 20
_swept: set[tuple[int, str]] = set()
"""Places in which this process has looked for folders of dead ones."""


class OwnFolder:
    """A folder of this process, locked while it lives."""

    def __init__(self, place: str, kind: str) -> None:
        """Make it in ``place``, of a kind in `_NAME`; OSError if that fails."""
        if (os.getpid(), place) not in _swept:
            _swept.add((os.getpid(), place))
            sweep(place)
        self.path, self._lock = _claim(place, kind)

    def release(self) -> None:
        """Give up the lock, once the folder is removed. Safe to repeat."""
        lock, self._lock = self._lock, -1
        if lock >= 0:
            os.close(lock)


def _claim(place: str, kind: str) -> tuple[str, int]:
    """A new folder, and the descriptor of its lock."""
    for _ in range(_ATTEMPTS):
        path = f"{place}/{kind}{os.getpid()}.{secrets.token_hex(6)}"
        os.mkdir(path, 0o700 | MARK)  # noqa: PTH102 - strings
        lock = -1
        try:
            lock = off_stdio(os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW))
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.stat(path)  # noqa: PTH116 - another process may have removed it before it was locked
        except (FileNotFoundError, BlockingIOError):
            if lock >= 0:
                os.close(lock)
            continue
        return path, lock
    raise OSError(f"no folder can be locked in {place}")


def sweep(place: str) -> None:
    """Remove the folders in ``place`` of this user and this package whose owners are dead."""
    with contextlib.suppress(OSError):
        for name in filter(_NAME.fullmatch, os.listdir(place)):  # noqa: PTH208 - strings
            with contextlib.suppress(OSError):  # its owner lives, or something in it does
                _remove(f"{place}/{name}")


def _remove(path: str) -> None:
    state = os.lstat(path)
    if state.st_uid != os.geteuid() or not stat.S_ISDIR(state.st_mode) or not state.st_mode & MARK:
        return
    lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if _is_cgroup(path):
            members = map(int, Path(path, "cgroup.procs").read_text(encoding="ascii").split())
            proc.send((pid for pid in members if pid > 0), 9)  # 0 is a process that is invisible from here
            os.rmdir(path)  # noqa: PTH106 - it is not empty, but for the kernel
        else:
            wipe(path)
    finally:
        os.close(lock)


def _is_cgroup(path: str) -> bool:
    """True for a cgroup; a file of that name in another folder proves nothing."""
    if not os.path.exists(f"{path}/cgroup.procs"):  # noqa: PTH110 - strings
        return False
    device = os.lstat(path).st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    text = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="replace")
    lines = [line.split() for line in text.splitlines()]
    return any(line[2] == number and line[line.index("-") + 1].startswith("cgroup") for line in lines)
