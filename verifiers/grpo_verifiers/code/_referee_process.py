"""The referee: a worker (`exec.worker`) that grades programs. ``-m grpo_verifiers.code._referee_process``.

Messages of programs are read here. The trainer gets JSON with only the parts that it needs.
"""

import os
import resource
import socket
import sys
from typing import Any

from grpo_verifiers.code.referee import BoxSet
from grpo_verifiers.exec.wire import pack_reply, read_call
from grpo_verifiers.exec.worker import main
from grpo_verifiers.sandbox.leftovers import MARK

_MEMORY = 4 << 30
"""Bytes of address space: of the question, and of one answer at a time."""


def serve(trainer: socket.socket) -> None:
    """Grade until the connection is closed."""
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    # Started processes raise the limit again: boxes have bounds of their own.
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY if hard == resource.RLIM_INFINITY else min(_MEMORY, hard), hard))
    os.chmod(os.environ["TMPDIR"], 0o711 | MARK)  # noqa: PTH101, S103 - programs of another user pass through it
    boxes = BoxSet()
    try:
        while (message := read_call(trainer)) is not None:
            (_, number, _, (job, question)), _ = message
            reply: dict[str, Any] = {"id": number, "s": 0.0}
            try:
                reply["value"] = job(question, boxes)
            except Exception as error:  # noqa: BLE001 - reported to the trainer, which raises it
                reply |= {"error": type(error).__name__, "why": str(error)[:4000]}
            del message, question
            trainer.sendall(pack_reply(reply))
    finally:
        boxes.close()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), serve, most=None)
