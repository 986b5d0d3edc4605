"""The places where checks run: this thread, an event loop, worker processes here or elsewhere."""

import pickle
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from grpo_verifiers.errors import VerifierError
from grpo_verifiers.exec.aio import AsyncBatch, Gate
from grpo_verifiers.exec.batch import Call, pack
from grpo_verifiers.exec.failure import error_fields, outcome_of, result
from grpo_verifiers.exec.outcome import Outcome
from grpo_verifiers.exec.spec import CheckSpec
from grpo_verifiers.exec.wire import from_rows, to_rows
from grpo_verifiers.verdict import Verdict

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
        first: str,
        pure: bool = False,
        fast: Callable[..., Any] | None = None,
        isolation: str = "process",
    ) -> None:
        """Start nothing yet; ``timeout`` is in seconds, for one call.

        ``first`` is the parameter that takes the completion. ``fast`` answers some calls in this process, or names
        shorter arguments for a worker. ``isolation`` chooses the place of its workers.
        """
        self._label, self._spec, self._timeout, self._first = label, spec, timeout, first
        self._pure, self._fast, self._isolation = pure, fast, isolation

    def start(self, calls: Sequence[Call]) -> Collect:
        """Submit the calls that no shortcut decides."""
        outcomes: list[Outcome | None] = [None] * len(calls)
        payloads: list[bytes] = []
        asking: dict[bytes | int, list[int]] = {}  # the calls of each question
        for index, one in enumerate(calls):
            started = time.perf_counter()
            answer = self._shortcut(one)
            if isinstance(answer, Verdict):
                outcomes[index] = Outcome("value", [answer], seconds=time.perf_counter() - started)
                continue
            payload = self._payload(one, answer)
            key = payload if self._pure else index
            if key not in asking:
                payloads.append(payload)
            asking.setdefault(key, []).append(index)
        batch = None
        if payloads:
            from grpo_verifiers.exec.runner import shared_runner

            sizes = [calls[indices[0]][2] for indices in asking.values()]
            batch = shared_runner(self._isolation).submit(self._spec, payloads, self._timeout, sizes)

        def collect() -> list[Outcome]:
            answers = batch.wait() if batch else []
            for indices, outcome in zip(asking.values(), answers, strict=True):
                for index in indices:
                    outcomes[index] = outcome
            return [outcome for outcome in outcomes if outcome is not None]

        return collect

    def _shortcut(self, one: Call) -> Verdict | Mapping[str, Any] | None:
        if self._fast is None:
            return None
        try:
            answer = self._fast(one[0], **one[1])
        except (Exception, SystemExit):  # noqa: BLE001 - only a shortcut: the worker reports the error
            return None
        return answer if isinstance(answer, Verdict | Mapping) else None

    def _payload(self, one: Call, shorter: Mapping[str, Any] | None) -> bytes:
        first, rest, rows = one
        if shorter is not None:
            rest = {**rest, **shorter}
            first = rest.pop(self._first, first)
        try:
            return pack((first, rest, rows))
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
