"""The processes below another, through the kernel's lists of children, which spare a look at all of ``/proc``."""

import os

from grpo_verifiers.sandbox import proc


def below(root: int) -> set[int]:
    """Every process below ``root``."""
    found: set[int] = set()
    left = [root]
    while left:
        try:
            children = _children(left.pop())
        except FileNotFoundError:  # a kernel without these lists
            return proc.descendants(root)
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
