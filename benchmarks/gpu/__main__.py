"""What a card does: every check that a CPU cannot make, in order of importance.

    python -m benchmarks.gpu --minutes 9 --out card.jsonl     # run again to continue with what is missing
    python -m benchmarks.gpu --only gradient fit-8B           # checks whose names begin so
    python -m benchmarks.gpu --list
    python -m benchmarks.gpu --size tiny --device cpu         # shows that every check works; measures nothing
    python -m benchmarks.gpu --size tiny --device stand-in    # the same on a stand-in for a card
    python -m benchmarks.gpu --page card.jsonl                # writes docs/card.md from a file of results

Needs no network: weights are random, or trained on the spot. Each check is a process with a time limit and a memory
fence, and its result is in the file as soon as it ends. Exit code 1: a check failed. 2: the checks cannot begin.
"""

import argparse
import contextlib
import json
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

from benchmarks.gpu.catalogue import CHECKS
from benchmarks.gpu.check import GIB, Check
from benchmarks.gpu.results import OFF, Origin, Result, Results, constants, counts, read, source_digest, table
from benchmarks.gpu.schedule import OUTSIDE, Room, Schedule
from benchmarks.processes import cores

IN_USE = 2.0
"""GiB of a card that a driver and a desktop may take; more is another program."""


def main(arguments: list[str] | None = None) -> int:
    """Run the checks, print a line for each and a table last."""
    options = _parser().parse_args(arguments)
    begun = time.monotonic()
    if options.list:
        print(_listed())
        return 0
    if options.page:
        from benchmarks.gpu.page import write

        if not options.page.is_file() or not read(options.page)[0]:
            return _refused(f"--page {options.page}: there is no such file of results.")
        print(f"{write(options.page)} is written.")
        return 0
    chosen = [check for check in CHECKS if not options.only or any(check.name.startswith(one) for one in options.only)]
    if unknown := [one for one in options.only if not any(check.name.startswith(one) for check in CHECKS)]:
        return _refused(f"--only {' '.join(unknown)}: no check's name begins so; --list shows them all.")
    if not options.minutes > 0:
        return _refused(f"--minutes is {options.minutes:g}, expected more than 0.")
    if options.device != "cuda" and options.size != "tiny":
        return _refused(f"--device {options.device} works with --size tiny only: full sizes are for a card.")
    there = _probe(options.device)
    if (problem := _problem(there, options.device)) is not None:
        return _refused(problem)
    origin = Origin(source_digest(), options.device, options.size, there.get("card", ""))
    try:
        results = Results(options.out, origin, there["versions"])
    except (OSError, ValueError) as error:
        return _refused(f"--out {options.out}: {error}")
    for note in [*results.notes, *_remarks(there)]:
        print(note, flush=True)
    if not options.only:
        chosen = [check for check in chosen if _missing(results.found.get(check.name))]
    whys = {check.name: _impossible(check, there, options.size) for check in chosen}
    for check in chosen:
        before, why = results.found.get(check.name), whys[check.name]
        if why is not None and (before is None or before.why != why):
            results.add(Result(check.name, "skipped", 0.0, why=why))
    fits = [check for check in chosen if whys[check.name] is None]
    late: dict[str, str] = {}

    def done(result: Result) -> None:
        results.add(result)
        print(table([(result.name, result)]).splitlines()[1], flush=True)

    card = there.get("free") if options.size == "full" else None
    room = Room(cores(), card, memory=max(4.0, psutil.virtual_memory().total / GIB / 3))
    schedule = Schedule(room, device=options.device, size=options.size, ends=begun + 60 * options.minutes)
    interrupted = False
    try:
        with _ended_by_signals():
            late = {check.name: why for check, why in schedule.run(fits, done)}
    except KeyboardInterrupt:
        interrupted = True
        print("interrupted: what was running has no result.", flush=True)
    rows: list[tuple[str, Result | str]] = []
    for check in CHECKS:
        if check.name in results.found:
            rows.append((check.name, results.found[check.name]))
        elif check in chosen:
            rows.append((check.name, late.get(check.name, "interrupted")))
    print(f"\n{table(rows)}\n")
    if (line := constants(results.found)) is not None:
        print(f"The planner is off by more than {OFF:.0%}. In grpo_plus/memory/estimate.py: ASSUMED = {line}\n")
    shown = [result for _, result in rows if isinstance(result, Result)]
    print(
        f"{there.get('card') or 'no card'}: {counts(shown, len(rows) - len(shown))}; {time.monotonic() - begun:.0f} s"
    )
    return 128 + signal.SIGINT if interrupted else int(any(not result.good for result in shown))


