"""The surroundings that a config is read for: the folder of its file, and the processes of the run."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path


@dataclass
class _Launch:
    folder: Path | None = None
    processes: int | None = None


_launch = _Launch()
_CPU = "ACCELERATE_USE_CPU"


@contextmanager
def launching(folder: Path | None = None, processes: int | None = None) -> Iterator[None]:
    """Read the configs of the block for another place than this process; the command line calls it.

    Relative paths start in ``folder``; None: see `config_folder`. Batch sizes are checked by the ``processes`` that are
    about to be launched; None: those there are. For them this process keeps off the card, where it would take memory.
    """
    before, cpu = (_launch.folder, _launch.processes), os.environ.get(_CPU)
    _launch.folder, _launch.processes = folder and folder.resolve(), processes
    if processes is not None:
        os.environ[_CPU] = "true"
    try:
        yield
    finally:
        _launch.folder, _launch.processes = before
        if processes is not None:
            os.environ.pop(_CPU)
            os.environ |= {} if cpu is None else {_CPU: cpu}


def planned_processes() -> int | None:
    """The processes that are about to be launched; None outside `launching`."""
    return _launch.processes


def process_count() -> int:
    """The processes of the run, before TRL has asked accelerate."""
    return _launch.processes or int(os.environ.get("WORLD_SIZE", "1"))


def config_folder() -> Path:
    """The folder that relative paths of a config start from: that of its file, else the working directory.

    The file of a script that parses its own arguments with ``TrlParser`` is the one in its ``--config``.
    """
    if _launch.folder is not None:
        return _launch.folder
    arguments = sys.argv[1:]
    files = [after for flag, after in pairwise(arguments) if flag == "--config"]
    files += [word.removeprefix("--config=") for word in arguments if word.startswith("--config=")]
    return next((Path(file).resolve().parent for file in files if Path(file).is_file()), Path.cwd())
