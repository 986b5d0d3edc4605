"""The manifest of a checkpoint: size and SHA-256 of each file, written last; without a match it is torn."""

import errno
import hashlib
import json
import os
import stat
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from grpo_verifiers.files import open_to_read, read_text, write_atomic

FILE = "grpo_plus_manifest.json"
VERSION = 1
_THREADS = 8
_NO_SYNC = (errno.EINVAL, errno.ENOTSUP, errno.EBADF)
"""Error numbers of file systems that cannot sync a folder."""


@dataclass(frozen=True)
class FileEntry:
    """Size and hash of a file."""

    size: int
    sha256: str


@dataclass(frozen=True)
class FileManifest:
    """A manifest that was read: the optimizer step, the time it was written, and the files by relative name."""

    step: int
    time: float
    files: Mapping[str, FileEntry]


class ManifestError(ValueError):
    """A manifest that is missing, broken or of a newer release; the message follows the name of the folder."""


def write(
    folder: Path, step: int, files: Iterable[Path] | None = None, *, after: float = 0.0, name: str = FILE
) -> None:
    """Sync every file of a folder to the disk, then write the manifest of them in one go, after ``step`` steps.

    Unset, ``files`` are all, in folders, too. The manifest's time is later than ``after``, even where the clock was set
    back. After an OSError (a file cannot be read or synced, a full disk) there is no new manifest.
    """
    paths = sorted(_files(folder) if files is None else files)
    with ThreadPoolExecutor(_THREADS) as threads:
        entries = list(threads.map(_synced, paths))
    inner = {above for path in paths for above in path.parents if folder in above.parents}
    for each in (*inner, folder):
        _sync_folder(each)
    named = {path.relative_to(folder).as_posix(): entry for path, entry in zip(paths, entries, strict=True)}
    listed = {name: {"bytes": named[name].size, "sha256": named[name].sha256} for name in sorted(named)}
    now = round(max(time.time(), after + 1e-5), 6)  # no more digits than a float can distinguish
    content = {"version": VERSION, "step": step, "time": now, "files": listed}
    write_atomic(folder / name, json.dumps(content | {"sha256": _seal(content)}, indent=1), sync=True)
    _sync_folder(folder)
    _sync_folder(folder.absolute().parent)


def read(folder: Path, name: str = FILE) -> FileManifest:
    """The manifest of a folder."""
    try:
        content = json.loads(read_text(folder / name))
        version, seal = content["version"], content.pop("sha256")
        files = {_inside(key): FileEntry(int(x["bytes"]), str(x["sha256"])) for key, x in content["files"].items()}
        result = FileManifest(int(content["step"]), float(content["time"]), files)
    except FileNotFoundError as error:
        raise ManifestError(f"it was never finished: {name} is missing") from error
    except OSError as error:
        raise ManifestError(f"{name} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError, TypeError, KeyError, AttributeError, OverflowError) as error:
        raise ManifestError(f"{name} is broken") from error
    if version != VERSION:
        raise ManifestError(f"{name} is of version {version!r}, and this release reads {VERSION}")
    if seal != _seal(content):
        raise ManifestError(f"{name} holds other bytes than were written")
    return result


def problem(folder: Path, name: str = FILE, *, hashes: bool = True) -> str | None:
    """The first file that does not match the manifest, in words; None where all do. Further files are fine.

    Without ``hashes`` only sizes are compared, which takes no time.
    """
    try:
        files = read(folder, name).files
    except ManifestError as error:
        return str(error)
    for key, entry in files.items():
        if text := _size_problem(folder / key, key, entry.size):
            return text
    if not hashes:
        return None
    with ThreadPoolExecutor(_THREADS) as threads:
        wrong = threads.map(lambda key: _hash_problem(folder / key, key, files[key]), files)
        return next(filter(None, wrong), None)


def _files(folder: Path) -> Iterable[Path]:
    """The files below a folder but its manifest; linked folders are left out, and so are pipes and devices."""
    for above, _, names in os.walk(folder, onerror=_raise):
        for name in names:
            path = Path(above, name)
            if path != folder / FILE and _is_file(path):
                yield path


def _raise(error: OSError) -> None:
    raise error


def _is_file(path: Path) -> bool:
    try:
        return stat.S_ISREG(path.stat().st_mode)
    except FileNotFoundError:  # a broken link
        return False


def _synced(path: Path) -> FileEntry:
    with open_to_read(path) as file:
        os.fsync(file.fileno())
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        return FileEntry(file.tell(), digest)


def _sync_folder(folder: Path) -> None:
    try:
        descriptor = os.open(folder, os.O_RDONLY | getattr(os, "O_DIRECTORY", 0))
    except PermissionError:  # Windows, and folders above that may not be listed
        return
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _NO_SYNC:
            raise
    finally:
        os.close(descriptor)


def _seal(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _inside(name: str) -> str:
    """A name that does not lead out of the folder."""
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or "\0" in name:
        raise ValueError(name)
    return name


def _size_problem(path: Path, name: str, expected: int) -> str | None:
    try:
        status = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return f"{name} is missing"
    except OSError as error:
        return f"{name} cannot be read: {error.strerror}"
    if not stat.S_ISREG(status.st_mode):
        return f"{name} is no file"
    return None if status.st_size == expected else f"{name} has {status.st_size:,} of {expected:,} bytes"


def _hash_problem(path: Path, name: str, entry: FileEntry) -> str | None:
    try:
        with open_to_read(path) as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        return f"{name} cannot be read: {error.strerror}"
    return None if digest == entry.sha256 else f"{name} holds other bytes than were written"
