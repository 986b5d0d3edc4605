"""Open a run's folder: its record, and TRL's own logs for the rest."""

import json
import math
import os
import re
import socket
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from grpo_plus.record import schema
from grpo_plus.record.files import FINDINGS, FOLDER, GROUPS, METRICS, RUN, SCHEMA, SWEEP, RunError, read_lines
from grpo_verifiers.errors.messages import counted
from grpo_verifiers.files import read_text
from grpo_verifiers.stats import Interval

STALE = 24 * 3600
"""Seconds without a write after which a run on another machine counts as ended."""
MEASURE = "measure"
"""Below a run's folder: ``before.json`` and ``after.json`` of ``measure`` in a config."""
_STATE = "trainer_state.json"
_NUMBERED = re.compile(r"checkpoint-[0-9]{1,15}")


@dataclass(frozen=True)
class Measured:
    """One verifier's shares of right samples; None for one that was not measured. ``gain`` is paired over the rows."""

    before: Interval | None = None
    after: Interval | None = None
    gain: Interval | None = None


@dataclass(frozen=True)
class Run:
    """One run; ``path`` is its output folder.

    ``info`` is ``run.json``, empty for a run of stock TRL. ``status`` is running, done, interrupted, failed, or
    unknown. ``damage`` has sentences about unreadable parts.
    """

    path: Path
    info: dict[str, Any]
    status: str
    damage: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        """The name of its folder, with the parent's name if its own is generic."""
        folder = self.path.resolve()
        generic = folder.name in ("out", "output", "run", "model")
        return f"{folder.parent.name}/{folder.name}" if generic and folder.parent.name else folder.name

    @property
    def title(self) -> str:
        """Its settings in a sweep; without a sweep its name."""
        sweep = self.info.get("sweep")
        if sweep is None:
            return self.name
        seed = sweep.get("seed")
        return str(sweep["variant"]) if seed is None else f"{sweep['variant']}, seed {seed}"

    @property
    def variant(self) -> str | None:
        """Label of its variant in a sweep."""
        sweep = self.info.get("sweep")
        return None if sweep is None else str(sweep["variant"])

    @cached_property
    def entries(self) -> list[dict[str, Any]]:
        """All entries by step: mappings with kind (train, eval, batch), step and values; one for each kind and step."""
        own = _effective(self.path / FOLDER / METRICS, schema.MetricsLine, self.damage)
        latest: dict[tuple[str, int], dict[str, Any]] = {}
        for entry in [*_history(self.path, self.damage), *own]:
            key = entry["kind"], entry["step"]
            before = latest.get(key)
            merged = {**(before or {}).get("values", {}), **entry["values"]} if key[0] != "batch" else entry["values"]
            latest[key] = {**entry, "values": merged}
        return sorted(latest.values(), key=lambda entry: entry["step"])

    def series(self, key: str) -> tuple[list[int], list[float]]:
        """The steps and values of a metric by TRL's name; evaluation's names begin with ``eval_``."""
        return self._series.get(key, ([], []))

    def metrics(self) -> list[str]:
        """Names of the metrics with a number in any entry."""
        return sorted(self._series)

    @cached_property
    def _series(self) -> dict[str, tuple[list[int], list[float]]]:
        series: dict[str, tuple[list[int], list[float]]] = {}
        for entry in self.entries:
            for key, value in entry["values"].items() if entry["kind"] != "batch" else ():
                if not isinstance(value, list):
                    steps, values = series.setdefault(key, ([], []))
                    steps.append(entry["step"])
                    values.append(float(value))
        return series

    def quantiles(self) -> tuple[list[int], list[list[float]]]:
        """Steps, and the quantiles of the advantages of each step's generation batch."""
        pairs = [
            (entry["step"], entry["values"]["quantiles"])
            for entry in self.entries
            if entry["kind"] == "batch" and isinstance(entry["values"].get("quantiles"), list)
        ]
        return [step for step, _ in pairs], [values for _, values in pairs]

    def findings(self) -> list[dict[str, Any]]:
        """Findings during the run: beginnings and ends, in order."""
        return _effective(self.path / FOLDER / FINDINGS, schema.FindingLine, self.damage)

    @cached_property
    def measured(self) -> dict[str, Measured]:
        """Accuracies on the measured rows before and after training, by the verifier's label."""
        return read_measured(self.path)

    def groups(self) -> Iterator[dict[str, Any]]:
        """The sampled groups; of a repeated step, the last ones."""
        own: dict[tuple[str, int, int], dict[str, Any]] = {}
        for record in _effective(self.path / FOLDER / GROUPS, schema.Group, self.damage):
            own[record["mode"], record["step"], record["group"]] = record
        yield from own.values()


