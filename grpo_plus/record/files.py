"""The files of a record: names, writing, reading line by line, and a limit of bytes."""

import json
import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from grpo_verifiers.files import MOST_BYTES, open_own, write_atomic

SCHEMA = 1
"""Version of the layout; it rises when an older reader would misread the files."""

FOLDER = "grpo_plus"
RUN = "run.json"
METRICS = "metrics.jsonl"
GROUPS = "groups.jsonl"
FINDINGS = "findings.jsonl"
SWEEP = "sweep.json"
PREVIOUS = "previous"


class RunError(ValueError):
    """A folder without a readable run; the message has the remedy."""


def plain(value: Any) -> Any:
    """The value as plain JSON: NaN and infinity become None, unknown types their text."""
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(item) for item in value]
    try:
        return plain(float(value))  # numpy scalars
    except (TypeError, ValueError):
        return str(value)


def dump(value: Any) -> str:
    """One line of ASCII JSON: line separators and lone surrogates are escaped."""
    return json.dumps(plain(value), ensure_ascii=True, allow_nan=False, separators=(",", ":"))


def append_line(path: Path, value: Any) -> int:
    """Append one line; return its size in bytes. A line that was torn by a kill is ended first.

    Raises:
        OSError: it cannot be written; the file is unchanged then.
    """
    line = (dump(value) + "\n").encode("ascii")
    with open_own(path, "a+b", buffering=0) as file:
        end = file.seek(0, os.SEEK_END)
        file.seek(max(0, end - 1))
        line = line if file.read(1) in (b"", b"\n") else b"\n" + line
        try:
            written = 0
            while written < len(line):
                written += file.write(line[written:])
        except BaseException:
            file.truncate(end)
            raise
    return len(line)


def read_lines(path: Path) -> Iterator[dict[str, Any] | None]:
    """The lines of a file in order; None for a broken one, so that callers can count them."""
    if not path.is_file():
        return
    with path.open("rb") as file:
        for raw in iter(lambda: file.readline(MOST_BYTES), b""):
            if not raw.strip():
                continue
            try:
                value = json.loads(raw)
            except (ValueError, RecursionError):
                yield None
                continue
            yield value if isinstance(value, dict) else None


def mark_sweep(output_dir: str | Path, variant: str, seed: int | None = None) -> Path:
    """Mark a run as one of a variant, before it starts; a report draws all runs of a variant as one line with a band.

    ``variant`` is the label that all its seeds share. Creates ``output_dir`` if missing; returns the written file.
    """
    path = Path(output_dir) / FOLDER / SWEEP
    write_atomic(path, dump({"variant": str(variant), "seed": seed}) + "\n")
    return path


BYTES = 48 * 2**20
"""Of all sampled groups of a run; twice as many with those that resumed runs took back."""


class ByteBudget:
    """Bytes for the sampled groups of a run, released in proportion to its progress.

    ``counted`` are the bytes of the run so far, which a resumed run continues; None: those of the file.
    """

    def __init__(self) -> None:
        self.counted: int | None = None
        self._withdrawn = 0

    def begin(self, size: int) -> None:
        """Start or resume a run whose file has this size."""
        self.counted = size if self.counted is None else self.counted
        self._withdrawn = size - self.counted

    def wrote(self, size: int) -> None:
        """Count bytes."""
        self.counted = (self.counted or 0) + size

    def used_up(self, done: float) -> bool:
        """True if a run that has done this share of its steps has used its budget."""
        counted = self.counted or 0
        return counted > BYTES * min(1.0, 0.05 + done) or counted + self._withdrawn > 2 * BYTES
