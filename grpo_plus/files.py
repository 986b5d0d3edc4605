"""Write files in folders that others may write to as well: no name can be guessed, no link is written through."""

import contextlib
import os
import secrets
from pathlib import Path
from typing import IO, Any


def write_whole(path: Path, text: str | bytes) -> None:
    """Replace a file in one go: a reader sees the old or the new one, never half of it.

    A symbolic link at ``path`` is replaced; the file that it points to stays as it is.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{secrets.token_hex(12)}.tmp")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(text.encode() if isinstance(text, str) else text)
        draft.replace(path)
    finally:
        with contextlib.suppress(FileNotFoundError):
            draft.unlink()


def open_own(path: Path, mode: str, **options: Any) -> IO[Any]:
    """Open a file to write or append, as ``open`` does, unless a symbolic link stands there.

    Raises:
        OSError: there is a link (ELOOP), or the file cannot be opened.
    """
    return open(path, mode, opener=_no_follow, **options)


def _no_follow(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
