"""Plug-in frames in tracebacks: find the code that raised."""

import contextlib
import os
import sys
import traceback
from collections.abc import Iterator
from types import FrameType

_OURS = ("grpo_plus", "grpo_verifiers")
_modules: set[str] = set()


def note_plugin(module: str) -> None:
    """Remember that a module was imported as a plug-in."""
    if module.partition(".")[0] not in _OURS:
        _modules.add(module)


def is_plugin(frame: FrameType) -> bool:
    """The frame runs code of a plug-in: of its module, or of one inside its package."""
    name = str(frame.f_globals.get("__name__", ""))
    return any(name == module or name.startswith(f"{module}.") for module in _modules)


def plugin_traceback(error: BaseException) -> str:
    """The traceback of a plug-in that raised, from its first frame on; empty when no plug-in did.

    Follows causes and the members of exception groups; of a syntax error it shows the line. Out-of-memory errors are
    skipped: any code may trigger one.
    """
    return "".join(_trimmed_traceback(each) for each in _culprits(error))


def _culprits(error: BaseException) -> Iterator[BaseException]:
    """The causes of ``error`` with frames of a plug-in, and syntax errors."""
    visited: list[BaseException] = []
    open_ones = [error]
    while open_ones:
        one = open_ones.pop(0)
        if one in visited:
            continue
        visited.append(one)
        if "OutOfMemory" in type(one).__name__:
            continue
        if any(is_plugin(frame) for frame, _ in traceback.walk_tb(one.__traceback__)) or isinstance(one, SyntaxError):
            yield one
        elif isinstance(one, BaseExceptionGroup):
            open_ones += one.exceptions
        elif origin := one.__cause__ or (None if one.__suppress_context__ else one.__context__):
            open_ones.append(origin)


def _trimmed_traceback(error: BaseException) -> str:
    formatted = traceback.TracebackException.from_exception(error)
    part: traceback.TracebackException | None = formatted
    one: BaseException | None = error
    while part is not None and one is not None:
        frames = [is_plugin(frame) for frame, _ in traceback.walk_tb(one.__traceback__)]
        first = frames.index(True) if True in frames else len(frames)
        part.stack = traceback.StackSummary.from_list(
            [each for each in list(part.stack)[first:] if each.filename != __file__]
        )
        explicit = part.__cause__ is not None
        part = part.__cause__ if explicit else part.__context__
        one = one.__cause__ if explicit else one.__context__
    return "".join(formatted.format())


def place(error: BaseException) -> str:
    """``file, line`` of the innermost frame of a plug-in that an exception passed through; empty for none."""
    for one in _culprits(error):
        inside = [
            (frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(one.__traceback__) if is_plugin(frame)
        ]
        if inside:
            return f"{inside[-1][0]}, line {inside[-1][1]}"
    return ""


@contextlib.contextmanager
def exits_caught() -> Iterator[None]:
    """Turn a plug-in's ``os._exit`` into `SystemExit` inside the block; a call by other code ends the process."""
    leave, process = os._exit, os.getpid()

    def ask(status: int) -> None:
        frame: FrameType | None = sys._getframe(1)  # noqa: SLF001 - the way to one's caller
        while frame is not None and os.getpid() == process:
            if is_plugin(frame):
                raise SystemExit(status)
            if str(frame.f_globals.get("__name__", "")).startswith(_OURS):
                break
            frame = frame.f_back
        leave(status)

    os._exit = ask  # type: ignore[assignment]  # it returns as little as the real one
    try:
        yield
    finally:
        os._exit = leave
