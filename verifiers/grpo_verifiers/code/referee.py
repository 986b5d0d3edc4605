"""A process that grades programs for a thread of the trainer, which reads no data of a program."""

import contextlib
import time
from collections.abc import Callable
from socket import SHUT_RDWR
from typing import Any

from grpo_verifiers.code.tests import BadTestsError
from grpo_verifiers.exec.process import WorkerKind, WorkerLost, WorkerProcess
from grpo_verifiers.sandbox.box import START_SECONDS, Box, BoxError, BoxKind

_KIND = WorkerKind(confined=False, memory=None, env=None)
_CLOSING = 5.0
_GRACE = 2 * START_SECONDS + 30
"""Seconds beyond the time of all runs after which a referee must be broken: it may have to start two boxes first."""
_ERRORS: dict[str, type[Exception]] = {kind.__name__: kind for kind in (BoxError, BadTestsError)}


class BoxSet:
    """One box for programs, and, from its first use on, one for tests."""

    def __init__(self) -> None:
        self._boxes: dict[tuple[BoxKind, str], Box] = {}

    def box(self, plan: BoxKind, purpose: str = "programs") -> Box:
        """The box for a purpose, started at first use."""
        key = (plan, purpose)
        if key not in self._boxes:
            self._boxes[key] = Box(plan)
        return self._boxes[key]

    def close(self) -> None:
        """End all boxes and remove their folders; the next use starts new ones."""
        while self._boxes:
            self._boxes.popitem()[1].close()


class Referee:
    """The handle of a referee process, started with its first job; for one thread at a time."""

    def __init__(self) -> None:
        self._process: WorkerProcess | None = None

    def run(self, job: Callable[[Any, BoxSet], Any], question: Any, seconds: float) -> Any:
        """The result of ``job(question, boxes)`` in the referee. It answers in JSON.

        The job, a function of a module, has ``seconds`` plus the time to start boxes. BoxError if a box or the
        referee failed; BadTestsError if the job raised it.
        """
        until = time.monotonic() + seconds + _GRACE
        try:
            if self._process is None or self._process.dead():
                self.close(0.0)
                self._process = WorkerProcess(_KIND, "grpo_verifiers.code._referee_process")
                self._process.finish_boot(self._process.answer(START_SECONDS))
            reply = self._process.ask("grade", "", (job, question), seconds=until - time.monotonic())
        except (OSError, WorkerLost) as error:
            self.close(0.0)
            raise BoxError(f"the process that grades programs failed ({error})") from error
        if "value" in reply:
            return reply["value"]
        raise _ERRORS.get(str(reply.get("error")), RuntimeError)(str(reply.get("why"))[:4000])

    def close(self, patience: float = _CLOSING) -> None:
        """End the process with its boxes, by force after ``patience`` seconds; the next job starts a new one."""
        if self._process is not None:
            self._process.close()  # it sees that, and closes its boxes
            self._process.kill(patience)
            self._process = None

    def interrupt(self) -> None:
        """From another thread: make the current job fail."""
        process = self._process
        if process is not None:
            with contextlib.suppress(OSError):
                process.sock.shutdown(SHUT_RDWR)

    def forget(self) -> None:
        """In a forked child: drop the parent's referee without changing it."""
        if self._process is not None:
            self._process.forget()
            self._process = None
