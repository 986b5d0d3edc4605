"""Plug-in frames in tracebacks: find the code that raised."""

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
    """The traceback of an error from the first frame of a plug-in on."""
    frames = error.__traceback__
    while frames is not None and not is_plugin(frames.tb_frame):
        frames = frames.tb_next
    return "".join(traceback.format_exception(type(error), error, frames))


def place(error: BaseException) -> str:
    """``file, line`` of the innermost frame of a plug-in that an exception passed through; empty for none."""
    for one in _culprits(error):
        inside = [
            (frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(one.__traceback__) if is_plugin(frame)
        ]
        if inside:
            return f"{inside[-1][0]}, line {inside[-1][1]}"
    return ""
