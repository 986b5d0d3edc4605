"""``sweep.json``: state of a sweep, from which the same command resumes it."""

import contextlib
import fcntl
import json
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from grpo_plus.record.files import plain
from grpo_plus.sweep.plan import SweepPlan, SweepRun
from grpo_plus.sweep.vary import SweepError
from grpo_verifiers.files import open_own, read_text, write_atomic
from grpo_verifiers.redaction import get_logger, redact

logger = get_logger("grpo_plus.sweep")

FILE = "sweep.json"
SCHEMA = 1
State = Literal["waiting", "running", "finished", "failed", "stopped"]


@dataclass
class RunEntry:
    """State of one run; ``running`` in the file of an ended sweep means killed.

    ``code`` is the exit code of the last attempt. ``attempts`` counts starts. ``results`` are the final figures of a
    finished run, by title.
    """

    variant: str
    seed: int
    state: State = "waiting"
    code: int | None = None
    attempts: int = 0
    results: dict[str, float] = field(default_factory=dict)


@dataclass
class SweepManifest:
    """State of a sweep; the file is replaced at every change.

    ``entries`` are by the name of the run, and include runs no longer in the plan. ``unsaved`` is why the last change
    is not in the file. ``started`` has the start times of this process's runs, on the monotonic clock.
    """

    plan: SweepPlan
    entries: dict[str, RunEntry]
    unsaved: str | None = None
    started: dict[str, float] = field(default_factory=dict)

    def of(self, run: SweepRun) -> RunEntry:
        """Return the entry of a run."""
        return self.entries[run.name]

    def unfinished(self) -> list[SweepRun]:
        """Return the unfinished runs, in order."""
        return [run for run in self.plan.runs if self.of(run).state != "finished"]

    def begin(self, run: SweepRun) -> None:
        """Record the start of a run."""
        entry = self.of(run)
        entry.state, entry.code, entry.results = "running", None, {}
        entry.attempts += 1
        self.started[run.name] = time.monotonic()
        self.save()

    def save(self) -> None:
        """Write the file; after a failure, log a warning and write it again at the next change."""
        contents = {
            "schema": SCHEMA,
            "config": str(self.plan.config),
            **_identity(self.plan),
            "runs": {name: redact(asdict(entry)) for name, entry in self.entries.items()},
        }
        try:
            write_atomic(self.plan.out / FILE, json.dumps(contents, indent=1) + "\n")
        except OSError as error:
            if self.unsaved is None:
                logger.warning("the state of the sweep was not written, its runs continue: %s", error)
            self.unsaved = str(error)
        else:
            self.unsaved = None


def _identity(plan: SweepPlan) -> dict[str, Any]:
    return {"values": redact(plain(plan.values)), "shared": redact(list(plan.shared))}


def open_manifest(plan: SweepPlan) -> SweepManifest:
    """Read the manifest in the plan's folder if it has the same config, else create a new one.

    Variants and seeds may be added or left out; runs of an earlier start keep their state.
    """
    path = plan.out / FILE
    entries: dict[str, RunEntry] = {}
    if path.is_file():
        old, entries = _read(path)
        if differences := _differences(old, _identity(plan)):
            raise SweepError(
                f"the sweep in {plan.out} has another config:\n"
                + "\n".join(f"  {line}" for line in differences)
                + "\nChange it back to resume, or start another sweep with --out."
            )
    elif plan.out.is_dir() and any(child.name != LOCK for child in plan.out.iterdir()):
        raise SweepError(f"{plan.out} is not empty and holds no sweep: name another folder with --out.")
    for run in plan.runs:
        entry = entries.setdefault(run.name, RunEntry(run.variant.label, run.seed))
        if entry.state == "running":
            entry.state = "stopped"
        elif entry.state == "finished" and not run.folder.is_dir():  # removed since
            entry.state = "waiting"
    return SweepManifest(plan, entries)


LOCK = ".lock"


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[int]:
    """Lock the folder for this sweep; yield the descriptor, which runs inherit to hold the lock until their end."""
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
                f"another sweep, or a leftover run of one, still uses {folder}: wait for it or end it first, "
                "or name another folder with --out."
            ) from error
        try:
            yield file.fileno()
        finally:
            if [child.name for child in folder.iterdir()] == [LOCK]:  # no run was started
                (folder / LOCK).unlink()
                folder.rmdir()


def _read(path: Path) -> tuple[dict[str, Any], dict[str, RunEntry]]:
    try:
        contents = json.loads(read_text(path))
        schema = contents["schema"]
        if schema == SCHEMA:
            identity = {"values": dict(contents["values"]), "shared": list(contents["shared"])}
            return identity, {name: RunEntry(**entry) for name, entry in contents["runs"].items()}
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise SweepError(f"{path} cannot be read ({error}): remove it to start again, or use --out.") from error
    raise SweepError(f"{path} was written by another version (schema {schema}): use --out.")


def _differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    def text(values: Mapping[str, Any], key: str) -> str:
        return json.dumps(values[key], ensure_ascii=False) if key in values else "not set"

    before, now = old["values"], new["values"]
    lines = [
        f"{key}: {text(before, key)} then, {text(now, key)} now"
        for key in dict.fromkeys([*before, *now])
        if (key in before, before.get(key)) != (key in now, now.get(key))
    ]
    if old["shared"] != new["shared"]:
        options = [" ".join(each["shared"]) or "none" for each in (old, new)]
        lines.append(f"options: {options[0]} then, {options[1]} now")
    return lines
