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
Executor = Callable[[Sequence[Call]], Collect]
"""Starts every call; the function that it returns waits for their outcomes, in order."""


def in_this_thread(fn: Callable[..., Any], calls: Sequence[Call]) -> Collect:
    """Run each call when its outcome is collected, while worker processes continue with theirs."""
    return lambda: [_one(fn, *call) for call in calls]


def _one(fn: Callable[..., Any], first: Any, rest: dict[str, Any], rows: int | None) -> Outcome:
    started = time.perf_counter()
    try:
        verdicts = from_rows(to_rows(result(fn, first, rest), rows), rows or 1)
    except KeyboardInterrupt:  # the user's
        raise
    except BaseException as error:  # noqa: BLE001 - any other exception is a failure of the check, SystemExit too
        return outcome_of(error_fields(error), time.perf_counter() - started)
    return Outcome("value", verdicts, seconds=time.perf_counter() - started)


def in_event_loop(fn: Callable[..., Any], timeout: float, gate: Gate, calls: Sequence[Call]) -> Collect:
    """Submit every call of an async check to the one loop of this process; the gate limits those at a time."""
    return AsyncBatch(fn, calls, timeout, gate).wait


def in_workers(
    label: str, spec: CheckSpec, timeout: float, calls: Sequence[Call], *, pure: bool = False, isolation: str
) -> Collect:
    """Submit every call to worker processes of this machine or of other machines, equal ones of a pure check once."""
    from grpo_verifiers.exec.runner import shared_runner

    payloads = [_payload(label, call) for call in calls]
    keys = payloads if pure else list(range(len(calls)))
    unique = dict(zip(keys, zip(payloads, (call[2] for call in calls), strict=True), strict=True))
    questions, sizes = [question for question, _ in unique.values()], [size for _, size in unique.values()]
    batch = shared_runner(isolation).submit(spec, questions, timeout, sizes)

    def collect() -> list[Outcome]:
        outcomes = dict(zip(unique, batch.wait(), strict=True))
        return [outcomes[key] for key in keys]

    return collect


def _payload(label: str, call: Call) -> bytes:
    try:
        return pack(call)
    except Exception as error:
        raise VerifierError(f"verifier {label!r}: its {_unsendable(call, error)}") from error


def _unsendable(call: Call, error: Exception) -> str:
    for name, value in call[1].items():
        try:
            pickle.dumps(value)
        except Exception as culprit:  # noqa: BLE001 - as above
            return (
                f"argument {name!r} is a {type(value).__name__} that cannot be sent to a worker process: "
                f"{type(culprit).__name__}: {culprit}. Choose isolation='inline', or leave it out."
            )
    return f"arguments cannot be sent to a worker process: {error}."
