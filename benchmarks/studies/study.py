"""What every study does: a command line, one run after the other in processes of their own, a table, a picture.

A run is a *case*: a mapping of settings. It runs in a fresh process with one thread, and what it found becomes a line
of ``FOLDER/results.jsonl`` under a hash of its settings. Started again, a study repeats no case that has its line;
another setting is another case. Delete the folder to begin anew.
"""

import argparse
import hashlib
import importlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from benchmarks.studies import picture

ROOT = Path(__file__).parents[2]
ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
Case = dict[str, Any]
"""Settings of a run, JSON values."""


@dataclass(frozen=True)
class Row:
    """A case, what its run found, and the seconds that it took, starting included."""

    case: Case
    found: dict[str, Any]
    seconds: float


@dataclass(frozen=True)
class Place:
    """Folders of a run: ``home`` of all studies, and the rows of this study that are there already."""

    home: Path
    earlier: Sequence[Row]


@dataclass(frozen=True)
class Shown:
    """What a study shows: one table, one picture, and remarks below the table."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    panels: Sequence[picture.Panel]
    remarks: Sequence[str] = ()


@dataclass(frozen=True)
class Study:
    """A question with its runs.

    Attributes:
        name: of the module in this folder.
        title: above table and picture.
        about: the module's docstring.
        steps: what ``--steps`` counts, and its default.
        seeds: default number of seeds.
        cases: the cases of a command line, in the order in which they run; a case may need those before it.
        run: one case, in a process of its own.
        show: table and picture of the rows that are there.
        quick: options under ``--quick``.
        version: raised when equal settings come to mean another run.
        options: adds options of its own to the command line.
    """

    name: str
    title: str
    about: str
    steps: tuple[str, int]
    seeds: int
    cases: Callable[[argparse.Namespace], list[Case]]
    run: Callable[[Case, Place], dict[str, Any]]
    show: Callable[[argparse.Namespace, Sequence[Row]], Shown]
    quick: Mapping[str, Any]
    version: int = 1
    options: Callable[[argparse.ArgumentParser], Any] = field(default=lambda _: None)


def main(study: Study, arguments: Sequence[str] | None = None, *, processes: bool = True) -> int:
    """Run what is missing, and print and draw all of it; returns the exit status.

    ``processes`` False runs the cases in this process.
    """
    options = _options(study, arguments)
    if options.one:
        return _one(study, Path(options.one))
    folder = Path(options.home) / study.name
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(folder / ".lock", timeout=0):
            return _all(study, options, folder, processes=processes)
    except Timeout:
        print(f"{folder} is in use by another process: wait for it, or set --home.", file=sys.stderr)
        return 2


def _options(study: Study, arguments: Sequence[str] | None) -> argparse.Namespace:
    what, steps = study.steps
    parser = argparse.ArgumentParser(
        prog=f"python -m benchmarks.studies.{study.name}",
        description=study.about,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--seeds", type=_positive, default=study.seeds, help=f"how many seeds ({study.seeds})")
    parser.add_argument("--steps", type=_positive, default=steps, help=f"{what} ({steps})")
    parser.add_argument("--quick", action="store_true", help="a little of everything, to see that it runs")
    parser.add_argument("--home", default="runs/studies", help="folder of all studies (runs/studies)")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    study.options(parser)
    if "--quick" in (sys.argv[1:] if arguments is None else arguments):
        parser.set_defaults(**study.quick)  # what is given beside it still counts
    return parser.parse_args(arguments)


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is below 1")
    return value


def _all(study: Study, options: argparse.Namespace, folder: Path, *, processes: bool) -> int:
    start = time.perf_counter()
    cases = study.cases(options)
    kept = _read(folder)
    missing = sum(_key(study, case) not in kept for case in cases)
    print(f"{study.title}: {len(cases)} runs, {missing} of them to do", flush=True)
    failed = 0
    for at, case in enumerate(cases, 1):
        key = _key(study, case)
        if key in kept:
            continue
        began = time.perf_counter()
        place = Place(Path(options.home), list(kept.values()))
        found = _apart(study, case, folder, key, options) if processes else study.run(case, place)
        took = time.perf_counter() - began
        if found is None:
            failed += 1
            continue
        kept[key] = Row(case, json.loads(json.dumps(found)), took)
        _write(folder, key, kept[key])
        print(f"  {at}/{len(cases)} {_words(case)}: {took:.1f} s", flush=True)
    rows = [kept[key] for key in (_key(study, case) for case in cases) if key in kept]
    if rows:
        _show(study, options, folder, rows)
    spent, all_of_it = time.perf_counter() - start, sum(row.seconds for row in rows)
    print(f"\n{len(rows)} of {len(cases)} runs, {all_of_it:.0f} s together; this call took {spent:.0f} s.")
    print(f"Results, table and picture: {folder}/results.jsonl, table.md, picture.svg")
    return 1 if failed else 0


def _show(study: Study, options: argparse.Namespace, folder: Path, rows: Sequence[Row]) -> None:
    shown = study.show(options, rows)
    lines = [f"{study.title} (seeds: {options.seeds}, {study.steps[0]}: {options.steps})", "", *_table(shown), ""]
    lines += shown.remarks
    text = "\n".join(lines).rstrip() + "\n"
    print("\n" + text, end="")
    (folder / "table.md").write_text(text, encoding="utf-8")
    picture.write(folder / "picture.svg", study.title, shown.panels)


def _table(shown: Shown) -> list[str]:
    """A table in Markdown, padded so that it reads well in a terminal, too."""
    widths = [max(3, *map(len, column)) for column in zip(shown.columns, *shown.rows, strict=True)]

    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)) + " |"

    return [line(shown.columns), "|" + "|".join("-" * (width + 2) for width in widths) + "|", *map(line, shown.rows)]


def _apart(study: Study, case: Case, folder: Path, key: str, options: argparse.Namespace) -> dict[str, Any] | None:
    """Run a case in a process of its own; None if it failed, with the end of its log printed."""
    log = folder / "logs" / f"{key}.txt"
    log.parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="study-") as scratch:
        job = Path(scratch) / "job.json"
        job.write_text(json.dumps({"case": case, "home": str(options.home)}), encoding="utf-8")
        command = [sys.executable, "-m", f"benchmarks.studies.{study.name}", "--one", str(job)]
        paths = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        environment = {**os.environ, **ONE_THREAD, "PYTHONPATH": paths}
        with log.open("w", encoding="utf-8") as file:
            status = subprocess.run(command, env=environment, stdout=file, stderr=subprocess.STDOUT, check=False)
        answer = Path(scratch) / "found.json"
        if status.returncode == 0 and answer.exists():
            found: dict[str, Any] = json.loads(answer.read_text(encoding="utf-8"))
            return found
    end = "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-15:])
    print(f"  {_words(case)} failed with status {status.returncode}; {log} ends with:\n{end}", flush=True)
    return None


def _one(study: Study, job: Path) -> int:
    """The work of `_apart`'s process."""
    import torch

    torch.set_num_threads(1)
    given = json.loads(job.read_text(encoding="utf-8"))
    home = Path(given["home"])
    found = study.run(given["case"], Place(home, list(_read(home / study.name).values())))
    (job.parent / "found.json").write_text(json.dumps(found), encoding="utf-8")
    return 0


