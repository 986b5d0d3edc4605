"""Free space of folders, and a trial of writing to each; nothing stays behind."""

import os
import tempfile
from pathlib import Path

from grpo_plus.checkpoints.disk import free_bytes
from grpo_plus.doctor.checks.disk import Place

TRIAL = 4096


def places(output_dir: str | None = None) -> list[Place]:
    """The folders of temporary files, of the cache, and of a run's output where there is a config."""
    found = [_place("output_dir", Path(output_dir))] if output_dir else []
    found.append(_place("temporary files", Path(os.environ.get("TMPDIR") or tempfile.gettempdir())))
    return [*found, _place("Hugging Face cache", cache_folder())]


def cache_folder() -> Path:
    """The folder of what is downloaded from the Hub."""
    home = os.environ.get("HF_HOME") or str(Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "huggingface")
    return Path(os.environ.get("HF_HUB_CACHE") or Path(home) / "hub").expanduser()


def _place(use: str, path: Path) -> Place:
    """Write a little to a folder, or to the nearest one above it that exists."""
    path = path.absolute()
    there = path
    while not os.path.lexists(there):
        there = there.parent
    try:
        free = free_bytes(there)
        if not there.is_dir():
            return Place(use, str(path), free, f"{there} is no folder")
        with tempfile.TemporaryFile(dir=there) as file:
            file.write(bytes(TRIAL))
            file.flush()
    except OSError as error:
        return Place(use, str(path), free_bytes(there.parent), error.strerror or str(error))
    return Place(use, str(path), free)
