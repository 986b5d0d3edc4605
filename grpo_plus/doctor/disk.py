"""Folders that a run writes to: a write test that leaves no files, and the free space."""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from grpo_plus.checkpoints.disk import free_bytes
from grpo_plus.doctor.finding import CheckFinding, FindingKind, ok, problem, warning
from grpo_verifiers.errors.messages import size_text

TRIAL = 4096
LOW_SPACE = 1 << 30
"""Below this, one checkpoint of a small model, or one download, may not fit."""

SPACE = ok("disk", "The folder can be written, and has room.")
OUTPUT = problem(
    "output-unwritable",
    "The folder for checkpoints and the model is not writable.",
    "Set another output_dir, or make its folder writable.",
)
TEMPORARY = problem(
    "temp-unwritable",
    "No temporary file can be written: workers and sandboxes cannot start.",
    "Free the folder, or set TMPDIR to another one.",
)
CACHE = warning(
    "cache-unwritable",
    "Downloads cannot be stored: models and datasets from the Hub fail to load.",
    "Set HF_HOME to a folder that can be written.",
)
LOW = warning(
    "disk-low",
    "Less than 1 GiB is free: downloads, temporary files or checkpoints will soon fail.",
    "Free some space, or point output_dir, HF_HOME or TMPDIR elsewhere.",
)


def disk_findings(output_dir: str | None = None) -> Iterator[CheckFinding]:
    """Check the folders of a run's output, of temporary files and of the cache."""
    if output_dir:
        yield _finding("output_dir", Path(output_dir), OUTPUT)
    yield _finding("temporary files", Path(os.environ.get("TMPDIR") or tempfile.gettempdir()), TEMPORARY)
    yield _finding("Hugging Face cache", cache_folder(), CACHE)


def cache_folder() -> Path:
    """Return the folder for downloads from the Hub."""
    home = os.environ.get("HF_HOME") or str(Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "huggingface")
    return Path(os.environ.get("HF_HUB_CACHE") or Path(home) / "hub").expanduser()


def _finding(use: str, path: Path, unwritable: FindingKind) -> CheckFinding:
    path = path.absolute()
    free, error = _write_test(path)
    where = f"{path}, {size_text(free)} free"
    if error:
        return unwritable.at(use, f"{where}: {error}")
    return (LOW if free < LOW_SPACE else SPACE).at(use, where)


def _write_test(path: Path) -> tuple[int, str]:
    """Return the free bytes and any write error of a folder, or of its nearest existing parent."""
    there = path
    while not os.path.lexists(there):
        there = there.parent
    try:
        free = free_bytes(there)
        if not there.is_dir():
            return free, f"{there} is no folder"
        with tempfile.TemporaryFile(dir=there) as file:
            file.write(bytes(TRIAL))
            file.flush()
    except OSError as error:
        return free_bytes(there.parent), error.strerror or str(error)
    return free, ""
