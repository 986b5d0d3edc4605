"""Temporary folders that are gone once they are left, and when the process in between is killed."""

import contextlib
import shutil
import tempfile
from collections.abc import Iterator

try:
    from grpo_verifiers.sandbox.leftovers import OwnFolder
except ImportError:  # Windows, where the lock on a folder is not to be had
    OwnFolder = None  # type: ignore[assignment,misc]


@contextlib.contextmanager
def temporary_folder() -> Iterator[str]:
    """A folder for the time of a ``with`` block.

    >>> import os
    >>> with temporary_folder() as folder:
    ...     os.listdir(folder)
    []
    >>> os.path.exists(folder)
    False
    """
    if OwnFolder is None:
        with tempfile.TemporaryDirectory() as folder:
            yield folder
        return
    own = OwnFolder(tempfile.gettempdir(), "grpo-plus.")
    try:
        yield own.path
    finally:
        shutil.rmtree(own.path, ignore_errors=True)
        own.release()
