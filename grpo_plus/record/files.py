"""The files of a record: names, writing, reading line by line, and limits of time and bytes."""

import contextlib
import json
import math
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

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
_BLOCK = 1 << 16
"""Bytes that are read at once in search of a line's beginning."""


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
    """Append one line; return its size in bytes. After a kill a torn line is cut off, and a complete one closed.

    Raises:
        OSError: it cannot be written; the file is unchanged then.
    """
    line = (dump(value) + "\n").encode("ascii")
    with open_own(path, "a+b", buffering=0) as file:
        end = _mend(file)
        try:
            written = 0
            while written < len(line):
                written += file.write(line[written:])
        except BaseException:
            file.truncate(end)
            raise
    return len(line)


def _mend(file: IO[bytes]) -> int:
    """End the file with a complete line; return its size."""
    end = file.seek(0, os.SEEK_END)
    start = _last_line(file, end)
    if start < end:
        file.seek(start)
        try:
            json.loads(file.read(end - start))
        except (ValueError, RecursionError):
            return file.truncate(start)
        return end + file.write(b"\n")
    return end


def _last_line(file: IO[bytes], end: int) -> int:
    """The beginning of a last line without an end, otherwise the end of the file."""
    at = end
    while at > 0:
        before, at = at, max(0, at - _BLOCK)
        file.seek(at)
        if (index := file.read(before - at).rfind(b"\n")) >= 0:
            return at + index + 1
    return 0


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
SHARE_OF_TIME = 0.02
"""Largest share of the time for recording groups, after the first half second; as much again for reports."""


class ByteBudget:
    """Time and bytes for the sampled groups of a run, released in proportion to its progress.

    ``counted`` are the bytes of the run so far, which a resumed run continues; None: those of the file. Where time
    runs out first, the samples depend on the machine: no two runs need to agree.
    """

    def __init__(self) -> None:
        self.counted: int | None = None
        self._began = self._since = self._spent = 0.0
        self._withdrawn = 0

    def begin(self, size: int) -> None:
        """Start or resume a run whose file has this size."""
        self._began, self._spent = time.monotonic(), 0.0
        self.counted = size if self.counted is None else self.counted
        self._withdrawn = size - self.counted

    @contextlib.contextmanager
    def spending(self) -> Iterator[None]:
        """Count the time of the block."""
        self._since = time.monotonic()
        try:
            yield
        finally:
            self._spent += time.monotonic() - self._since

    def wrote(self, size: int) -> None:
        """Count bytes."""
        self.counted = (self.counted or 0) + size

    def used_up(self, done: float) -> bool:
        """True if a run that has done this share of its steps has used its budget; call it inside `spending`."""
        now = time.monotonic()
        spent = self._spent + now - self._since
        too_long = spent > 0.5 + SHARE_OF_TIME * (now - self._began)
        counted = self.counted or 0
        return too_long or counted > BYTES * min(1.0, 0.05 + done) or counted + self._withdrawn > 2 * BYTES


class ReportPace:
    """Limits a repeated action to a small share of the time."""

    def __init__(self) -> None:
        self._last = -math.inf
        self._took = 0.0

    def due(self) -> bool:
        """True if enough time has passed since the last time."""
        return time.monotonic() - self._last >= self._took / SHARE_OF_TIME

    @contextlib.contextmanager
    def measured(self) -> Iterator[None]:
        """Measure the action inside the block."""
        start = time.monotonic()
        yield
        self._last = time.monotonic()
        self._took = self._last - start