def open_run(path: str | Path) -> Run:
    """Open the folder of a run: its output folder, or the record inside it.

    Raises:
        RunError: there is no run, or this version cannot read it.
    """
    folder = Path(path)
    try:
        folder = folder.expanduser()
        if not folder.exists():
            raise RunError(f"{folder} does not exist.{runs_near(folder)} Give the output_dir of a run.")
        if not folder.is_dir():
            raise RunError(f"{folder} is a file. Give the output_dir of a run, which is a folder.")
        if folder.name == FOLDER and ((folder / RUN).exists() or (folder / METRICS).exists()):
            folder = folder.resolve().parent
        recorded = any((folder / FOLDER / name).exists() for name in (RUN, METRICS))
        if not recorded and not _states(folder):
            raise RunError(
                f"{folder} is no run: it has no {FOLDER}/{RUN} and no checkpoint-*/{_STATE}."
                f"{runs_near(folder)} Give the output_dir of a run that has logged at least once."
            )
        damage: list[str] = []
        info = _info(folder, damage)
    except (OSError, RuntimeError) as error:  # RuntimeError: no home folder
        if isinstance(error, RecursionError):
            raise
        raise RunError(f"{folder} cannot be read: {error}.") from error
    return Run(folder, info, _status(folder, info), damage)


def _info(folder: Path, damage: list[str]) -> dict[str, Any]:
    path = folder / FOLDER / RUN
    if not path.exists():
        return {}
    try:
        info = json.loads(read_text(path))
    except (ValueError, RecursionError) as error:
        damage.append(f"{FOLDER}/{RUN} is broken ({error}), so parts and settings are not shown")
        return {}
    if not isinstance(info, dict):
        damage.append(f"{FOLDER}/{RUN} holds no mapping, so parts and settings are not shown")
        return {}
    fields, broken = schema.declared_fields(schema.Info, info)
    if fields.get("schema", SCHEMA + 1) > SCHEMA:
        version = fields.get("versions", {}).get("grpo_plus", "of another version")
        raise RunError(
            f"{path} is of schema {info.get('schema')!r:.80}, and this version reads up to {SCHEMA}: it was written by "
            f"grpo_plus {version}. Upgrade grpo_plus to it."
        )
    damage += [f"{name} of {FOLDER}/{RUN} is broken, so it is not shown" for name in broken]
    sweep = folder / FOLDER / SWEEP
    if sweep.exists():
        try:
            fields["sweep"] = schema.reader(schema.Sweep)(json.loads(read_text(sweep)))
        except (ValueError, RecursionError):
            damage.append(f"{FOLDER}/{SWEEP} is broken, so the run is read without a sweep")
    return fields


def _status(folder: Path, info: dict[str, Any]) -> str:
    """The status of the run; a killed run is still marked as running."""
    status: str = info.get("status", "unknown")
    if status != "running":
        return status
    if info.get("host") == socket.gethostname():
        return "running" if _is_alive(info.get("pid")) else "interrupted"
    written = [path for path in (folder / FOLDER / RUN, folder / FOLDER / METRICS) if path.exists()]
    last = max(path.stat().st_mtime for path in written)
    return "running" if time.time() - last < STALE else "interrupted"


def _is_alive(pid: Any) -> bool:
    if not isinstance(pid, int) or not 0 < pid < 2**31:
        return False
    try:
        os.kill(pid, 0)
    except OSError as error:
        return not isinstance(error, ProcessLookupError)
    return True


