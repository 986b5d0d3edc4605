"""Checks run one after the other, each by itself: one that fails is a finding, and the next one runs."""

import contextlib
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from grpo_plus.doctor.disk import disk_findings
from grpo_plus.doctor.finding import DoctorFinding, Kind, Severity, info, ok, problem, warning
from grpo_plus.doctor.installed import installed_findings
from grpo_plus.doctor.machine import box_findings, machine_findings, worker_findings
from grpo_verifiers.errors.messages import exact, type_name

FAILED = warning(
    "check-failed",
    "A check of doctor itself failed, so this was not looked at.",
    "Read the error; if it is not explained by another finding, report it with this text.",
)
READ = ok("config", "The config passes every check that train makes of it before it loads a model.")
INVALID = problem("config-invalid", "train refuses this config with the same words.", "Do what the message says.")
ELSEWHERE = problem(
    "config-not-here",
    "The config is right, but not for this machine: train refuses it here.",
    "Run it on the machine that it is for, or change what the message names.",
)
NOTE = info("config-note", "The config is valid, and something in it may surprise.")
_NUMBERED = re.compile(r"^  \d+\. ", re.MULTILINE)
"""What stands before each problem of a message that has several."""


@dataclass
class Examination:
    """What was found so far, section by section, and what was not looked at."""

    sections: dict[str, list[DoctorFinding]] = field(default_factory=dict)
    unchecked: list[str] = field(default_factory=list)

    def look(self, section: str, check: Callable[[], Iterable[DoctorFinding]]) -> None:
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
    def findings(self) -> list[DoctorFinding]:
        """All findings, in order."""
        return [finding for found in self.sections.values() for finding in found]

    @property
    def worst(self) -> Severity:
        """The highest severity."""
        return max((finding.severity for finding in self.findings), key=lambda each: each.rank, default=Severity.OK)


def examine_machine(examination: Examination, output_dir: str | None = None) -> None:
    """Everything that can be said without a config, which would name the ``output_dir``."""
    examination.look("packages", installed_findings)
    examination.look("machine", machine_findings)
    examination.look("sandbox", box_findings)
    examination.look("sandbox", worker_findings)
    examination.look("disk", lambda: disk_findings(output_dir))


def refused_findings(message: str, kind: Kind = INVALID) -> Iterator[DoctorFinding]:
    """Each problem of a refused config."""
    first, *rest = _NUMBERED.split(message)
    yield from (kind.at("config", text.strip()) for text in rest or [first])
