"""Disks: whether what a run writes can be written, and how much room is left."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from grpo_plus.checkpoints.disk import size_text
from grpo_plus.doctor.finding import Finding, ok, problem, warning

LOW_SPACE = 1 << 30
"""Below this, one checkpoint of a small model, or one download, may not fit."""

SPACE = ok("disk", "The folder can be written, and has room.")
OUTPUT = problem(
    "output-unwritable",
    "Nothing can be written where the run would save its checkpoints and its model.",
    "Set another output_dir, or make its folder writable.",
)
TEMPORARY = problem(
    "temp-unwritable",
    "No temporary file can be written: workers and sandboxes cannot start.",
    "Free the folder, or set TMPDIR to another one.",
)
CACHE = warning(
    "cache-unwritable",
    "What is not downloaded yet cannot be kept: models and datasets from the Hub fail to load.",
    "Set HF_HOME to a folder that can be written.",
)
LOW = warning(
    "disk-low",
    "Less than 1 GiB is free: downloads, temporary files or checkpoints will soon fail.",
    "Free some space, or point output_dir, HF_HOME or TMPDIR elsewhere.",
)
_UNWRITABLE = {"output_dir": OUTPUT, "temporary files": TEMPORARY, "Hugging Face cache": CACHE}


@dataclass(frozen=True)
class Place:
    """A folder that is written to: its use, its path, free bytes, and why a write failed."""

    use: str
    path: str
    free: int
    error: str = ""


def disk_findings(places: Sequence[Place]) -> Iterator[Finding]:
    """Each folder."""
    for place in places:
        where = f"{place.path}, {size_text(place.free)} free"
        if place.error:
            yield _UNWRITABLE[place.use].at(place.use, f"{where}: {place.error}")
        else:
            yield (LOW if place.free < LOW_SPACE else SPACE).at(place.use, where)
