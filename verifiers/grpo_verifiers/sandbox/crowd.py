"""The number of processes below one, watched from above: no tool and no check may take the machine by forking.

The kernel bounds it only in a cgroup, or for users other than root. So the keeper looks, and has to be
in time where a crowd wants all cores: long before a crowd is too large, its priority is the lowest.
"""

import contextlib
import os
import time

from grpo_verifiers.sandbox.inside import proc

MAX_PROCESSES = 128
"""Processes that a worker, or the process of a tool, may have below it at a time."""
TOO_MANY = 97
"""Exit code of a keeper that has ended more than that."""
YIELD = 5
"""Niceness of a process that may become a crowd: at equal priority new processes run before the keeper."""
LOOK = 25
"""Milliseconds between two looks."""
_SMALL = 16
"""Processes that keep their priority."""
_LONGEST = 0.5
"""Seconds between looks even if the kernel reports no new process."""
_SHARE = 50
"""A full look is followed by a pause of so many times its duration, unless the number of processes grew."""


class Crowd:
    """The processes below this one."""

    def __init__(self, most: int = MAX_PROCESSES) -> None:
        """Bound the number of processes by ``most``."""
        self._most, self._me = most, os.getpid()
        self._newest, self._count, self._next, self._latest = b"", 0, 0.0, 0.0
        self._news = -1
        with contextlib.suppress(OSError):
            self._news = os.open("/proc/loadavg", os.O_RDONLY | os.O_CLOEXEC)

    def too_large(self) -> bool:
        """True once there are more than allowed; takes microseconds if no process was started on the machine."""
        now = time.monotonic()
        newest = os.pread(self._news, 128, 0).rpartition(b" ")[2] if self._news >= 0 else b""
        if now < self._next or (newest == self._newest and now < self._latest):
            return False
        self._newest = newest
        before = time.thread_time()
        pids = proc.below(self._me, self._most)
        if len(pids) > _SMALL:
            proc.lower_priority(pids)
        grown, self._count = len(pids) > self._count, len(pids)
        self._next = 0.0 if grown else now + _SHARE * (time.thread_time() - before)
        self._latest = now + _LONGEST
        return len(pids) > self._most
