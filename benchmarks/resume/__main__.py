"""Short runs are killed (SIGKILL to the group) at exact places, resumed, and compared with the uninterrupted run.

    python -m benchmarks.resume                                  # the whole table, as Markdown
    python -m benchmarks.resume --rows plain steps --columns micro write
    python -m benchmarks.resume --write                          # put the table into docs/resume.md

Each cell says at how many of its places the resumed run ended identical bit for bit: prompts, completions, rewards and
micro-batches of each step, losses, log entries, weights, optimizer, scheduler, random state and record; or what
differs first. Stock TRL resumes with `resume_from_checkpoint=True`.
"""

import argparse
import json
import os
import re
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

os.environ |= {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
os.environ |= {
    "HF_HUB_OFFLINE": "1",
    "CUDA_VISIBLE_DEVICES": "",
    "TRANSFORMERS_VERBOSITY": "error",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
}

from benchmarks.resume import runs
from benchmarks.resume.places import Kill
from benchmarks.resume.scenarios import SCENARIOS, Scenario, make_model

COLUMNS = {
    "micro": ("micro-steps", ("micro",)),
    "rollout": ("rollout", ("rollout",)),
    "verifiers": ("verifiers", ("reward",)),
    "update": ("update", ("gradients", "moved")),
    "write": ("checkpoint's write", ("write",)),
    "end": ("after the last checkpoint", ("saved", "end", "returned")),
    "evaluation": ("evaluation", ("evaluation",)),
    "several": ("several kills", ()),
    "stock": ("stock TRL, micro-steps", ("micro",)),
}
PAGE = Path(__file__).parents[2] / "docs" / "resume.md"
BEGIN, END = "<!-- table: python -m benchmarks.resume --write -->", "<!-- end of the table -->"
Cells = dict[tuple[str, str], list[tuple[str, str | None]]]
"""By row and column: each place with what differs there."""


def places(column: str, counts: dict[str, int], sample: int) -> list[list[Kill]]:
    """The kills of each run of a column, given how often an uninterrupted run gets to each place."""
    if column == "several":
        micro, write = counts["micro"], counts["write"]
        return [[("micro", micro // 2 + 1), ("write", write // 3), ("moved", 1), ("micro", 2), ("write", write // 4)]]
    found: list[list[Kill]] = []
    for name in COLUMNS[column][1]:
        count = counts.get(name, 0)
        first = count if name == "saved" else 1
        found += [[(name, number)] for number in range(first, count + 1)]
    return spread(found, sample)


def spread(found: Sequence[Any], count: int) -> list[Any]:
    """So many of a list, evenly; 0 for all."""
    if not count or len(found) <= count:
        return list(found)
    return [found[(2 * at + 1) * len(found) // (2 * count)] for at in range(count)]


def rotated(found: Sequence[Any], count: int, turn: int) -> list[Any]:
    """So many of a list, evenly, others at every turn; 0 for all."""
    if not count or len(found) <= count:
        return list(found)
    return [found[(turn * 7 + at * len(found) // count) % len(found)] for at in range(count)]


@dataclass(frozen=True)
class Side:
    """A row, run by this project or by stock TRL, in a folder of its own."""

    row: str
    stock: bool
    folder: Path

    @property
    def scenario(self) -> Scenario:
        """What is run."""
        return SCENARIOS[self.row]

    def whole(self) -> dict[str, Any]:
        """The uninterrupted run: what went wrong, and how often it got to each place."""
        make_model(self.scenario, self.folder / "model")
        problem = self.run("whole")
        found = self.folder / "whole" / "places_0.json"
        return {"problem": problem, "counts": {} if problem else json.loads(found.read_text())}

    def run(self, name: str, kills: Sequence[Kill] = ()) -> str | None:
        """One run with its kills; what went wrong."""
        return runs.run(self.scenario, self.folder / "model", self.folder / name, kills, stock=self.stock)

    def killed(self, name: str, kills: Sequence[Kill], *, keep: bool) -> str | None:
        """What differs from the uninterrupted run."""
        from benchmarks.resume.compare import difference

        folder = self.folder / name
        problem = self.run(name, kills) or difference(self.folder / "whole", folder, self.scenario.ranks)
        if problem is None or not keep:
            shutil.rmtree(folder, ignore_errors=True)
        return problem


def measure(options: argparse.Namespace, folder: Path) -> Iterator[tuple[str, str, str, str | None]]:
    """Row, column, place and what differs, of each kill."""
    runs.warm()
    stock = [row for row in options.rows if "stock" in options.columns and SCENARIOS[row].stock]
    ours = options.rows if set(options.columns) - {"stock"} else []
    sides = [Side(row, False, folder / row) for row in ours]
    sides += [Side(row, True, folder / f"{row}-stock") for row in stock]
    jobs = []
    for side, answer in list(runs.together([(side, side.whole) for side in sides], folder, options.width)):
        mine = [column for column in options.columns if side.stock == (column == "stock")]
        if answer["problem"]:
            yield side.row, mine[0], "the uninterrupted run", answer["problem"]
            continue
        most = {"micro": options.micro, "stock": options.micro, "write": options.writes}
        found = [
            (column, kills)
            for column in mine
            for kills in places(column, answer["counts"], most.get(column, options.sample))
        ]
        for number, (column, kills) in enumerate(rotated(found, options.each, list(SCENARIOS).index(side.row))):
            said = ", ".join(f"{place} {count}" for place, count in kills)
            work = partial(side.killed, f"{column}-{number}", kills, keep=options.folder is not None)
            jobs.append(((side.row, column, said), work))
    for (row, column, said), problem in runs.together(jobs, folder, options.width):
        yield row, column, said, problem


def table(cells: Cells, rows: Sequence[str], columns: Sequence[str]) -> str:
    """The table as Markdown."""
    lines = ["| run | " + " | ".join(COLUMNS[column][0] for column in columns) + " |", "|---|" + "---|" * len(columns)]
    texts = [[SCENARIOS[row].text, *(cell(cells.get((row, column))) for column in columns)] for row in rows]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in texts)])


def cell(found: Sequence[tuple[str, str | None]] | None) -> str:
    """At how many places a run is identical; where it is not, what differs first and how far its weights are off."""
    if not found:
        return "—"
    wrong = [problem for _, problem in found if problem is not None]
    if not wrong:
        return f"identical ({len(found)})"
    first = Counter(re.sub(r" at step \d+|; weights .*", "", problem) for problem in wrong)
    told = ", ".join(f"{kind} ({count})" for kind, count in first.most_common())
    far = max((float(number) for problem in wrong for number in re.findall("weights (.*)", problem)), default=0)
    weights = f"; weights off by up to {far:.0e}" if far else ""
    return f"{len(found) - len(wrong)} of {len(found)} identical; else first: {told}{weights}".replace("|", "/")


def main() -> int:
    """Measure, print, and perhaps write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--rows", nargs="*", choices=SCENARIOS, default=list(SCENARIOS), metavar="ROW", help=", ".join(SCENARIOS)
    )
    parser.add_argument("--columns", nargs="+", choices=COLUMNS, default=list(COLUMNS))
    parser.add_argument("--sample", type=int, default=0, help="at most so many places of a cell; 0: all")
    parser.add_argument("--micro", type=int, default=0, help="the same of micro-steps")
    parser.add_argument("--writes", type=int, default=12, help="the same of the checkpoint's write, which has some 200")
    parser.add_argument("--each", type=int, default=0, help="so many places of a row, whatever their columns; 0: all")
    parser.add_argument("--width", type=int, default=2, help="runs at a time")
    parser.add_argument("--json", type=Path, help="every place and what differs there")
    parser.add_argument("--read", type=Path, nargs="+", default=[], help="such files of earlier parts of the table")
    parser.add_argument("--folder", type=Path, help="keep here the runs that differ")
    parser.add_argument("--write", action="store_true", help="put the table into docs/resume.md")
    options = parser.parse_args()
    begin = time.monotonic()
    cells: Cells = {}
    for path in options.read:
        for row, column, *one in json.loads(path.read_text()):
            cells.setdefault((row, column), []).append(tuple(one))
    with tempfile.TemporaryDirectory() as folder:
        for row, column, said, problem in measure(options, options.folder or Path(folder)):
            cells.setdefault((row, column), []).append((said, problem))
            if problem is not None and column != "stock":
                print(f"{row}, {said}: {problem}", file=sys.stderr, flush=True)
    if options.json:
        options.json.write_text(json.dumps([[*key, *one] for key, found in cells.items() for one in found], indent=1))
    rows = [name for name in SCENARIOS if any(row == name for row, _ in cells)]
    columns = [name for name in COLUMNS if any(column == name for _, column in cells)]
    text = table(cells, rows, columns)
    print(text)
    print(f"\n{sum(map(len, cells.values()))} killed runs, {time.monotonic() - begin:.0f} s", file=sys.stderr)
    if options.write:
        page = PAGE.read_text(encoding="utf-8")
        before, _, rest = page.partition(BEGIN)
        PAGE.write_text(f"{before}{BEGIN}\n\n{text}\n\n{END}{rest.partition(END)[2]}", encoding="utf-8")
    return int(any(problem for (_, column), found in cells.items() if column != "stock" for _, problem in found))


if __name__ == "__main__":
    sys.exit(main())
