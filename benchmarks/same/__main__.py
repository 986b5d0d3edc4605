"""Two versions of the project run the same short trainings and commands, and every result is compared.

    python -m benchmarks.same --base HEAD                   # the working tree against the last commit
    python -m benchmarks.same --base main --quick           # a cross-section in less than a minute
    python -m benchmarks.same --base main --only tpo help   # runs whose names begin so
    python -m benchmarks.same --base main --new REV         # another commit, or a folder, in place of the working tree
    python -m benchmarks.same --base main --renamed FILE    # names that changed: see benchmarks/same/renames.py
    python -m benchmarks.same --list

Compared bit for bit: weights, optimizer and all other files of checkpoints, logged metrics, the record with prompts,
completions, rewards and advantages. As text: what commands print. What may differ (times, process ids) is in three
tables of benchmarks/same/compare.py. Exit code 0: all is the same; 1: something differs; 2: something could not be
compared.
"""

import argparse
import json
import os
import shutil
import signal
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from queue import Queue
from typing import Any

import yaml

from benchmarks.processes import cores
from benchmarks.same.cases import CASES, COMMON, DATA, MODELS, Case
from benchmarks.same.renames import Renames, TableError
from benchmarks.same.trees import Driver, Tree, TreeError, room, trees

HERE = Path(__file__).parents[2]
SIDES = ("old", "new")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run both trees, compare, and print a table."""
    options = _parser().parse_args(arguments)
    if options.list:
        print("\n".join(f"{name:{_width(CASES)}}  {_told(case)}" for name, case in CASES.items()))
        return 0
    try:
        chosen = _chosen(options)
        renames = Renames.read(options.renamed) if options.renamed else Renames()
        return _Comparing(options, chosen, renames).run()
    except (TreeError, TableError, ValueError) as error:
        print(f"benchmarks.same: {error}", file=sys.stderr)
        return 2


def _chosen(options: argparse.Namespace) -> dict[str, Case]:
    if options.base is None:
        raise ValueError("--base is missing: name the commit to compare with, such as --base HEAD.")
    if options.jobs < 1:
        raise ValueError(f"--jobs is {options.jobs}, expected at least 1.")
    if unknown := [one for one in options.only if not any(name.startswith(one) for name in CASES)]:
        raise ValueError(f"--only {' '.join(unknown)}: no run's name begins so; --list shows them all.")
    return {
        name: case
        for name, case in CASES.items()
        if (case.quick or not options.quick) and (not options.only or name.startswith(tuple(options.only)))
    }


class _Comparing:
    def __init__(self, options: argparse.Namespace, chosen: Mapping[str, Case], renames: Renames) -> None:
        self._options, self._renames = options, renames
        self._dropped = [name for name in chosen if renames.listed("dropped", "runs", name)]
        self._chosen = {name: case for name, case in chosen.items() if name not in self._dropped}
        self._counts = {"same": 0, "differs": 0, "not compared": 0}
        self._cpu = 0.0
        self._diffs: list[str] = []
        self._out: Any = None

    def run(self) -> int:
        fork = hasattr(os, "fork") and not self._options.fresh
        if not hasattr(os, "fork"):
            print("os.fork is missing here, so each run is a process that imports everything: this takes long.")
        begun = time.monotonic()
        with ExitStack() as stack:
            if self._options.out is not None:
                self._out = stack.enter_context(_opened(self._options.out))
            for number in (signal.SIGTERM, signal.SIGHUP):
                before = signal.signal(number, lambda number, _: sys.exit(128 + number))
                stack.callback(signal.signal, number, before)
            folder = Path(self._options.keep or stack.enter_context(room())).resolve()
            if self._options.keep is not None and folder.exists() and any(folder.iterdir()):
                raise ValueError(f"--keep {folder}: the folder is not empty. Name another one, or remove it.")
            both = stack.enter_context(trees(self._options.base, self._options.new, HERE, folder))
            try:
                self._both(folder, dict(zip(SIDES, both, strict=True)), fork=fork)
            except KeyboardInterrupt:
                print("interrupted", flush=True)
                return 128 + signal.SIGINT
        for name in self._dropped:
            print(f"{name:{_width(CASES)}}  dropped (--renamed)")
        print("".join(f"\n{diff}\n" for diff in self._diffs), end="")
        if unused := self._renames.unused():
            print("\nRows of --renamed that nothing made use of:", *(f"  {row}" for row in unused), sep="\n")
        counts = ", ".join(f"{count} {word}" for word, count in self._counts.items())
        print(f"\n{counts}; {time.monotonic() - begun:.0f} s, {self._cpu:.0f} s of CPU in runs")
        return 1 if self._counts["differs"] else 2 if self._counts["not compared"] else 0

    def _both(self, folder: Path, both: Mapping[str, Tree], *, fork: bool) -> None:
        queue: Queue[tuple[str, dict[str, Any]]] = Queue()
        homes = {side: folder / side for side in SIDES}
        drivers = {side: Driver(side, both[side], homes[side], queue) for side in SIDES}
        jobs = {side: self._jobs(homes[side], both["old"].folder, translate=side == "new") for side in SIDES}
        each = self._options.jobs // 2
        results: dict[str, dict[str, dict[str, Any]]] = {}
        places = {str(both[side].folder): "<tree>" for side in SIDES} | {str(homes[side]): "<home>" for side in SIDES}
        try:
            for some in (SIDES,) if each else (SIDES[:1], SIDES[1:]):
                for side in some:
                    drivers[side].start(jobs[side], max(1, each), fork=fork)
                live = set(some)
                while live:
                    side, told = queue.get()
                    if "ended" in told:
                        live.discard(side)
                    if "problem" in told or told.get("ended"):
                        raise TreeError(drivers[side].problem(told.get("problem", "it ended")))
                    if "name" in told:
                        pair = results.setdefault(told["name"], {})
                        pair[side] = told
                        if len(pair) == len(SIDES):
                            self._compare(told["name"], pair, homes, places)
        finally:
            for driver in drivers.values():
                driver.stop()

    def _jobs(self, home: Path, old_tree: Path, *, translate: bool) -> list[dict[str, Any]]:
        (home / "models").mkdir(parents=True)
        models = json.dumps({name: dict(given) for name, given in MODELS.items()})
        jobs = [
            {
                "name": "models",
                "folder": str(home / "models"),
                "commands": [["models", models]],
                "ranks": 1,
                "seconds": 60,
            }
        ]
        for name, case in self._chosen.items():
            self._lay(home / name, case, old_tree, translate=translate)
            jobs.append({
                "name": name, "folder": str(home / name), "commands": case.commands, "ranks": case.ranks,
                "seconds": case.seconds, "port": _free_port() if case.ranks > 1 else 0,
            })  # fmt: skip
        return jobs

    def _lay(self, folder: Path, case: Case, old_tree: Path, *, translate: bool) -> None:
        """Put what a run reads into its folder."""
        folder.mkdir()
        config = {name: value for name, value in {**COMMON, **case.config}.items() if value is not None}
        (folder / "config.yaml").write_text(_yaml(self._renames.config(config) if translate else config))
        solutions = [{"prompt": row["prompt"], "solution": row["answer"]} for row in DATA]
        for name, rows in {"data": DATA, "solutions": solutions}.items():
            (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        for name, text in case.files.items():
            (folder / name).write_text(text)
        shutil.copy(Path(__file__).with_name("parts.py"), folder)
        if case.examples:
            shutil.copytree(old_tree / "examples", folder / "examples", ignore=shutil.ignore_patterns("runs"))
            for path in (folder / "examples").rglob("*.yaml") if translate else ():
                text = path.read_text(encoding="utf-8")
                config = yaml.safe_load(text) if "output_dir:" in text else {}  # not what launches a run elsewhere
                if (other := self._renames.config(config)) != config:
                    path.write_text(_yaml(other))

    def _compare(
        self,
        name: str,
        results: Mapping[str, Mapping[str, Any]],
        homes: Mapping[str, Path],
        places: Mapping[str, str],
    ) -> None:
        from benchmarks.same.compare import Difference, differences

        self._cpu += sum(result["cpu"] for result in results.values())
        expected = list(CASES[name].ends) if name in CASES else [0]
        codes = [results[side]["codes"] for side in SIDES]
        found: list[Difference] = []
        why = ""
        if hung := [side for side in SIDES if "hung" in results[side]["codes"]]:
            why = f"the {hung[0]} tree's run hung, and was ended"
        elif codes[0] != expected:
            last = _last_line(homes["old"] / name)
            why = f"the old tree's run ended with {codes[0]}, expected {expected}: {last}"
        else:
            if codes[0] != codes[1]:
                found.append(Difference("printed-0.txt", "exit codes", str(codes[0]), str(codes[1])))
            found += differences(homes["old"] / name, homes["new"] / name, self._renames, places)
        word = "not compared" if why else "differs" if found else "same"
        self._counts[word] += 1
        print(f"{name:{_width(CASES)}}  {word}{f': {why}' if why else _summary(found)}", flush=True)
        if name not in CASES or CASES[name].prints:
            self._diffs += [f"{name}:\n{one.diff}" for one in found if one.diff]
        if self._out is not None:
            row = {"run": name, "result": word, "why": why, "differences": [one.row() for one in found]}
            self._out.write(json.dumps(row | {"cpu": {side: results[side]["cpu"] for side in SIDES}}) + "\n")
        if self._options.keep is None:
            for side in SIDES:
                if name != "models":
                    shutil.rmtree(homes[side] / name, ignore_errors=True)


def _summary(found: Sequence[Any]) -> str:
    """What differs first, and of weights the first parameter."""
    if not found:
        return ""
    shown = [found[0]]
    shown += [one for one in found if one.weights][:1]
    more = len(found) - len(set(map(id, shown)))
    return ": " + "; ".join(map(str, dict.fromkeys(shown))) + (f"; {more} more" if more else "")


def _last_line(folder: Path) -> str:
    logs = sorted(folder.glob("printed-*.txt"))
    lines = [line for log in logs for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return lines[-1][:300] if lines else "it printed nothing"


def _yaml(config: Mapping[str, Any]) -> str:
    return str(yaml.safe_dump(dict(config), sort_keys=False, allow_unicode=True))


def _opened(path: Path) -> Any:
    try:
        return path.open("w", encoding="utf-8")
    except OSError as error:
        raise ValueError(f"--out {path} cannot be written: {error.strerror}.") from error


def _free_port() -> int:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        return int(held.getsockname()[1])


def _width(cases: Mapping[str, Case]) -> int:
    return max(map(len, cases))


def _told(case: Case) -> str:
    words = [" && ".join(" ".join(arguments) for arguments in case.commands)]
    words += [f"{name}={value!r}" for name, value in case.config.items() if value is not None]
    return "; ".join([*words, *(["on two ranks"] if case.ranks > 1 else []), *(["quick"] if case.quick else [])])


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.same", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--base", metavar="REV", help="the old tree: a commit, branch or tag")
    parser.add_argument("--new", metavar="REV|FOLDER", help="the new tree (default: the working tree as it is)")
    parser.add_argument(
        "--renamed", type=Path, metavar="FILE", help="a table of names that changed: YAML, TOML or JSON"
    )
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="runs whose names begin so")
    parser.add_argument("--quick", action="store_true", help="a cross-section of all runs")
    parser.add_argument("--list", action="store_true", help="name the runs, and end")
    parser.add_argument("--jobs", type=int, default=cores(), help="runs at a time, half for each tree (default: cores)")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write every difference there, a line of JSON a run")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="keep trees and runs in this empty or new folder")
    parser.add_argument("--fresh", action="store_true", help="a new process for each run, as where os.fork is missing")
    return parser


if __name__ == "__main__":
    sys.exit(main())
