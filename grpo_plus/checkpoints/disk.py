"""The disk of a run's folder: free space, and why a write to it failed."""

import errno
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from grpo_verifiers.errors.messages import size_text

UNSAVED = 74
"""Exit code of a run that trained, and whose last checkpoint or model could not be written: EX_IOERR of sysexits.h."""
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_BROKEN = (errno.EIO, errno.EROFS, errno.ESTALE, errno.ENOTCONN)
"""A disk or its connection that fails beneath an open file, which the error then does not name."""
_REFUSED = (
    *_BROKEN,
    *(errno.EACCES, errno.EPERM, errno.EEXIST, errno.EISDIR, errno.ENOTDIR, errno.ENOENT),
    *(errno.ENOTEMPTY, errno.EBUSY, errno.ELOOP),
)
_OCCUPIED = (errno.EEXIST, errno.EISDIR, errno.ENOTDIR, errno.ENOTEMPTY, errno.ELOOP)
_NUMBER = re.compile(r"\(os error (\d+)\)")
"""The error number in messages of Rust libraries, which write weights and tokenizers."""
_TORCH = ("inline_container", "PytorchStreamWriter", "basic_ios::clear", "Parent directory")
"""Words in torch's write errors, which have no number."""


def free_bytes(folder: Path) -> int:
    """Free space on the disk of a folder, which may not exist yet."""
    while not folder.exists():
        folder = folder.parent
    return shutil.disk_usage(folder).free


@dataclass(frozen=True)
class FailedWrite:
    """A write that failed: the operating system's number, and the message."""

    number: int
    reason: str

    @property
    def full(self) -> bool:
        """The disk, a quota or a limit on files is used up: there may be room elsewhere, and less may fit."""
        return self.number in _FULL

    @property
    def remedy(self) -> str:
        """The remedy, as the beginning of a sentence."""
        if self.full:
            return "Free some space"
        return "Remove the file in its place" if self.number in _OCCUPIED else "Make it writable"

    def __str__(self) -> str:
        """The reason."""
        return self.reason


def failed_write(error: BaseException, folder: Path) -> FailedWrite | None:
    """The reason why a write into a run's output folder failed; None for an error of another kind."""
    for one in _chain(error):
        number = _number(one, folder)
        if number in _FULL:
            free = size_text(free_bytes(folder))
            return FailedWrite(number, f"no space left on the disk of output_dir {folder} ({free} free)")
        if number in _REFUSED:
            at = getattr(one, "filename", None) or folder
            return FailedWrite(number, f"output_dir {folder} cannot be written ({os.strerror(number)}: {at})")
    return None


def _number(error: BaseException, folder: Path) -> int | None:
    if isinstance(error, OSError) and error.errno is not None:
        inside = error.filename is not None and Path(str(error.filename)).absolute().is_relative_to(folder.absolute())
        return error.errno if inside or (error.filename is None and error.errno in (*_FULL, *_BROKEN)) else None
    if match := _NUMBER.search(str(error)):
        return int(match[1])
    for number in (*_FULL, *_REFUSED):
        if re.search(rf"(failed with|strerror:|^) ?{re.escape(os.strerror(number))}", str(error)):
            return number
    if isinstance(error, RuntimeError) and any(words in str(error) for words in _TORCH):
        return _probed(folder)
    return None


def _probed(folder: Path) -> int:
    """The reason of a failed write from a trial; a full disk if a small file can still be written."""
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(bytes(4096))
    except OSError as error:
        return error.errno or errno.EIO
    return errno.ENOSPC


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    depth = 0
    while error is not None and depth < 10:
        yield error
        error, depth = error.__cause__ or error.__context__, depth + 1
