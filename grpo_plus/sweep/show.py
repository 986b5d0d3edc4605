"""A sweep on the terminal: a line for each run, and a table of results."""

import contextlib
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TextIO

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from grpo_plus.report.differences import verdict
from grpo_plus.sweep.manifest import Manifest
from grpo_plus.sweep.plan import Plan, Run
from grpo_verifiers.errors.messages import counted
from grpo_verifiers.stats import mean_and_spread

SECONDS = "seconds"
"""The figure that verdicts leave out."""


def plan_line(plan: Plan, manifest: Manifest) -> str:
    """How many runs there are, and how many in which state."""
    states = [manifest.of(run).state for run in plan.runs]
    by_state = ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states))
    return f"{counted(len(plan.runs), 'run')} in {plan.out}: {by_state}"


def _figures(plan: Plan, manifest: Manifest) -> dict[str, dict[str, list[float]]]:
    """The figures of the finished runs by title and variant, the seconds last."""
    found: dict[str, dict[str, list[float]]] = {}
    for run in plan.runs:
        entry = manifest.of(run)
        for title, value in entry.results.items() if entry.state == "finished" else ():
            by_variant = found.setdefault(title, {variant.label: [] for variant in plan.variants})
            by_variant[run.variant.label].append(value)
    return dict(sorted(found.items(), key=lambda item: item[0] == SECONDS))


def result_table(plan: Plan, manifest: Manifest) -> Table:
    """Mean and standard deviation over the seeds of each variant, one column for each figure."""
    figures = _figures(plan, manifest)
    table = Table("variant", "runs", *map(escape, figures), title="mean ± standard deviation over seeds")
    table.title_justify = "left"
    for variant in plan.variants:
        states = [manifest.of(run).state for run in plan.runs if run.variant.label == variant.label]
        done, cells = states.count("finished"), [_cell(title, each[variant.label]) for title, each in figures.items()]
        table.add_row(Text(variant.label), f"{done} of {len(states)}" if done < len(states) else str(done), *cells)
    return table


def verdict_lines(plan: Plan, manifest: Manifest) -> list[str]:
    """A sentence for each figure: which variant is best, or that no difference can be seen over the seeds."""
    figures = _figures(plan, manifest)
    return [text for title, values in figures.items() if title != SECONDS and (text := verdict(title, values)[1])]


def _cell(title: str, values: Sequence[float]) -> str:
    if not values:
        return "-"
    mean, spread = mean_and_spread(values)
    places = 1 if title == SECONDS else 3
    return f"{mean:.{places}f}" + (f" ± {spread:.{places}f}" if len(values) > 1 else "")


def console(file: TextIO) -> Console:
    """A console; outside a terminal it is wide enough for labels."""
    return Console(file=file, width=None if file.isatty() else 120, highlight=False)


@dataclass
class Line:
    """Prints a line for each start and end of a run."""

    plan: Plan
    manifest: Manifest
    file: TextIO = field(default_factory=lambda: sys.stderr)
    _stopping: bool = False

    def began(self, run: Run, where: str = "") -> None:
        """Report the start of a run; ``where``: the machine, if it may be another one."""
        self.say(f"{self._at(run)} {run.title}: started{where and f' on {where}'}")

    def ended(self, run: Run) -> None:
        """Report the end of a run."""
        entry = self.manifest.of(run)
        if entry.state == "finished":
            found = ", ".join(f"{title} {_cell(title, [value])}" for title, value in entry.results.items())
            self.say(f"{self._at(run)} {run.title}: {found}")
        else:
            self.say(f"{self._at(run)} {run.title}: {entry.state} (code {entry.code}), see {run.log}")

    def tick(self, live: Sequence[Run], signals: int) -> int:
        """Give back the number of signals, the first of which is reported."""
        if signals and not self._stopping:
            self._stopping = True
            runs = "the run" if len(live) == 1 else f"{len(live)} runs"
            self.say(f"stopping: {runs} may save and leave; Ctrl-C again ends what is still there at once")
        return signals

    def say(self, text: str) -> None:
        """Print a line."""
        with contextlib.suppress(OSError):  # a closed terminal or pipe must not end the runs
            print(text, file=self.file, flush=True)

    def _at(self, run: Run) -> str:
        return f"[{self.plan.runs.index(run) + 1} of {len(self.plan.runs)}]"
