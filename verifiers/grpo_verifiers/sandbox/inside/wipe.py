"""Removing a folder that a hostile program has filled: any depth, any permissions, no link followed.

Everything goes by descriptors, so that a program that still runs cannot put a link where a folder was.
"""

import contextlib
import os

_FOLDER = os.O_DIRECTORY | os.O_NOFOLLOW


def wipe(root: str) -> None:
    """Remove ``root`` and everything below it; a missing one is no error."""
    with contextlib.suppress(FileNotFoundError):
        with contextlib.suppress(OSError):
            os.rmdir(root)  # noqa: PTH106 - no pathlib in the box
            return
        top = _open(root)
        try:
            _empty(top)
        finally:
            os.close(top)
        os.rmdir(root)  # noqa: PTH106 - same


def _empty(top: int) -> None:
    prefix, count = "." + os.urandom(12).hex(), 0
    while entries := os.listdir(top):
        for name in entries:
            try:
                os.unlink(name, dir_fd=top)
                continue
            except IsADirectoryError:
                folder = _open(name, top)
            try:
                # Lifting the contents up one level, instead of descending, needs neither a stack nor long paths.
                for inner in os.listdir(folder):  # noqa: PTH208 - same
                    with contextlib.suppress(NotADirectoryError):
                        os.close(_open(inner, folder))  # a folder that moves has to be writable
                    os.rename(inner, f"{prefix}{count}", src_dir_fd=folder, dst_dir_fd=top)
                    count += 1
            finally:
                os.close(folder)
            os.rmdir(name, dir_fd=top)


def _open(name: str, above: int | None = None) -> int:
    """A descriptor of a folder, after it was opened up to its owner."""
    place = os.open(name, os.O_PATH | _FOLDER, dir_fd=above)
    try:
        os.chmod(f"/proc/self/fd/{place}", 0o700)  # noqa: PTH101 - same
    finally:
        os.close(place)
    return os.open(name, os.O_RDONLY | _FOLDER, dir_fd=above)
