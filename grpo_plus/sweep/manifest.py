"""``sweep.json``: what a sweep is and how far it got, so that the same command goes on where it stopped."""

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from grpo_plus.record.files import plain
from grpo_plus.sweep.plan import Plan, Run
from grpo_plus.sweep.vary import SweepError
from grpo_verifiers.files import open_own, read_text, write_whole
from grpo_verifiers.redaction import redact

FILE = "sweep.json"
SCHEMA = 1
State = Literal["waiting", "running", "finished", "failed", "stopped"]


@dataclass
class Entry:
    """How far one run is.

    Attributes:
        variant: its label.
        seed: of the run.
        flags: its command line after the config file.
        state: ``running`` in a file that nobody writes any more means killed.
        code: exit code of the last attempt.
        attempts: how often it was started.
        results: final figures of a finished run, by title.
    """

    variant: str
    seed: int
    flags: list[str]
    state: State = "waiting"
    code: int | None = None
    attempts: int = 0
    results: dict[str, float] = field(default_factory=dict)


class Manifest:
    """The state of a sweep, written whole after every change."""

    def __init__(self, path: Path, plan: Plan, entries: dict[str, Entry]) -> None:
        """See `open_manifest`."""
        self._path = path
        self._plan = plan
        self._entries = entries

    def of(self, run: Run) -> Entry:
        """The entry of a run."""
        return self._entries[run.name]

    def save(self) -> None:
        """Write it."""
        whole = {
            "schema": SCHEMA,
            "config": str(self._plan.config),
            "values": redact(plain(self._plan.values)),
            "shared": redact(list(self._plan.shared)),
            "runs": {name: redact(asdict(entry)) for name, entry in self._entries.items()},
        }
        write_whole(self._path, json.dumps(whole, indent=1) + "\n")


def open_manifest(plan: Plan) -> Manifest:
    """The manifest of the plan's folder: the one that is there, if it is of the same config, or a new one.

    Variants and seeds may be added and left out; runs that are there already keep their state.

    Raises:
        SweepError: the folder holds something else, or a sweep of another config.
    """
    path = plan.out / FILE
    entries: dict[str, Entry] = {}
    if path.is_file():
        old = _read(path)
        differences = _differences(old, plan)
        if differences:
            raise SweepError(
                f"the sweep in {plan.out} is of another config:\n"
                + "\n".join(f"  {line}" for line in differences)
                + "\nChange it back to go on, or start another sweep with --out."
            )
        entries = {name: Entry(**entry) for name, entry in old["runs"].items()}
    elif plan.out.is_dir() and any(child.name != LOCK for child in plan.out.iterdir()):
        raise SweepError(f"{plan.out} is not empty and holds no sweep: name another folder with --out.")
    for run in plan.runs:
        entry = entries.setdefault(run.name, Entry(run.variant.label, run.seed, list(run.flags)))
        if entry.state == "running":
            entry.state = "stopped"
        elif entry.state == "finished" and not run.folder.is_dir():  # thrown away since
            entry.state = "waiting"
    return Manifest(path, plan, entries)


LOCK = ".lock"


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[int]:
    """Hold the folder for this sweep; gives the descriptor that runs inherit and hold it by as long as they live.

    Raises:
        SweepError: another sweep, or a run that one left behind, still works there; or it cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = open_own(folder / LOCK, "a")
    except OSError as error:
        raise SweepError(f"the sweep's folder {folder} cannot be written: {error}.") from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not os.path.samestat(os.fstat(file.fileno()), (folder / LOCK).stat()):
                raise BlockingIOError("its last holder has just removed it")
        except OSError as error:
            raise SweepError(
                f"another sweep, or a run that one left behind, still works in {folder}: wait for it or end it first, "
                "or name another folder with --out."
            ) from error
        try:
            yield file.fileno()
        finally:
            if [child.name for child in folder.iterdir()] == [LOCK]:  # nothing was started
                (folder / LOCK).unlink()
                folder.rmdir()


def _read(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(read_text(path))
        if found["schema"] != SCHEMA:
            raise SweepError(f"{path} was written by another version (schema {found['schema']}): use --out.")
        for entry in found["runs"].values():
            Entry(**entry)
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        if isinstance(error, SweepError):
            raise
        raise SweepError(f"{path} cannot be read ({error}): remove it to start anew, or use --out.") from error
    return dict(found)


def _differences(old: Mapping[str, Any], plan: Plan) -> list[str]:
    """What the config says now and did not say then."""
    new: dict[str, Any] = redact(plain(plan.values))
    lines = [
        f"{key}: {_shown(old['values'], key)} then, {_shown(new, key)} now"
        for key in dict.fromkeys([*old["values"], *new])
        if old["values"].get(key, _shown) != new.get(key, _shown)
    ]
    shared: list[str] = redact(list(plan.shared))
    if list(old["shared"]) != shared:
        then, now = (" ".join(words) or "none" for words in (old["shared"], shared))
        lines.append(f"options: {then} then, {now} now")
    return lines


def _shown(values: Mapping[str, Any], key: str) -> str:
    return json.dumps(values[key], ensure_ascii=False) if key in values else "not set"
