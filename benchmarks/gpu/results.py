"""The file of results: a line of JSON for each check as it ends, and the table made of them."""

import hashlib
import json
import math
import os
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import linear_regression
from typing import Any

from grpo_plus.memory.estimate import ALLOCATOR

ROOT = Path(__file__).parents[2]
GOOD = ("passed", "skipped")
OFF = 0.1
"""The planner may be off by this part."""
WIDTH = 110
"""Columns of a terminal that the table takes, at most."""


@dataclass(frozen=True)
class Origin:
    """What results are of; results of another origin are not continued.

    Attributes:
        commit: a digest of the sources: of the packages and of the benchmarks.
        device: ``cuda``, ``cpu`` or ``stand-in``.
        size: ``tiny`` or ``full``.
        card: the name of the card; empty without one.
    """

    commit: str
    device: str
    size: str
    card: str = ""


@dataclass(frozen=True)
class Result:
    """How a check went.

    Attributes:
        name: of the check.
        status: passed, failed (a claim does not hold), error (it raised), crashed, timeout, memory (of the machine),
            or skipped.
        seconds: that it took.
        figures: what it measured.
        headline: the same in a few words.
        peak: the most memory of the card in use by PyTorch, in GiB; None without a card.
        why: what went wrong, or why it was skipped.
        log: the end of what it printed, where it went wrong.
    """

    name: str
    status: str
    seconds: float
    figures: Mapping[str, Any] = field(default_factory=dict)
    headline: str = ""
    peak: float | None = None
    why: str = ""
    log: str = ""

    @property
    def good(self) -> bool:
        """Nothing went wrong."""
        return self.status in GOOD


def source_digest() -> str:
    """Twelve letters that change with any line of the packages or of the benchmarks."""
    digest = hashlib.sha256()
    for folder in ("grpo_plus", "verifiers/grpo_verifiers", "benchmarks"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            digest.update(str(path.relative_to(ROOT)).encode() + path.read_bytes())
    return digest.hexdigest()[:12]


class Results:
    """The results of an origin, and the file that they are appended to.

    Raises:
        OSError: If the file cannot be written.
        ValueError: If it holds something else.
    """

    def __init__(self, path: Path | None, origin: Origin, versions: Mapping[str, str]) -> None:
        self.path, self.origin, self.versions = path, origin, versions
        self.notes: list[str] = []
        self.found: dict[str, Result] = {}
        if path is None:
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        path.open("a", encoding="utf-8").close()  # an error now, and not after the first check
        lines, broken = read(path)
        if broken > 1 and not lines:
            raise ValueError("this file holds something else than results, and is left alone.")
        if broken:
            self.notes.append(f"{path}: {broken} broken line(s) left out, as of a run that was killed.")
        others = {tuple(asdict(of).items()) for of, _ in lines} - {tuple(asdict(origin).items())}
        if not others:
            self.found = {result.name: result for _, result in lines}
            if broken and path.read_bytes()[-1:] != b"\n":
                with path.open("a", encoding="utf-8") as file:
                    file.write("\n")
            return
        kept = next(new for at in range(1, 10_000) if not (new := path.with_suffix(f".{at}{path.suffix}")).exists())
        path.rename(kept)
        differs = ", ".join(f"{name} {value}" for name, value in sorted(others.pop()) if value != getattr(origin, name))
        self.notes.append(f"{path} holds results of {differs}: started anew, the old one is kept as {kept.name}.")

    def add(self, result: Result) -> None:
        """Write a result at once."""
        self.found[result.name] = result
        if self.path is None:
            return
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({**asdict(result), **asdict(self.origin), "versions": dict(self.versions)}) + "\n")
            file.flush()
            os.fsync(file.fileno())


def read(path: Path) -> tuple[list[tuple[Origin, Result]], int]:
    """The results in a file with their origins, in order, and how many of its lines are broken."""
    found, broken = [], 0
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            values = json.loads(line)
            origin = Origin(*(str(values[name]) for name in ("commit", "device", "size", "card")))
            names = ("name", "status", "seconds", "figures", "headline", "peak", "why", "log")
            found.append((origin, Result(**{name: values[name] for name in names})))
        except (ValueError, KeyError, TypeError):
            broken += bool(line.strip())
    return found, broken


def versions_in(path: Path) -> dict[str, str]:
    """The versions that the last line of a file was made with."""
    for line in reversed(path.read_text(encoding="utf-8").splitlines()):
        try:
            return dict(json.loads(line)["versions"])
        except (ValueError, KeyError, TypeError):
            continue
    return {}


def table(rows: Iterable[tuple[str, Result | str]]) -> str:
    """A line for each check: its result, or why it was not run."""
    rows = list(rows)
    longest = max((len(name) for name, _ in rows), default=0)
    lines = [f"{'check':{longest}}  {'result':8} {'s':>5} {'GiB':>5}"]
    for name, result in rows:
        if isinstance(result, str):
            head, text = f"{name:{longest}}  {'not run':8} {'':5} {'':5}", result
        else:
            peak = "" if result.peak is None else f"{result.peak:.1f}"
            head = f"{name:{longest}}  {result.status:8} {result.seconds:5.0f} {peak:>5}"
            text = (
                result.headline
                if result.status == "passed"
                else " · ".join(filter(None, (result.why, result.headline)))
            )
        room = max(24, WIDTH - len(head) - 2)
        shown = textwrap.wrap(text, room, max_lines=3, placeholder=" …") or [""]
        lines += [f"{head}  {shown[0]}".rstrip(), *(" " * (len(head) + 2) + part for part in shown[1:])]
    return "\n".join(lines)


def figure(value: Any) -> str:
    """A figure as a reader wants it: three significant digits, no zeros behind them."""
    if not isinstance(value, float) or not math.isfinite(value):
        return str(value)
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def counts(results: Sequence[Result], not_run: int) -> str:
    """How many of each kind, in a line."""
    kinds: dict[str, int] = {}
    for result in results:
        kinds[result.status] = kinds.get(result.status, 0) + 1
    return ", ".join(
        f"{count} {kind}" for kind, count in [*kinds.items(), *([("not run", not_run)] if not_run else [])]
    )


def constants(found: Mapping[str, Result]) -> str | None:
    """Factor and constant of each phase through all peaks that were measured, the allocator's share included.

    None: the plans are right, or only one size was run.
    """
    measured = [
        result.figures for name, result in found.items() if name.startswith("fit-") and "points" in result.figures
    ]
    # What CUDA takes beside PyTorch.
    outside = float(found["card"].figures.get("outside", 0.0)) if "card" in found else 0.0
    if all(abs(one["ratio"] - 1) <= OFF for one in measured):
        return None
    lines = []
    for phase in ("train", "rollout"):
        pairs = [tuple(one["points"][phase]) for one in measured]
        if len({round(planned, 3) for planned, _ in pairs}) < 2:
            return None
        factor, constant = linear_regression(*zip(*pairs, strict=True))
        if constant < 0:  # it would be wrong for smaller models: through zero, above every point
            factor, constant = max(found / planned for planned, found in pairs), 0.0
        lines.append(f'"{phase}": ({ALLOCATOR * factor:.3f}, {ALLOCATOR * constant + outside:.3f} * GIB)')
    return f"{{{', '.join(lines)}}}"