def _effective(path: Path, kind: type, damage: list[str]) -> list[dict[str, Any]]:
    """The valid lines: a run that resumes from a step takes back all lines of later steps."""
    read, read_begin = schema.reader(kind), schema.reader(schema.Begin)
    valid: list[dict[str, Any]] = []
    broken = 0
    try:
        for line in read_lines(path):
            try:
                if line is not None and line.get("kind") == "begin":
                    step = read_begin(line)["step"]
                    valid = [earlier for earlier in valid if earlier["step"] <= step]
                else:
                    valid.append(read(line))
            except schema.Malformed:
                broken += 1
    except OSError as error:
        damage.append(f"{FOLDER}/{path.name} cannot be read: {error.strerror}")
    if broken:
        damage.append(
            f"{counted(broken, 'line')} of {FOLDER}/{path.name} cannot be read and were left out, as after a kill"
        )
    return valid


def runs_near(path: Path) -> str:
    """A sentence about the runs and models in the nearest folder above a path, or in it; empty without any."""
    folder = next((each for each in (path, *path.parents) if each.is_dir()), Path())
    nearby: dict[str, set[str]] = {"runs": set(), "models": set()}
    for pattern in (f"*/{FOLDER}/{RUN}", f"*/*/{FOLDER}/{RUN}", f"*/checkpoint-*/{_STATE}"):
        nearby["runs"] |= {str(match.parent.parent) for match in folder.glob(pattern)}
    for pattern in ("*/config.json", "*/adapter_config.json"):
        nearby["models"] |= {str(match.parent) for match in folder.glob(pattern)} - nearby["runs"]
    return "".join(f" There are {kind} in {', '.join(sorted(names)[:5])}." for kind, names in nearby.items() if names)


def read_measured(folder: Path) -> dict[str, Measured]:
    """The accuracy on the measured rows by the verifier's label; unreadable values are left out."""
    (before, _), (after, gains) = (_results(folder / MEASURE / f"{when}.json") for when in ("before", "after"))
    return {label: Measured(before.get(label), after.get(label), gains.get(label)) for label in {**before, **after}}


def _results(path: Path) -> tuple[dict[str, Interval], dict[str, Interval]]:
    try:
        results = json.loads(read_text(path))["results"]
        accuracies = {str(k): share for k, each in results["verifiers"].items() if (share := _accuracy(each))}
        gains = {str(k): share for k, each in (results.get("gain") or {}).items() if (share := _share(each, -1.0))}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return {}, {}
    return accuracies, gains


def _accuracy(result: Any) -> Interval | None:
    passes = result.get("pass_at") if isinstance(result, Mapping) else None
    return _share(passes.get("1"), 0.0) if isinstance(passes, Mapping) else None


def _share(result: Any, least: float) -> Interval | None:
    if not isinstance(result, Mapping):
        return None
    ends = [result.get(name) for name in ("value", "low", "high")]
    if not all(isinstance(end, int | float) and not isinstance(end, bool) and not math.isnan(end) for end in ends):
        return None
    value, low, high = (float(end) for end in ends)  # type: ignore[arg-type]
    return Interval(value, max(least, low), min(1.0, high)) if least <= value <= 1 else None


def _states(folder: Path) -> list[Path]:
    states = [path for path in folder.glob(f"checkpoint-*/{_STATE}") if _NUMBERED.fullmatch(path.parent.name)]
    states.sort(key=lambda path: int(path.parent.name.rpartition("-")[2]))
    return [*states, *([folder / _STATE] if (folder / _STATE).is_file() else [])]


def _history(folder: Path, damage: list[str]) -> list[dict[str, Any]]:
    """Metric entries of TRL's log in the form of the record; later states win."""
    entries: dict[tuple[str, int], dict[str, Any]] = {}
    for path in _states(folder):
        try:
            logged = json.loads(read_text(path))["log_history"]
            for entry in map(_logged, logged):
                entries[entry["kind"], entry["step"]] = entry
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            damage.append(f"{path.relative_to(folder)} cannot be read and was left out")
    return list(entries.values())


def _logged(raw: Any) -> dict[str, Any]:
    step, figures = schema.reader(schema.Begin)(raw)["step"], schema.figures(raw)
    values = {key: value for key, value in figures.items() if key not in {"step", "epoch"}}
    kind = "eval" if any(key.startswith("eval_") for key in values) else "train"
    return {"kind": kind, "step": step, "values": values}
