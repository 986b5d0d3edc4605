"""Terminal output of a sweep: a line for each run, and a table of results."""

import contextlib
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TextIO

from rich.markup import escape
from rich.table import Table
from rich.text import Text

from grpo_plus.report.compare import verdict
from grpo_plus.sweep.manifest import SweepManifest
from grpo_plus.sweep.plan import SweepRun
from grpo_verifiers.errors.messages import counted
from grpo_verifiers.stats import mean_and_spread

SECONDS = "seconds"
"""Figure without a verdict."""


def plan_line(manifest: SweepManifest) -> str:
    """Return the number of runs, in total and by state."""
    plan, states = manifest.plan, [manifest.of(run).state for run in manifest.plan.runs]
    by_state = ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states))
    return f"{counted(len(plan.runs), 'run')} in {plan.out}: {by_state}"


def _figures(manifest: SweepManifest) -> dict[str, dict[str, list[float]]]:
    figures: dict[str, dict[str, list[float]]] = {}
    for run in manifest.plan.runs:
        entry = manifest.of(run)
        for title, value in entry.results.items() if entry.state == "finished" else ():
            by_variant = figures.setdefault(title, {variant.label: [] for variant in manifest.plan.variants})
            by_variant[run.variant.label].append(value)
    return dict(sorted(figures.items(), key=lambda item: item[0] == SECONDS))


def result_table(manifest: SweepManifest) -> Table:
    """Tabulate mean and standard deviation over the seeds of each variant, one column for each figure."""
    plan, figures = manifest.plan, _figures(manifest)
    table = Table("variant", "runs", *map(escape, figures), title="mean ± standard deviation over seeds")
    table.title_justify = "left"
    for variant in plan.variants:
        states = [manifest.of(run).state for run in plan.runs if run.variant.label == variant.label]
        done, cells = states.count("finished"), [_cell(title, each[variant.label]) for title, each in figures.items()]
        table.add_row(Text(variant.label), f"{done} of {len(states)}" if done < len(states) else str(done), *cells)
    return table


def verdict_lines(manifest: SweepManifest) -> list[str]:
    """Return a sentence for each figure: the best variant, or no significant difference over the seeds."""
    figures = _figures(manifest).items()
    return [text for title, values in figures if title != SECONDS and (text := verdict(title, values)[1])]


def _cell(title: str, values: Sequence[float]) -> str:
    if not values:
        return "-"
    mean, spread = mean_and_spread(values)
    places = 1 if title == SECONDS else 3
    return f"{mean:.{places}f}" + (f" ± {spread:.{places}f}" if len(values) > 1 else "")


@dataclass
class SweepProgress:
    """Printer of a line for each start and end of a run."""

    manifest: SweepManifest
    file: TextIO = field(default_factory=lambda: sys.stderr)
    _stopping: bool = False

    def began(self, run: SweepRun, where: str = "") -> None:
        """Report the start of a run; ``where``: the machine, if there are several."""
        self.say(f"{self._at(run)} {run.title}: started{where and f' on {where}'}")

    def ended(self, run: SweepRun) -> None:
        """Report the end of a run."""
        entry = self.manifest.of(run)
        if entry.state == "finished":
            figures = ", ".join(f"{title} {_cell(title, [value])}" for title, value in entry.results.items())
            self.say(f"{self._at(run)} {run.title}: {figures}")
        else:
            self.say(f"{self._at(run)} {run.title}: {entry.state} (code {entry.code}), see {run.log}")

    def tick(self, live: Sequence[SweepRun], signals: int) -> int:
        """Return the number of signals, and report the first."""
        if signals and not self._stopping:
            self._stopping = True
            self.say(f"stopping: {counted(len(live), 'run')} may save and exit; Ctrl-C again kills the rest at once")
        return signals

    def say(self, text: str) -> None:
        """Print a line."""
        with contextlib.suppress(OSError):  # a closed terminal or pipe must not end the runs
            print(text, file=self.file, flush=True)

    def _at(self, run: SweepRun) -> str:
        runs = self.manifest.plan.runs
        return f"[{runs.index(run) + 1} of {len(runs)}]"
