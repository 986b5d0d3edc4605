"""Adapt parts of the standard library that need rights which a box refuses.

This is no protection: it runs in the program, which may undo it. ``multiprocessing`` needs semaphores in
``/dev/shm`` and signals: its processes, locks and shared memory fail with a reason. Where Landlock leaves modes
and times of other files open, those of files in the program's folder stay as they are: changing them does nothing.
"""

import os
import sys
import types
from typing import Any

_PERHAPS = ("chmod", "lchmod", "utime")
_REFUSED = ("heap", "popen_fork", "shared_memory", "synchronize")


def install() -> None:
    """Prepare functions of ``os``, and modules of ``multiprocessing``."""
    for name in _REFUSED:
        module: Any = types.ModuleType(f"multiprocessing.{name}")
        module.__getattr__ = _refuse
        sys.modules[module.__name__] = module
    module.Lock = _lock  # all that ``multiprocessing.pool.ThreadPool`` needs
    try:
        os.utime(".")
    except OSError:
        for name in _PERHAPS:
            if hasattr(os, name):
                _forgive(name)


def _lock(ctx: Any) -> Any:  # noqa: ARG001 - as it is called
    import threading

    return threading.Lock()


def _refuse(name: str) -> None:
    if name.startswith("__"):
        raise AttributeError(name)  # the interpreter tries these
    raise ImportError("multiprocessing is not available in the box: use threads or subprocess", name=name)


def _forgive(name: str) -> None:
    """Make a function of ``os`` do nothing to files of the program's folder where it is refused."""
    real = getattr(os, name)

    def quiet(path: Any, *args: Any, **kwargs: Any) -> None:
        try:
            real(path, *args, **kwargs)
        except PermissionError:
            if type(path) is not int:
                folder = os.path.realpath(os.environ.get("HOME", "."))
                if os.path.commonpath([folder, os.path.realpath(os.fsdecode(path))]) != folder:
                    raise
            os.stat(path)  # noqa: PTH116 - no pathlib in the box

    quiet.__name__ = quiet.__qualname__ = name
    setattr(os, name, quiet)
    for each in (os.supports_fd, os.supports_dir_fd, os.supports_follow_symlinks):
        if real in each:
            each.add(quiet)
