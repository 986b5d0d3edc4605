"""End runs with the sweep that started them, and ranks with their launcher, even if it is killed."""

import os
import sys
from collections.abc import Mapping

VARIABLE = "GRPO_PLUS_PARENT"
"""Variable with the process id of a sweep or launcher, for its child processes."""


def naming_us(environment: Mapping[str, str]) -> dict[str, str]:
    """Return an environment for processes that have to end with this one."""
    return {**environment, VARIABLE: str(os.getpid())}


def end_with_parent() -> None:
    """Have the kernel kill this process with the sweep or launcher that started it; called first of all.

    A single run continues after the end of the shell that started it.
    """
    named = os.environ.pop(VARIABLE, "")
    if sys.platform != "linux":
        return
    from grpo_verifiers.sandbox.confine import die_with

    parent = os.getppid()
    if named.isdecimal() and int(named) != parent:
        if not os.path.exists(f"/proc/{named}"):  # noqa: PTH110 - it was killed already
            os._exit(1)
        return  # another launcher is in between
    if named or "TORCHELASTIC_RUN_ID" in os.environ:
        die_with(parent)