def _key(study: Study, case: Case) -> str:
    text = json.dumps([study.name, study.version, case], sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def _read(folder: Path) -> dict[str, Row]:
    """The rows that are there, by key; a line that a crash cut short is no row."""
    path, kept = folder / "results.jsonl", dict[str, Row]()
    if path.exists():
        for line in path.read_text(encoding="utf-8").splitlines():
            try:
                row = json.loads(line)
                kept[row["key"]] = Row(row["case"], row["found"], row["seconds"])
            except (ValueError, KeyError, TypeError):
                continue
    return kept


def _write(folder: Path, key: str, row: Row) -> None:
    values = {"key": key, "case": row.case, "found": row.found, "seconds": round(row.seconds, 3)}
    path = folder / "results.jsonl"
    torn = path.exists() and not path.read_bytes().endswith(b"\n") and path.stat().st_size > 0
    with path.open("a", encoding="utf-8") as file:
        file.write(("\n" if torn else "") + json.dumps(values) + "\n")


def _words(case: Case) -> str:
    """The settings that tell runs of a study apart."""
    return ", ".join(f"{name} {value}" for name, value in case.items() if isinstance(value, str | int) and name in SAID)


SAID = ("arm", "seed", "mode", "estimator", "group", "budget", "rate", "part")
"""Settings that are printed beside a run."""


def of_arms(rows: Sequence[Row], **wanted: Any) -> list[Row]:
    """The rows whose cases have these settings, by seed."""
    found = [row for row in rows if all(row.case.get(name) == value for name, value in wanted.items())]
    return sorted(found, key=lambda row: row.case["seed"])


def load(name: str) -> Study:
    """The study of a name."""
    study: Study = importlib.import_module(f"benchmarks.studies.{name}").STUDY
    return study
