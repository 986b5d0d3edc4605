"""Private folders and cgroups that are removed when their owner ends, by SIGKILL too.

The owner holds a lock on each, which the kernel releases when the owner dies. A small process, started with the first
folder and ended with the last, waits for that death and removes the folders without a lock. As it starts, it removes
those whose owners died together with their own cleaner. ``fcntl`` and not ``filelock``: the folder itself is locked.
"""

import contextlib
import fcntl
import os
import secrets
import subprocess
import sys
import threading
from pathlib import Path

from grpo_verifiers.sandbox.children import disown, off_stdio
from grpo_verifiers.sandbox.cleaner import MARK

_FOLDER = Path(__file__).resolve().parent
_BOOT = (
    "import sys; sys.path.insert(0, sys.argv[1]); from inside.wipe import wipe; "
    "sys.path[0] = sys.argv[2]; import cleaner; del sys.path[0]; cleaner.main(int(sys.argv[3]), int(sys.argv[4]), wipe)"
)
_ATTEMPTS = 20


class OwnFolder:
    """A folder of this process: locked while it lives, removed by the cleaner after that."""

    def __init__(self, place: str, kind: str) -> None:
        """Make it in ``place``, of a kind that the cleaner knows by `NAME`; OSError if that fails."""
        _waiting.take(place)  # first: we may be killed at any point
        try:
            self.path, self._lock = _claim(place, kind)
        except BaseException:
            _waiting.give_back()
            raise

    def release(self) -> None:
        """Report that it was removed. Safe to repeat."""
        if self.forget():
            _waiting.give_back()

    def forget(self) -> bool:
        """In a forked child: drop the parent's lock; returns True if this process had it."""
        lock, self._lock = self._lock, -1
        if lock >= 0:
            os.close(lock)
        return lock >= 0


def _claim(place: str, kind: str) -> tuple[str, int]:
    """A new folder, and the descriptor of its lock."""
    for _ in range(_ATTEMPTS):
        path = f"{place}/{kind}{os.getpid()}.{secrets.token_hex(6)}"
        os.mkdir(path, 0o700 | MARK)  # noqa: PTH102 - as below
        lock = -1
        try:
            lock = off_stdio(os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW))
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.fchmod(lock, 0o700 | MARK)  # macOS makes folders without the mark
            os.stat(path)  # noqa: PTH116 - a cleaner may have removed it before it was locked
        except (FileNotFoundError, BlockingIOError):
            if lock >= 0:
                os.close(lock)
            continue
        return path, lock
    raise OSError(f"no folder can be locked in {place}")


class _Cleaner:
    """The process that waits for our end; runs while there is something to remove then."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._count = 0
        self._places: set[str] = set()
        self._process: subprocess.Popen[bytes] | None = None

    def take(self, place: str) -> None:
        with self._lock:
            self._count += 1
            # Without it folders of a killed trainer stay until the next one starts, which is no reason to fail now.
            with contextlib.suppress(OSError):
                if self._process is None or self._process.poll() is not None:
                    self._start()
                if place not in self._places and self._process is not None and self._process.stdin is not None:
                    self._process.stdin.write(os.fsencode(place) + b"\0")
                    self._places.add(place)

    def give_back(self) -> None:
        with self._lock:
            self._count -= 1
            if self._count == 0 and self._process is not None:
                self._process.kill()
                self._process.communicate()
                self._process = None

    def _start(self) -> None:
        end = off_stdio(os.pidfd_open(os.getpid())) if hasattr(os, "pidfd_open") else -1
        self._places = set()
        try:
            self._process = subprocess.Popen(  # noqa: S603 - our own module
                [sys.executable, "-I", "-S", "-B", "-c", _BOOT, *[str(_FOLDER)] * 2, str(end), str(os.getpid())],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                bufsize=0,
                env={"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8"},
                cwd="/",
                pass_fds=(end,) if end >= 0 else (),
                start_new_session=True,
            )
        finally:
            if end >= 0:
                os.close(end)

    def forget(self) -> None:
        """In a forked child: drop the parent's process."""
        if self._process is not None:
            disown(self._process)
            if self._process.stdin is not None:
                self._process.stdin.close()

    def pids(self) -> list[int]:
        """The process id of the process, if it runs."""
        with self._lock:
            return [] if self._process is None else [self._process.pid]


_waiting = _Cleaner()


def cleaners() -> list[int]:
    """Process ids of the cleaners that wait for the end of this process."""
    return _waiting.pids()


def _after_fork() -> None:
    global _waiting  # noqa: PLW0603 - the inherited one may be locked by a thread that does not exist here
    _waiting.forget()
    _waiting = _Cleaner()


os.register_at_fork(after_in_child=_after_fork)
