"""Checks run one after the other, each by itself: one that fails is a finding, and the next one runs."""

import contextlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from grpo_plus.doctor.checks.boxes import box_findings, worker_findings
from grpo_plus.doctor.checks.disk import disk_findings
from grpo_plus.doctor.checks.hub import hub_findings
from grpo_plus.doctor.checks.installed import installed_findings
from grpo_plus.doctor.checks.machine import machine_findings
from grpo_plus.doctor.checks.plugins import plugin_findings
from grpo_plus.doctor.finding import Finding, Severity, warning
from grpo_verifiers.errors.messages import exact, type_name

FAILED = warning(
    "check-failed",
    "A check of doctor itself failed, so this was not looked at.",
    "Read the error; if it is not explained by another finding, report it with this text.",
)


@dataclass
class Examination:
    """What was found so far, section by section, and what was not looked at."""

    sections: dict[str, list[Finding]] = field(default_factory=dict)
    unchecked: list[str] = field(default_factory=list)

    def look(self, section: str, check: Callable[[], Iterable[Finding]]) -> None:
        """Run a check and keep what it finds; its failure is a finding."""
        found = self.sections.setdefault(section, [])
        with self.failing(section):
            found.extend(check())

    @contextlib.contextmanager
    def failing(self, section: str) -> Iterator[None]:
        """Turn any exception into a finding of the section, Ctrl-C aside."""
        try:
            yield
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001 - a report never ends in a traceback
            told = f"{type_name(type(error))}: {exact(str(error), 600)}"
            self.sections.setdefault(section, []).append(FAILED.at(section, told))

    @property
    def findings(self) -> list[Finding]:
        """All findings, in order."""
        return [finding for found in self.sections.values() for finding in found]

    @property
    def worst(self) -> Severity:
        """The highest severity."""
        return max((finding.severity for finding in self.findings), key=lambda each: each.rank, default=Severity.OK)


def examine_machine(
    examination: Examination, *, processes: int = 1, threads: int | None = None, output_dir: str | None = None
) -> None:
    """Everything that can be said without a config; the keywords are what one says of its run."""
    import os

    from grpo_plus.doctor.facts.boxes import boxes, worker
    from grpo_plus.doctor.facts.disk import places
    from grpo_plus.doctor.facts.installed import installed
    from grpo_plus.doctor.facts.machine import machine
    from grpo_plus.doctor.facts.plugins import plugins

    examination.look("packages", lambda: installed_findings(installed()))
    examination.look("machine", lambda: machine_findings(machine(processes, threads)))
    examination.look("sandbox", lambda: box_findings(boxes()))
    examination.look("sandbox", lambda: worker_findings(worker()))
    examination.look("disk", lambda: disk_findings(places(output_dir)))
    examination.look("plug-ins", lambda: plugin_findings(plugins()))
    examination.look("hub", lambda: hub_findings(os.environ))
