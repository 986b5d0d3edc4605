"""Calls that are submitted to workers together, and their outcomes."""

import os
import pickle
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from grpo_verifiers.exec.outcome import Outcome
from grpo_verifiers.exec.spec import CheckSpec

Call = tuple[Any, dict[str, Any], int | None]


def pack(call: Call) -> bytes:
    """The arguments of one call as bytes; pickle raises for objects that cannot leave this process."""
    return pickle.dumps(call, protocol=pickle.HIGHEST_PROTOCOL)


@dataclass(eq=False)
class Item:
    """One call of one check."""

    batch: "CallBatch"
    index: int
    """Its place in the batch; -1: no call, the check is to be loaded."""

    def put(self, outcome: Outcome) -> None:
        """Record its outcome, unless it has one."""
        if self.index >= 0:
            self.batch.put(self.index, outcome)


def only_in(owner: int) -> None:
    """Raise RuntimeError in a forked child: only the process that submitted checks gets their answers."""
    if owner != os.getpid():
        raise RuntimeError("these checks were submitted before this process was forked: collect them in its parent.")


class CallBatch:
    """The calls of one submission, and their outcomes in the same order."""

    def __init__(
        self, spec: CheckSpec, calls: Sequence[Call | bytes], timeout: float, rows: Sequence[int | None] | None = None
    ) -> None:
        """Calls, plain or packed by ``pack``, with their expected numbers of results."""
        self.spec, self.timeout = spec, timeout
        self.payloads = [call if isinstance(call, bytes) else pack(call) for call in calls]
        self.rows = rows or [None if isinstance(call, bytes) else call[2] for call in calls]
        self._outcomes: list[Outcome | None] = [None] * len(calls)
        self._left = len(calls)
        self._owner = os.getpid()
        self._done, self._lock = threading.Event(), threading.Lock()
        if not calls:
            self._done.set()

    def put(self, index: int, outcome: Outcome) -> None:
        """Record an outcome; the scheduler's side."""
        with self._lock:
            if self._outcomes[index] is None:
                self._outcomes[index] = outcome
                self.payloads[index] = b""
                self._left -= 1
                if not self._left:
                    self._done.set()

    def wait(self, timeout: float | None = None) -> list[Outcome]:
        """Every outcome, in order; TimeoutError if one is missing at the deadline."""
        if not self._done.is_set():
            only_in(self._owner)
        if not self._done.wait(timeout):
            raise TimeoutError(f"{self._left} of {len(self._outcomes)} checks are still running after {timeout} s")
        return [outcome for outcome in self._outcomes if outcome is not None]
