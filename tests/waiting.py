"""Waiting for what other processes do."""

import contextlib
import time
from collections.abc import Callable, Iterator

import psutil


def comes(condition: Callable[[], object], seconds: float = 120) -> bool:
    """Whether a condition holds within so many seconds."""
    until = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > until:
            return False
        time.sleep(0.02)
    return True


@contextlib.contextmanager
def no_hang(seconds: float = 60) -> Iterator[None]:
    """Fails where the work inside takes so much of the processor. A hang is far above it, a slow machine far below."""
    started = time.process_time()
    yield
    assert time.process_time() - started < seconds


def gone(process: psutil.Process | int) -> bool:
    """Whether a process has ended; it may do so while it is looked at."""
    try:
        found = psutil.Process(process) if isinstance(process, int) else process
        return not found.is_running() or found.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True
