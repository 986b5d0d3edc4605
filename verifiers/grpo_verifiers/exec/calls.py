"""The places where checks run: this thread, an event loop, worker processes here or elsewhere."""

import pickle
import time
from collections.abc import Callable, Sequence
from typing import Any

from grpo_verifiers.errors import VerifierError
from grpo_verifiers.exec.aio import AsyncBatch, Gate
from grpo_verifiers.exec.batch import Call, pack
from grpo_verifiers.exec.failure import error_fields, outcome_of, result
from grpo_verifiers.exec.outcome import Outcome
from grpo_verifiers.exec.spec import CheckSpec
from grpo_verifiers.exec.wire import from_rows, to_rows

Collect = Callable[[], list[Outcome]]


class ThisThread:
    """Run each call when its outcome is collected, while worker processes continue with theirs."""

    def __init__(self, fn: Callable[..., Any]) -> None:
        self._fn = fn

    def start(self, calls: Sequence[Call]) -> Collect:
        """Start nothing until the outcomes are collected."""
        return lambda: [self._one(each) for each in calls]

    def _one(self, call: Call) -> Outcome:
        first, rest, rows = call
        started = time.perf_counter()
        try:
            verdicts = from_rows(to_rows(result(self._fn, first, rest), rows), rows or 1)
        except KeyboardInterrupt:  # the user's
            raise
        except BaseException as error:  # noqa: BLE001 - any other exception is a failure of the check, SystemExit too
            return outcome_of(error_fields(error), time.perf_counter() - started)
        return Outcome("value", verdicts, seconds=time.perf_counter() - started)


class EventLoop:
    """Run an async check, at most ``concurrency`` calls at a time over all batches."""

    def __init__(self, fn: Callable[..., Any], timeout: float, concurrency: int) -> None:
        self._fn, self._timeout, self._gate = fn, timeout, Gate(concurrency)

    def start(self, calls: Sequence[Call]) -> Collect:
        """Submit every call to the one loop of this process."""
        return AsyncBatch(self._fn, calls, self._timeout, self._gate).wait


class Workers:
    """Run a check in worker processes of this machine or of other machines.

    Equal calls of a pure check are sent once.
    """

    def __init__(
        self,
        label: str,
        spec: CheckSpec,
        timeout: float,
        *,
        pure: bool = False,
        isolation: str = "process",
    ) -> None:
        """Start nothing yet; ``timeout`` is in seconds, for one call, ``isolation`` the place of the workers."""
        self._label, self._spec, self._timeout = label, spec, timeout
        self._pure, self._isolation = pure, isolation

    def start(self, calls: Sequence[Call]) -> Collect:
        """Submit the calls."""
        from grpo_verifiers.exec.runner import shared_runner

        payloads = [self._payload(call) for call in calls]
        keys = payloads if self._pure else list(range(len(calls)))
        asked = dict(zip(keys, zip(payloads, (call[2] for call in calls), strict=True), strict=True))
        questions, sizes = [question for question, _ in asked.values()], [size for _, size in asked.values()]
        batch = shared_runner(self._isolation).submit(self._spec, questions, self._timeout, sizes)

        def collect() -> list[Outcome]:
            outcomes = dict(zip(asked, batch.wait(), strict=True))
            return [outcomes[key] for key in keys]

        return collect

    def _payload(self, one: Call) -> bytes:
        try:
            return pack(one)
        except Exception as error:
            raise VerifierError(self._unsendable(one, error)) from error

    def _unsendable(self, one: Call, error: Exception) -> str:
        subject = f"verifier {self._label!r}: its"
        for name, value in one[1].items():
            try:
                pickle.dumps(value)
            except Exception as culprit:  # noqa: BLE001 - as above
                return (
                    f"{subject} argument {name!r} is a {type(value).__name__} that cannot be sent to a worker process: "
                    f"{type(culprit).__name__}: {culprit}. Choose isolation='inline', or leave it out."
                )
        return f"{subject} arguments cannot be sent to a worker process: {error}."


Executor = ThisThread | EventLoop | Workers
"""``start`` starts every call; the function that it returns waits for their outcomes, in order."""
