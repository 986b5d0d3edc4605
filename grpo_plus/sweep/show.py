"""A sweep on the terminal: a table of the plan, a progress line, and a table of results."""

import contextlib
import shutil
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TextIO

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from grpo_plus.report.compare import mean_and_spread
from grpo_plus.report.differences import verdict
from grpo_plus.sweep.manifest import Manifest
from grpo_plus.sweep.plan import Plan, Run
from grpo_plus.sweep.results import SECONDS, progress

EVERY = 1.0
"""Seconds between updates of the progress line."""


def plan_table(plan: Plan, manifest: Manifest) -> Table:
    """The planned runs, one row for each variant."""
    table = Table(
        "variant",
        "seeds",
        "state",
        title=Text(f"{len(plan.runs)} run{'s' * (len(plan.runs) > 1)} in {plan.out}"),
        title_justify="left",
    )
    for variant in plan.variants:
        runs = [run for run in plan.runs if run.variant.label == variant.label]
        states = [manifest.of(run).state for run in runs]
        counted = ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states))
        table.add_row(Text(variant.label), " ".join(str(run.seed) for run in runs), counted)
    return table


def result_table(plan: Plan, manifest: Manifest) -> Table:
    """Mean and standard deviation over the seeds of each variant, one column for each figure."""
    finished = [run for run in plan.runs if manifest.of(run).state == "finished"]
    measured = list(dict.fromkeys(title for run in finished for title in manifest.of(run).results))
    measured.sort(key=lambda title: title == SECONDS)
    table = Table("variant", "runs", *map(escape, measured), title="mean ± standard deviation over seeds")
    table.title_justify = "left"
    for variant in plan.variants:
        runs = [run for run in plan.runs if run.variant.label == variant.label]
        done = [run for run in runs if manifest.of(run).state == "finished"]
        results = [manifest.of(run).results for run in done]
        cells = [_cell(title, [found[title] for found in results if title in found]) for title in measured]
        table.add_row(
            Text(variant.label), f"{len(done)} of {len(runs)}" if len(done) < len(runs) else str(len(runs)), *cells
        )
    return table


def verdict_lines(plan: Plan, manifest: Manifest) -> list[str]:
    """A sentence for each figure: which variant is best, or that no difference can be seen over the seeds."""
    finished = [run for run in plan.runs if manifest.of(run).state == "finished"]
    titles = list(dict.fromkeys(title for run in finished for title in manifest.of(run).results if title != SECONDS))
    told = []
    for title in titles:
        values: dict[str, list[float]] = {variant.label: [] for variant in plan.variants}
        for run in finished:
            if title in manifest.of(run).results:
                values[run.variant.label].append(manifest.of(run).results[title])
        told.append(verdict(title, values)[1])
    return [sentence for sentence in told if sentence]


def _cell(title: str, values: Sequence[float]) -> str:
    if not values:
        return "-"
    mean, spread = mean_and_spread(values)
    places = 1 if title == SECONDS else 3
    return f"{mean:.{places}f}" + (f" ± {spread:.{places}f}" if len(values) > 1 else "")


def console(file: TextIO) -> Console:
    """A console; outside a terminal it is wide enough for labels."""
    terminal = file.isatty()
    return Console(file=file, width=None if terminal else 120, highlight=False)


@dataclass
class Line:
    """A progress line that is redrawn in place; without a terminal, one line for each start and end."""

    plan: Plan
    manifest: Manifest
    file: TextIO = field(default_factory=lambda: sys.stderr)
    _began: float = field(default_factory=time.monotonic)
    _looked: float = 0.0
    _took: list[float] = field(default_factory=list)
    _stopping: bool = False

    def began(self, run: Run, where: str = "") -> None:
        """Report the start of a run; ``where``: the machine, if it may be another one."""
        if where or not self.file.isatty():
            self.say(f"{self._at(run)} {run.title}: started{where and f' on {where}'}")

    def ended(self, run: Run) -> None:
        """Report the end of a run."""
        entry = self.manifest.of(run)
        if entry.state == "finished":
            found = ", ".join(f"{title} {_cell(title, [value])}" for title, value in entry.results.items())
            self._took.append(time.monotonic() - self._began)
            self.say(f"{self._at(run)} {run.title}: {found}")
        else:
            self.say(f"{self._at(run)} {run.title}: {entry.state} (code {entry.code}), see {run.log}")

    def tick(self, live: Sequence[Run], signals: int) -> int:
        """Redraw the line; gives back the number of signals, the first of which is reported."""
        if signals and not self._stopping:
            self._stopping = True
            runs = "the run" if len(live) == 1 else f"{len(live)} runs"
            self.say(f"stopping: {runs} may save and leave; Ctrl-C again ends what is still there at once")
        if self.file.isatty() and time.monotonic() - self._looked >= EVERY:
            self._looked = time.monotonic()
            shown = " | ".join(f"{run.title}: {progress(run.folder)}" for run in live)
            width = shutil.get_terminal_size().columns - 1
            text = f"{self._count()} done, {_clock(time.monotonic() - self._began)}{self._left()} | {shown}"
            self._write(f"\r\x1b[K{text[:width]}")
        return signals

    def say(self, text: str) -> None:
        """Print a permanent line."""
        clear = "\r\x1b[K" if self.file.isatty() else ""
        self._write(f"{clear}{text}\n")

    def _write(self, text: str) -> None:
        with contextlib.suppress(OSError):  # a closed terminal or pipe must not end the runs
            self.file.write(text)
            self.file.flush()

    def _at(self, run: Run) -> str:
        return f"[{self.plan.runs.index(run) + 1} of {len(self.plan.runs)}]"

    def _count(self) -> str:
        done = sum(self.manifest.of(run).state == "finished" for run in self.plan.runs)
        return f"{done} of {len(self.plan.runs)}"

    def _left(self) -> str:
        """The time left, estimated from the runs so far."""
        if not self._took:
            return ""
        waiting = sum(self.manifest.of(run).state in ("waiting", "running", "stopped") for run in self.plan.runs)
        return f", about {_clock(self._took[-1] / len(self._took) * waiting)} left"


def _clock(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
