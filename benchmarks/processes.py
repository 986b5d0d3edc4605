"""Processes of the commands that make many short runs."""

import os
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path


def cores() -> int:
    """The number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def forked(work: Callable[[], int | None], *, log: Path | None = None, session: bool = True) -> int:
    """Do ``work`` in a child process; returns its id.

    Its exit status is what ``work`` returns, where None is 0, and 70 where it raises.

    Args:
        work: what the child does.
        log: file for its output and errors; those of this process without.
        session: give it a session of its own.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if child:
        return child
    code = 70
    try:
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        if session:
            os.setsid()
        if log is not None:
            file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.dup2(file, 1)
            os.dup2(file, 2)
        code = work() or 0
    except BaseException:  # noqa: BLE001 - told by the status
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
