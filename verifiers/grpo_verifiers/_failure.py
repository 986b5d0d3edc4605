"""An exception in a few lines of text: what the trainer learns of a check that raised."""

import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from grpo_verifiers.errors import VerifierFailedError

MAX_TRACE = 4000
_OURS = str(Path(__file__).resolve().parent)
_RUNNERS = {"_worker.py", "_wire.py", "_calls.py", "_aio.py", "_failure.py"}


def call(fn: Callable[..., Any], first: Any, rest: dict[str, Any]) -> Any:
    """Call a check: the completion by position, unless it travels among the named ones."""
    return fn(**rest) if "completions" in rest else fn(first, **rest)


def told(error: BaseException) -> dict[str, Any]:
    """Type, message and traceback, without the frames that every check has above it."""
    trace = error.__traceback__
    while trace is not None and _is_runner(trace.tb_frame.f_code.co_filename):
        trace = trace.tb_next
    lines = traceback.format_exception(type(error), error, trace, limit=-12) if trace is not None else []
    try:
        message = str(error)
    except BaseException:  # noqa: BLE001 - a broken __str__ must not hide the failure
        message = "(its message cannot be shown)"
    return {
        "type": type(error).__name__,
        "message": message[:1000],
        "trace": "".join(lines)[-MAX_TRACE:],
        "fatal": isinstance(error, VerifierFailedError),  # a check that says itself that it cannot work
    }


def _is_runner(file: str) -> bool:
    path = Path(file)
    return path.name in _RUNNERS and str(path.parent) == _OURS
