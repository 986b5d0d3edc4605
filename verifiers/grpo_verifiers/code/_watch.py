"""Looking at a running program from outside: memory and processes of its whole tree, and its folder, by polling.

The kernel's own limits bind one process each. What they multiply to is seen here, within a twentieth of a second.
"""

import contextlib
import os
import re
import resource

from grpo_verifiers import _proc
from grpo_verifiers.code._box import Box
from grpo_verifiers.code._limits import Limits

_PAGE = resource.getpagesize()


def overuse(box: Box, limits: Limits) -> str:
    """Which bound the box's program has crossed; empty where it has not."""
    pids = _below(box.pid)
    base = _held(box.zygote)[0]
    own = shared = 0
    for pid in pids:
        anonymous, others = _held(pid)
        # Pages of the zygote are shared: each fork of it holds them once more without taking any.
        own += max(0, anonymous - base)
        shared += others
    # Most of the others are files, such as libraries; what is not is looked up where it could matter.
    if own + shared > limits.memory and own + sum(map(_in_no_file, pids)) > limits.memory:
        return "memory"
    if len(pids) > limits.processes + 3:  # bubblewrap's, and the zygote's two
        return "processes"
    if box.disk_used(limits.disk) > limits.disk:
        return "disk"
    return ""


def _held(pid: int) -> tuple[int, int]:
    """Bytes that a process holds: anonymous ones, and those of files and shared memory."""
    with contextlib.suppress(OSError, ValueError), open(f"/proc/{pid}/statm", "rb") as file:  # noqa: PTH123 - fast
        _, resident, others, *_ = map(int, file.read().split())
        return (resident - others) * _PAGE, others * _PAGE
    return 0, 0


def _in_no_file(pid: int) -> int:
    """Bytes of shared memory that a process holds."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/status", "rb") as file:  # noqa: PTH123 - same
        found = re.search(rb"^RssShmem:\s*(\d+) kB", file.read(), re.MULTILINE)
        return int(found[1]) * 1024 if found else 0
    return 0


def _below(root: int) -> set[int]:
    """Every process below ``root``: through the kernel's lists of children, which spare a look at all of ``/proc``."""
    found: set[int] = set()
    left = [root]
    while left:
        try:
            children = _children(left.pop())
        except FileNotFoundError:  # a kernel without these lists
            return _proc.descendants(root)
        left += [child for child in children if child not in found]
        found.update(children)
    return found


def _children(pid: int) -> list[int]:
    """The processes that a process, any thread of it, has started."""
    found: list[int] = []
    try:
        threads = os.listdir(f"/proc/{pid}/task")  # noqa: PTH208 - fast
    except OSError:
        return []
    for thread in threads:
        try:
            with open(f"/proc/{pid}/task/{thread}/children", "rb") as file:  # noqa: PTH123 - fast
                found += map(int, file.read().split())
        except FileNotFoundError:
            if thread == str(pid) and os.path.exists(f"/proc/{pid}/task/{pid}"):  # noqa: PTH110 - fast
                raise
        except OSError:
            continue
    return found
