"""The folder of a config, the processes of its run, and the micro-batches and steps of a generation batch."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any


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
    """The processes of the run, before TRL starts accelerate."""
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


def steps_per_generation(config: Any) -> int:
    """Micro-batches that one process trains on in a generation batch, also before TRL has filled the field in."""
    if config.steps_per_generation is not None:
        return at_least_1(config.steps_per_generation)
    if config.generation_batch_size is None:
        return at_least_1(config.gradient_accumulation_steps)
    rows = at_least_1(config.per_device_train_batch_size) * process_count()
    return at_least_1(config.generation_batch_size // rows)


def moves_in_batch(config: Any) -> bool:
    """True if the policy moves between the first and the last look at a generation batch.

    A generation batch is looked at ``steps_per_generation * num_iterations`` micro-batches long, and the optimizer
    steps after every ``gradient_accumulation_steps``: never in between where the second is a multiple of the first.
    """
    looks = steps_per_generation(config) * at_least_1(config.num_iterations)
    return at_least_1(config.gradient_accumulation_steps) % looks != 0


def at_least_1(count: Any) -> int:
    """A count; one that is no count is reported where the field is checked, and is 1 here."""
    return max(1, int(count or 1))