@contextlib.contextmanager
def _ended_by_signals() -> Iterator[None]:
    """What was started is ended, too, where this process is told to end or loses its terminal."""
    before = {
        name: signal.signal(name, lambda number, _: sys.exit(128 + number)) for name in (signal.SIGTERM, signal.SIGHUP)
    }
    try:
        yield
    finally:
        for name, handler in before.items():
            signal.signal(name, handler)


def _probe(device: str) -> dict[str, Any]:
    """What is there, asked in a process of its own: this one must not take memory of the card."""
    with tempfile.TemporaryDirectory() as folder:
        answer = Path(folder) / "answer"
        command = [sys.executable, "-m", "benchmarks.gpu.probe", device, str(answer)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if answer.exists():
            found: dict[str, Any] = json.loads(answer.read_text(encoding="utf-8"))
            return found
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        return {"problem": lines[-1] if lines else "the probe printed nothing", "versions": {}}


def _problem(there: dict[str, Any], device: str) -> str | None:
    if "problem" in there:
        return str(there["problem"])
    if missing := [name for name, version in there["versions"].items() if version == "missing"]:
        return f"not installed: {', '.join(missing)}. Install them, or put their wheels on PYTHONPATH."
    if device == "cuda" and not there.get("card"):
        torch = there["versions"]["torch"]
        return (
            f"this PyTorch ({torch}) sees no CUDA card. Run it where there is one, or see that the checks work with "
            "--size tiny --device cpu."
        )
    return None


def _missing(result: Result | None) -> bool:
    """Whether a check is still to be made: what was skipped for want of memory may fit now."""
    return result is None or result.status == "skipped"


def _remarks(there: dict[str, Any]) -> list[str]:
    if there.get("card") and there["taken"] > IN_USE:
        return [
            f"other programs hold {there['taken']:.1f} of {there['total']:.1f} GiB of the card: figures may be off."
        ]
    return []


def _impossible(check: Check, there: dict[str, Any], size: str) -> str | None:
    """Why a check cannot be made here; tiny ones take next to nothing of a card."""
    if size == "tiny" and check.full:
        return "differs from another check by its size only"
    if not there.get("card"):
        return None
    needed = check.least or check.gib + OUTSIDE
    if size == "full" and needed > there["free"]:
        return f"needs {needed:.1f} GiB of the card, {there['free']:.1f} are free"
    return "the card does not compute in bfloat16" if check.bf16 and not there["bf16"] else None


def _listed() -> str:
    longest = max(len(check.name) for check in CHECKS)
    return "\n".join(
        f"{check.name:{longest}}  {check.seconds:4.0f} s  {check.gib or 0:4.0f} GiB  {check.about}" for check in CHECKS
    )


def _refused(why: str) -> int:
    print(f"benchmarks.gpu: {why}", file=sys.stderr)
    return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=60.0, help="everything is over after so long (default: 60)")
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="checks whose names begin so, run anew")
    parser.add_argument("--out", type=Path, help="file of results, a line of JSON each; one that exists is continued")
    parser.add_argument("--size", choices=("full", "tiny"), default="full", help="tiny: shows that the checks work")
    parser.add_argument(
        "--device", choices=("cuda", "cpu", "stand-in"), default="cuda", help="without a card: tiny only"
    )
    parser.add_argument("--list", action="store_true", help="name the checks, and end")
    parser.add_argument("--page", type=Path, metavar="FILE", help="make docs/card.md of it, and end")
    return parser


if __name__ == "__main__":
    sys.exit(main())
