"""How many small changes of the product do its tests find? Mutants drawn at random, each against its nearest tests.

    python -m benchmarks.mutants                                # 200 mutants, a table by room, the survivors
    python -m benchmarks.mutants --rooms engine maths --seed 7 --out found.jsonl      # run again to continue
    python -m benchmarks.mutants --only grpo_plus/engine/trees.py:36                  # all mutants of a line
    python -m benchmarks.mutants --list                         # draw only

Works on the commit HEAD, in copies. The first run at a commit runs the tests once with coverage, for the map of lines
to tests. A mutant is found where a test fails that passes without it, or where its tests do not end. Exit code 1: a
target is missed. 2: bad options.
"""

import argparse
import json
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.mutants import coverage_map, judging
from benchmarks.mutants.drawing import (
    ELSEWHERE,
    EQUIVALENT,
    GROUPS,
    TARGETS,
    draw,
    entry,
    equivalents,
    files_of,
    room_of,
)
from benchmarks.mutants.mutate import Mutant, mutants
from benchmarks.processes import cores

ROOT = Path(__file__).parents[2]
README = "-m 'not nightly'"
Answers = dict[Mutant, dict[str, Any]]


def main(arguments: list[str] | None = None) -> int:
    """Draw, judge and print."""
    options = _parser().parse_args(arguments)
    before = signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    try:
        with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
            return _run(options, Path(folder))
    except ValueError as error:
        print(f"benchmarks.mutants: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted: what was running has no result.", file=sys.stderr)
        return 128 + signal.SIGINT
    finally:
        signal.signal(signal.SIGTERM, before)


def _run(options: argparse.Namespace, folder: Path) -> int:
    for name in ("count", "jobs", "budget"):
        if not getattr(options, name) > 0:
            raise ValueError(f"--{name} is {getattr(options, name):g}, expected more than 0.")
    rooms, line = _chosen(options)
    known, commit = equivalents(), _commit()
    found = _earlier(options.out, commit)
    begun = time.monotonic()
    copies = [folder / str(number) for number in range(options.jobs if judging.FORKS else 1)]
    path = options.map or coverage_map.path_of(ROOT, commit, options.tests)
    for copy in copies if path.exists() else copies[:1]:
        judging.make_copy(ROOT, commit, copy)
    if not path.exists():
        print(f"One run of the tests with coverage, kept in {path}.", file=sys.stderr, flush=True)
        coverage_map.make(path, copies[0], judging.environment(copies[0]), options.tests, options.jobs)
        for copy in copies[1:]:
            judging.make_copy(ROOT, commit, copy)
    lines = coverage_map.CoverageMap(path, ROOT)
    print(f"{len(lines.tests)} tests run {lines.covered:.1f} % of the product's statements in their own processes.")
    if lines.failed:
        print(f"Left out, they fail without a mutant: {', '.join(lines.failed)}")
    if line is None:
        drawn = draw(rooms, lines, ROOT, options.count, options.seed)
    else:
        (file,) = next(iter(rooms.values()))
        drawn = [one for one in mutants(file, (ROOT / file).read_bytes()) if one.line == line]
        if not drawn:
            raise ValueError(f"--only {options.only}: nothing on this line can be changed. Name another line.")
        if not any(map(lines.runs, drawn)):
            print("No test runs this line in its own process: those of its file are tried.")
        tests = [test.name for test in lines.nearest(drawn[0], options.budget, set())]
        print(f"{len(tests)} tests are nearest: {', '.join(tests[:10])}{', ...' * (len(tests) > 10)}")
    if declared := {one for one in drawn if entry(one, ROOT) in known}:
        print(f"Left out, they change nothing by {EQUIVALENT.name}: {len(declared)}")
    drawn = [one for one in drawn if one not in declared]
    if options.list:
        print(*map(_text, drawn), sep="\n")
        return 0
    if judging.FORKS:
        judging.warm()
    else:
        print("Processes cannot be forked here: one mutant at a time, each in a fresh process.", file=sys.stderr)
    passing: set[str] = set()
    judges = [judging.Judge(lines, copy, options.budget, passing) for copy in copies]
    todo = [(one, serial) for serial, one in enumerate(drawn) if one not in found]
    ends = judging.together(todo, judges, folder, passing)
    for number, (mutant, answer) in enumerate(ends, start=1):
        found[mutant] = answer
        by = f"{answer['status']} by {answer['by'] or answer['tests']}, {answer['seconds']:.0f} s"
        print(f"{number}/{len(todo)} {_text(mutant)}: {by}", file=sys.stderr, flush=True)
        if options.out:
            with options.out.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"commit": commit, "mutant": asdict(mutant), **answer}) + "\n")
    missed = _told({mutant: found[mutant] for mutant in drawn})
    print(f"{time.monotonic() - begun:.0f} s")
    return int(missed)


