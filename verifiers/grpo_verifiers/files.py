"""Safe file access in shared folders, and temporary and locked folders.

Draft names are random, links are not followed, opening never blocks, and reads are bounded.
"""

import contextlib
import errno
import os
import secrets
import shutil
import stat
import sys
import tempfile
from collections.abc import Iterator
from io import BufferedReader
from pathlib import Path
from typing import IO, Any

MOST_BYTES = 1 << 28
"""Size limit of a file that is read as one text."""
_WAIT = 600.0


def read_text(path: Path) -> str:
    """The text of a file.

    Raises:
        OSError: it cannot be opened, is a pipe or device, or is larger than `MOST_BYTES`.
        UnicodeDecodeError: it is no UTF-8.
    """
    with open_to_read(path) as file:
        data = file.read(MOST_BYTES + 1)
    if len(data) > MOST_BYTES:
        raise OSError(errno.EFBIG, "The file is too large", str(path))
    return data.decode("utf-8")


def open_to_read(path: Path) -> BufferedReader:
    """Open a file's bytes.

    Raises:
        OSError: it is a pipe, device or folder, or cannot be opened.
    """
    return open(path, "rb", opener=_no_wait)


def write_atomic(path: Path, text: str | bytes, *, sync: bool = False) -> None:
    """Replace a file atomically: a reader sees the old or the new file, never a part of it.

    A symbolic link at ``path`` is replaced; its target is not changed. With ``sync`` the bytes are on the disk before
    the replacement.

    Raises:
        OSError: it cannot be written, or is a device, which root could replace.
    """
    if _is_device(path):
        raise OSError(errno.EINVAL, "A device is not replaced by a file", str(path))
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{secrets.token_hex(12)}.tmp")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(text.encode() if isinstance(text, str) else text)
            if sync:
                file.flush()
                os.fsync(file.fileno())
        draft.replace(path)
    finally:
        with contextlib.suppress(FileNotFoundError):
            draft.unlink()


def write_named(path: Path, text: str) -> None:
    """Write to a path from the user: to a device or pipe, or atomically to a file."""
    if _is_device(path) or (path.exists() and not path.is_file() and not path.is_dir()):
        with path.open("wb") as file:
            file.write(text.encode())
    else:
        write_atomic(path, text)


def _is_device(path: Path) -> bool:
    """True for a device, or a link to one such as ``/dev/stdout``."""
    try:
        mode = path.lstat().st_mode
    except OSError:
        return False
    return stat.S_ISCHR(mode) or stat.S_ISBLK(mode) or path.parent.resolve() == Path("/dev")


def open_own(path: Path, mode: str, **options: Any) -> IO[Any]:
    """Open a file to write or append, as ``open`` does, but refuse a symbolic link.

    Raises:
        OSError: there is a link (ELOOP), a pipe or a device, or the file cannot be opened.
    """
    return open(path, mode, opener=_no_follow, **options)


def _no_follow(path: str, flags: int) -> int:
    return _regular(os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o666), path)


def _no_wait(path: str, flags: int) -> int:
    return _regular(os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC), path)


def _regular(descriptor: int, path: str) -> int:
    """The descriptor if it is of a regular file: a pipe blocks, and a device may never end."""
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode):
        return descriptor
    os.close(descriptor)
    number = errno.EISDIR if stat.S_ISDIR(mode) else errno.EINVAL
    raise OSError(number, os.strerror(number) if number == errno.EISDIR else "Not a file", path)


@contextlib.contextmanager
def temporary_folder() -> Iterator[str]:
    """A folder for the time of a ``with`` block; that of a killed process is removed with the start of the next one.

    >>> with temporary_folder() as folder:
    ...     os.listdir(folder)
    []
    >>> os.path.exists(folder)
    False
    """
    from grpo_verifiers.sandbox.leftovers import OwnFolder

    own = OwnFolder(tempfile.gettempdir(), "grpo-plus.")
    try:
        yield own.path
    finally:
        shutil.rmtree(own.path, ignore_errors=True)
        own.release()


@contextlib.contextmanager
def folder_lock(folder: Path) -> Iterator[None]:
    """Let one process at a time replace ``folder``, after repairing the remains of a killed one.

    Raises:
        TimeoutError: another process keeps the place for ten minutes.
    """
    from filelock import FileLock

    folder = folder.resolve()
    folder.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder.with_name(f".{folder.name}.lock"), timeout=_WAIT)
    with lock:
        try:
            _tidy(folder)
            yield
        finally:  # before the release: a waiting process checks that the file still exists
            with contextlib.suppress(OSError):
                Path(lock.lock_file).unlink()


@contextlib.contextmanager
def replaced_folder(folder: Path) -> Iterator[Path]:
    """A draft folder that replaces ``folder`` if the block succeeds. The caller needs the `folder_lock`.

    After a kill at any point the old or the new folder is there, complete. Where the file system cannot swap two
    folders at once there is a moment without either; `restore_folder` or the next draft then restores the old one.

    Raises:
        OSError: it cannot be written.
    """
    folder = folder.resolve()
    draft, aside = _draft_and_old(folder)
    _tidy(folder)
    draft.mkdir(parents=True)
    try:
        yield draft
        if folder.exists() and not _swap(draft, folder):
            folder.rename(aside)
        if not folder.exists():
            draft.rename(folder)
    finally:
        _tidy(folder)


def restore_folder(folder: Path) -> None:
    """Put back the folder that a killed process was replacing, unless a new one exists."""
    folder = folder.expanduser().resolve()
    if not folder.exists() and _draft_and_old(folder)[1].is_dir():
        with folder_lock(folder):
            pass


def _draft_and_old(folder: Path) -> tuple[Path, Path]:
    """The paths of the incomplete new folder, and of the old folder after its move."""
    return folder.with_name(f".{folder.name}.new"), folder.with_name(f".{folder.name}.old")


def _tidy(folder: Path) -> None:
    draft, aside = _draft_and_old(folder)
    if not folder.exists() and aside.is_dir():
        aside.rename(folder)
    for left in (draft, aside):
        shutil.rmtree(left, ignore_errors=True)


def _swap(one: Path, other: Path) -> bool:
    """Swap two folders atomically; False where the system or the file system cannot."""
    if sys.platform != "linux":
        return False
    import ctypes

    swap, here, exchange = getattr(ctypes.CDLL(None), "renameat2", None), -100, 2  # AT_FDCWD, RENAME_EXCHANGE
    return swap is not None and swap(here, os.fsencode(one), here, os.fsencode(other), exchange) == 0
