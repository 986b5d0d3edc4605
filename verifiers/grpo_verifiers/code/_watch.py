"""Looking at a running program from outside: memory and processes of its whole tree, and its folder, by polling.

The kernel's own limits bind one process each. What they multiply to is seen here, within a twentieth of a second.
"""

import contextlib
import resource

from grpo_verifiers import _proc
from grpo_verifiers.code._box import Box
from grpo_verifiers.code._limits import Limits

_PAGE = resource.getpagesize()


def overuse(box: Box, limits: Limits) -> str:
    """Which bound the box's program has crossed; empty where it has not."""
    pids = _below(box.pid)
    memory = 0
    base = _anonymous(box.pid)
    for pid in pids:
        # Pages of the zygote are shared: each fork of it holds them once more without taking any.
        memory += max(0, _anonymous(pid) - base)
    if memory > limits.memory:
        return "memory"
    if len(pids) > limits.processes + 3:  # bubblewrap's, and the zygote's two
        return "processes"
    if box.disk_used(limits.disk) > limits.disk:
        return "disk"
    return ""


def _anonymous(pid: int) -> int:
    with contextlib.suppress(OSError, ValueError), open(f"/proc/{pid}/statm", "rb") as file:  # noqa: PTH123 - fast
        fields = file.read().split()
        return (int(fields[1]) - int(fields[2])) * _PAGE
    return 0


def _below(root: int) -> set[int]:
    """Every process below ``root``: through the kernel's lists of children, which spare a look at all of ``/proc``."""
    found: set[int] = set()
    left = [root]
    while left:
        pid = left.pop()
        try:
            with open(f"/proc/{pid}/task/{pid}/children", "rb") as file:  # noqa: PTH123 - fast
                children = [int(child) for child in file.read().split()]
        except FileNotFoundError:
            if pid == root:
                return _proc.descendants(root)
            continue
        except OSError:
            continue
        for child in children:
            if child not in found:
                found.add(child)
                left.append(child)
    return found
