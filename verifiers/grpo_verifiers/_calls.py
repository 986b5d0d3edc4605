"""Submits the calls of one verifier to where they run, and collects what became of them."""

import contextlib
import hashlib
import pickle
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from grpo_verifiers._aio import AsyncBatch, Gate, failure
from grpo_verifiers._failure import call
from grpo_verifiers._outcome import Outcome
from grpo_verifiers._wire import from_rows, to_rows
from grpo_verifiers.errors import VerifierError
from grpo_verifiers.verdict import Status, Verdict

if TYPE_CHECKING:
    from grpo_verifiers.function import FunctionVerifier

Call = tuple[Any, dict[str, Any], int | None]
Collect = Callable[[], list[Outcome]]

REMEMBERED = 4096
"""Answers that a pure verifier keeps from step to step."""
_LASTING = {Status.CORRECT, Status.WRONG, Status.PARTIAL, Status.UNPARSABLE, Status.NOT_APPLICABLE}


def start_calls(verifier: "FunctionVerifier", calls: Sequence[Call]) -> Collect:
    """Start every call; the function returned waits for their outcomes, in order."""
    if verifier._runs_in_workers():  # noqa: SLF001 - two halves of one thing
        return _in_workers(verifier, calls)
    if verifier.form.is_async and verifier.isolation == "inline":
        if verifier._gate is None:  # noqa: SLF001
            verifier._gate = Gate(verifier.settings.max_concurrency)  # noqa: SLF001
        return AsyncBatch(verifier.fn, calls, verifier.timeout or 0.0, verifier._gate).wait  # noqa: SLF001
    return lambda: [_here(verifier.fn, one) for one in calls]


def _here(fn: Callable[..., Any], asked: Call) -> Outcome:
    """Run a call in this thread, when its verdict is wanted: what others do in workers goes on meanwhile."""
    first, rest, rows = asked
    started = time.perf_counter()
    try:
        value = call(fn, first, rest)
        if hasattr(value, "__await__"):
            import asyncio

            value = asyncio.run(_awaited(value))
        verdicts = from_rows(to_rows(value, rows), rows or 1)
    except Exception as error:  # noqa: BLE001 - whatever it raises is its failure
        return failure(error, time.perf_counter() - started)
    return Outcome("value", verdicts, seconds=time.perf_counter() - started)


async def _awaited(value: Any) -> Any:
    return await value


def _in_workers(verifier: "FunctionVerifier", calls: Sequence[Call]) -> Collect:
    outcomes: list[Outcome | None] = [None] * len(calls)
    payloads: list[bytes] = []
    asking: dict[bytes | int, list[int]] = {}  # a question to the calls that ask it
    pure = verifier.settings.pure
    cache = verifier._cache  # noqa: SLF001
    for index, one in enumerate(calls):
        started = time.perf_counter()
        answer = _shortcut(verifier, one)
        if not isinstance(answer, Verdict):
            payload = _packed(verifier, one, answer)
            key = hashlib.blake2b(payload, digest_size=16).digest() if pure else index
            if key in asking:
                asking[key].append(index)
                continue
            answer = cache.get(key) if isinstance(key, bytes) else None
            if answer is None:
                asking[key] = [index]
                payloads.append(payload)
                continue
        outcomes[index] = Outcome("value", [answer], seconds=time.perf_counter() - started)
    batch = None
    if payloads:
        from grpo_verifiers.runner import shared_runner

        sizes = [calls[indices[0]][2] for indices in asking.values()]
        batch = shared_runner().submit(verifier.spec, payloads, verifier.timeout or 0.0, sizes)

    def collect() -> list[Outcome]:
        for (key, indices), outcome in zip(asking.items(), batch.wait() if batch else (), strict=True):
            for index in indices:
                outcomes[index] = outcome
            lasting = outcome.kind == "value" and [verdict.status in _LASTING for verdict in outcome.verdicts] == [True]
            if lasting and isinstance(key, bytes):
                _remember(cache, key, outcome.verdicts[0])
        return [outcome for outcome in outcomes if outcome is not None]

    return collect


def _remember(cache: dict[bytes, Verdict], key: bytes, verdict: Verdict) -> None:
    while len(cache) >= REMEMBERED:
        with contextlib.suppress(KeyError, StopIteration, RuntimeError):  # another thread was first
            del cache[next(iter(cache))]
    cache[key] = verdict


def _packed(verifier: "FunctionVerifier", one: Call, shorter: Mapping[str, Any] | None) -> bytes:
    from grpo_verifiers.runner import pack

    first, rest, rows = one
    if shorter is not None:
        rest = {**rest, **shorter}
        first = rest.pop(verifier.form.first, first)
    try:
        return pack((first, rest, rows))
    except Exception as error:
        raise VerifierError(_unsendable(verifier, one, error)) from error


def _shortcut(verifier: "FunctionVerifier", one: Call) -> Verdict | Mapping[str, Any] | None:
    fast = verifier._fast  # noqa: SLF001
    if fast is None:
        return None
    try:
        answer = fast(one[0], **one[1])
    except Exception:  # noqa: BLE001 - it is only a shortcut: the worker says what is wrong
        return None
    return answer if isinstance(answer, Verdict | Mapping) else None


def _unsendable(verifier: "FunctionVerifier", one: Call, error: Exception) -> str:
    for name, value in one[1].items():
        try:
            pickle.dumps(value)
        except Exception as culprit:  # noqa: BLE001 - as above
            return (
                f"verifier {verifier.label!r}: its argument {name!r} is a {type(value).__name__} that cannot be sent "
                f"to a worker process: {type(culprit).__name__}: {culprit}. Choose isolation='inline', or leave it out."
            )
    return f"verifier {verifier.label!r}: its arguments cannot be sent to a worker process: {error}."
