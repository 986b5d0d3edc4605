"""Waiting for what other processes do."""

import time
from collections.abc import Callable


def comes(condition: Callable[[], object], seconds: float = 120) -> bool:
    """Whether a condition holds within so many seconds."""
    until = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > until:
            return False
        time.sleep(0.02)
    return True
