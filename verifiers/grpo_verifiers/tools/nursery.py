"""The process that has imported the tools, and is forked for each completion: ``-m grpo_verifiers.tools.nursery``.

It is a worker (`exec.worker`) that makes others: it never sees text of a model. A fork comes as two processes, the
one that runs the tools, and its keeper, which ends all remaining processes.
"""

import contextlib
import functools
import gc
import importlib
import os
import pickle
import resource
import socket
import sys
from typing import Any

from grpo_verifiers.exec.failure import error_fields
from grpo_verifiers.exec.wire import pack_reply, read_call
from grpo_verifiers.exec.worker import keep, main
from grpo_verifiers.registry import import_reference, is_reference
from grpo_verifiers.sandbox import confine
from grpo_verifiers.sandbox.crowd import MAX_PROCESSES, YIELD
from grpo_verifiers.sandbox.inside import kernel, proc
from grpo_verifiers.tools.guest import converse
from grpo_verifiers.tools.part import ToolPart


def serve(control: socket.socket) -> None:
    """Load, fork and end on request, until the connection is closed."""
    loaded: list[tuple[ToolPart, Any]] = []
    keepers: set[int] = set()
    helpers: set[int] = set()
    me = os.getpid()
    while (message := read_call(control)) is not None:
        (kind, number, _, extra), payload = message
        reply: dict[str, Any] = {"id": number, "s": 0.0}
        try:
            if kind == "load":
                sys.path[:] = extra
                importlib.invalidate_caches()
                loaded += [(part, _load(part)) for part in pickle.loads(payload)]  # noqa: S301 - from the trainer
                gc.collect()
                gc.freeze()  # a fork shares unmodified memory
                helpers = proc.descendants(me)
            elif kind == "fork":
                _, fds, _, _ = socket.recv_fds(control, 1, 1)
                reply["pid"] = _fork(loaded, fds[0], extra)
                keepers.add(reply["pid"])
            else:
                keepers.discard(extra)
                proc.reap([extra, *proc.end_tree(extra)])
                # Processes of a killed keeper are children of this process now.
                proc.end_descendants(me, keep=keepers | helpers)
        except BaseException as error:  # noqa: BLE001 - reported to the trainer
            reply["e"] = error_fields(error)
        control.sendall(pack_reply(reply))


def _load(part: ToolPart) -> Any:
    if is_reference(part.reference):
        value = import_reference(part.reference)
    else:
        from grpo_verifiers.tools import registry  # type: ignore[attr-defined,unused-ignore]

        value = (registry.ENVIRONMENTS if part.kind == "environment" else registry.TOOLS).get(part.reference)
    return getattr(value, "fn", value)


def _fork(loaded: list[tuple[ToolPart, Any]], fd: int, memory: int | None) -> int:
    """Fork a keeper and below it the process of a completion; return the keeper's process id."""
    nursery = os.pidfd_open(os.getpid())
    parent = os.getpid()
    keeper = os.fork()
    if keeper:
        os.close(fd)
        os.close(nursery)
        return keeper
    try:
        confine.die_with(parent)
        os.setsid()
        kernel.adopt_orphans()
        me = os.getpid()
        child = os.fork()
        if child:
            low, high = sorted((fd, nursery))
            os.closerange(3, low)
            os.closerange(low + 1, high)
            os.closerange(high + 1, 1 << 16)
            keep(child, nursery, overrun=functools.partial(_tell_overrun, socket.socket(fileno=fd)))
        os.close(nursery)
        confine.die_with(me)
        os.setsid()
        os.nice(YIELD)
        kernel.adopt_orphans()
        if memory is not None:
            with contextlib.suppress(ValueError, OSError), open("/proc/self/statm", "rb") as file:  # noqa: PTH123
                mapped = int(file.read().split()[0]) * resource.getpagesize()
                kernel.cap(resource.RLIMIT_AS, mapped + memory, mapped + memory)
        converse(socket.socket(fileno=fd), loaded)
    finally:
        os._exit(0)


def _tell_overrun(trainer: socket.socket) -> None:
    """In a keeper: report to the trainer why there is no answer, if still connected."""
    with contextlib.suppress(OSError):
        trainer.send(pack_reply({"over": MAX_PROCESSES}), socket.MSG_DONTWAIT)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), serve, most=None)
