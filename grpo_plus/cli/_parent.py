"""Runs end with the sweep that started them, and ranks with their launcher, if that is killed and can tell nobody."""

import os
import sys
from collections.abc import Mapping

VARIABLE = "GRPO_PLUS_PARENT"
"""The process id of a sweep or launcher, for what it starts."""


def naming_us(environment: Mapping[str, str]) -> dict[str, str]:
    """An environment for processes that are to end with this one."""
    return {**environment, VARIABLE: str(os.getpid())}


def end_with_parent() -> None:
    """Have the kernel kill this process with the sweep or launcher that started it; to be called first of all.

    The shell that starts a single run may end: that one goes on.
    """
    named = os.environ.pop(VARIABLE, "")
    if sys.platform != "linux":
        return
    from grpo_verifiers.sandbox.confine import die_with

    parent = os.getppid()
    if named.isdecimal() and int(named) != parent:
        if not os.path.exists(f"/proc/{named}"):  # noqa: PTH110 - it was killed already
            os._exit(1)
        return  # a launcher of somebody else's stands between
    if named or "TORCHELASTIC_RUN_ID" in os.environ:
        die_with(parent)