def _told(found: Answers) -> bool:
    """Print the table and the survivors; whether a target is missed."""
    if excluded := sorted({name for answer in found.values() for name in answer["excluded"]}):
        print(f"Left out, they fail without a mutant when run alone: {', '.join(excluded)}")
    counts: dict[str, Counter[str]] = {}
    for mutant, answer in found.items():
        room = room_of(mutant.file)
        for name in {room, room if room in GROUPS else ELSEWHERE}:
            counts.setdefault(name, Counter())[answer["status"]] += 1
    print("\n| room | mutants | found | of them by time | share | target |\n|---|---:|---:|---:|---:|---:|")
    missed = False
    for room in sorted(counts, key=lambda room: (room not in GROUPS, room != ELSEWHERE, room)):
        total, by_time = counts[room].total(), counts[room]["time"]
        good = counts[room]["found"] + by_time
        missed |= good < TARGETS.get(room, 0) * total
        target = f"{TARGETS[room]:.0%}" if room in TARGETS else ""
        print(f"| {room} | {total} | {good} | {by_time} | {good / total:.0%} | {target} |")
    left = [mutant for mutant, answer in found.items() if answer["status"] not in {"found", "time"}]
    print(f"\n{len(left)} of {len(found)} survive{':' * bool(left)}")
    for mutant in left:
        print(f"{_text(mutant)} ({found[mutant]['tests']} tests)")
    return missed


def _text(mutant: Mutant) -> str:
    return f"{mutant.file}:{mutant.line}: {mutant.kind}: {mutant.change}"


def _chosen(options: argparse.Namespace) -> tuple[dict[str, list[str]], int | None]:
    """The files of each room that are asked for, and the line."""
    rooms = files_of(ROOT)
    if unknown := [name for name in options.rooms if name not in rooms]:
        raise ValueError(f"--rooms {' '.join(unknown)}: there is no such room. Rooms: {', '.join(sorted(rooms))}.")
    rooms = {room: files for room, files in rooms.items() if not options.rooms or room in options.rooms}
    if not options.only:
        return rooms, None
    file, _, line = options.only.partition(":")
    rooms = {room: [file] for room, files in rooms.items() if file in files}
    if not rooms or (line and not line.isdecimal()):
        raise ValueError(
            f"--only {options.only}: expected FILE or FILE:LINE of these rooms, like grpo_plus/config.py:9."
        )
    return rooms, int(line) if line else None


def _commit() -> str:
    """HEAD of a tree without changes."""

    def git(*words: str) -> str:
        return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True).stdout.rstrip()

    try:
        changed, commit = git("status", "--porcelain"), git("rev-parse", "HEAD")
    except (OSError, subprocess.CalledProcessError) as error:
        raise ValueError(f"{ROOT} is no git repository with a commit: {error}") from error
    if changed:
        names = ", ".join(line[3:] for line in changed.splitlines()[:5])
        raise ValueError(f"mutants are made of HEAD, and these files differ from it: {names}. Commit or stash them.")
    return commit


def _earlier(out: Path | None, commit: str) -> Answers:
    """The answers of an earlier run."""
    found: Answers = {}
    if out is None or not out.exists():
        return found
    for number, text in enumerate(out.read_text(encoding="utf-8").splitlines(), start=1):
        try:
            answer = json.loads(text)
            mutant, of = answer.pop("mutant"), answer.pop("commit")
            found[Mutant(**mutant | {name: tuple(mutant[name]) for name in ("lines", "names")})] = answer
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"--out {out}: line {number} is no result of a mutant. Name another file.") from error
        if of != commit:
            raise ValueError(f"--out {out} has results of commit {of}, HEAD is {commit}. Name another file.")
    return found


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.mutants", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=200, help="mutants to draw (default: 200)")
    parser.add_argument("--seed", type=int, default=1, help="of the draw (default: 1)")
    parser.add_argument("--rooms", nargs="+", default=[], metavar="ROOM", help="only these (default: all)")
    parser.add_argument("--only", metavar="FILE[:LINE]", help="only this file; with a line all its mutants")
    parser.add_argument("--tests", default=README, help=f"arguments of pytest that choose tests (default: {README})")
    parser.add_argument("--budget", type=float, default=20.0, help="seconds of tests for a mutant (default: 20)")
    parser.add_argument("--jobs", type=int, default=cores(), help="mutants at a time (default: the cores)")
    parser.add_argument("--map", type=Path, metavar="FILE", help="the map of lines to tests; made if it is missing")
    parser.add_argument("--out", type=Path, metavar="FILE", help="results, a line of JSON each; continued if it exists")
    parser.add_argument("--list", action="store_true", help="print the drawn mutants, and end")
    return parser


if __name__ == "__main__":
    sys.exit(main())
