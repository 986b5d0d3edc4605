"""An exception as a few lines of text, and the outcome of a check that raised it."""

import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from grpo_verifiers.errors.messages import exact, readable, type_name
from grpo_verifiers.exec.outcome import Outcome
from grpo_verifiers.redaction import redact_text
from grpo_verifiers.verdict import MAX_DETAIL, FailureKind, kind_of

MAX_TRACE = 4000
RAISED: tuple[FailureKind, ...] = ("raised", "outside", "broken")
"""Kinds of failure that an exception can be."""
_OURS = str(Path(__file__).resolve().parent)
_RUNNERS = {"worker.py", "wire.py", "calls.py", "aio.py", "failure.py"}


def call(fn: Callable[..., Any], first: Any, rest: dict[str, Any]) -> Any:
    """Call a check: the completion by position, unless it travels among the named ones."""
    return fn(**rest) if "completions" in rest else fn(first, **rest)


def result(fn: Callable[..., Any], first: Any, rest: dict[str, Any]) -> Any:
    """Call a check, and run the coroutine that it may return."""
    value = call(fn, first, rest)
    if not hasattr(value, "__await__"):
        return value
    import asyncio

    return asyncio.run(as_coroutine(value))


async def as_coroutine(value: Any) -> Any:
    """An awaitable as a coroutine, as event loops require."""
    return await value


def error_fields(error: BaseException) -> dict[str, Any]:
    """Type, message and traceback, without the frames that every check has above it."""
    try:
        message = redact_text(exact(str(error), 1000))
    except BaseException:  # noqa: BLE001 - a broken __str__ must not hide the failure
        message = "(its message cannot be shown)"
    try:
        trace = error.__traceback__
        while trace is not None and _is_runner(trace.tb_frame.f_code.co_filename):
            trace = trace.tb_next
        lines = traceback.format_exception(type(error), error, trace, limit=-12) if trace is not None else []
    except BaseException:  # noqa: BLE001 - as above
        lines = []
    return {
        "type": type_name(type(error)),
        "message": message,
        "trace": redact_text("".join(lines)[-MAX_TRACE:]),
        "kind": kind_of(error),
    }


def outcome_of(failure: Mapping[str, Any], seconds: float) -> Outcome:
    """The outcome of `error_fields`, which may come from a worker and is not trusted."""
    kind: FailureKind = next((kind for kind in RAISED if failure.get("kind") == kind), "raised")
    # Again, though `error_fields` has done it: workers do not know the secrets of the trainer.
    message = redact_text(f"{failure.get('type')}: {failure.get('message')}"[: 2 * MAX_DETAIL])
    trace = readable(redact_text(str(failure.get("trace", ""))[-MAX_TRACE:]), MAX_TRACE)
    return Outcome(kind, message=message[:MAX_DETAIL], trace=trace, seconds=seconds)


def _is_runner(file: str) -> bool:
    path = Path(file)
    return path.name in _RUNNERS and str(path.parent) == _OURS
