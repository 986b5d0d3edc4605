"""Runner of the checks: an exception in a check becomes a finding, and the next check runs."""

import contextlib
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from grpo_plus.doctor.disk import disk_findings
from grpo_plus.doctor.finding import CheckFinding, FindingKind, Severity, info, ok, problem, warning
from grpo_plus.doctor.installed import installed_findings
from grpo_plus.doctor.machine import box_findings, machine_findings, worker_findings
from grpo_verifiers.errors.messages import exact, type_name

FAILED = warning(
    "check-failed",
    "A check of doctor itself failed, so its subject was not checked.",
    "Read the error; if it is not explained by another finding, report it with this text.",
)
READ = ok("config", "The config passes every check of train before a model is loaded.")
INVALID = problem("config-invalid", "train refuses this config with the same message.", "Follow the message.")
ELSEWHERE = problem(
    "config-not-here",
    "The config is right, but not for this machine: train refuses it here.",
    "Run it on the intended machine, or change the settings in the message.",
)
NOTE = info("config-note", "The config is valid, but a setting may have a surprising effect.")
_NUMBERED = re.compile(r"^  \d+\. ", re.MULTILINE)
"""Number before each problem of a message with several."""


@dataclass
class Examination:
    """Findings by section, and subjects that were not checked."""

    sections: dict[str, list[CheckFinding]] = field(default_factory=dict)
    unchecked: list[str] = field(default_factory=list)

    def run(self, section: str, check: Callable[[], Iterable[CheckFinding]]) -> None:
        """Run a check and store its findings; an exception is a finding too."""
        findings = self.sections.setdefault(section, [])
        with self.failing(section):
            findings.extend(check())

    @contextlib.contextmanager
    def failing(self, section: str) -> Iterator[None]:
        """Turn any exception except Ctrl-C into a finding of the section."""
        try:
            yield
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001 - a report never ends in a traceback
            message = f"{type_name(type(error))}: {exact(str(error), 600)}"
            self.sections.setdefault(section, []).append(FAILED.at(section, message))

    @property
    def findings(self) -> list[CheckFinding]:
        """All findings, in order."""
        return [finding for findings in self.sections.values() for finding in findings]

    @property
    def worst(self) -> Severity:
        """The highest severity."""
        return max((finding.severity for finding in self.findings), key=lambda each: each.rank, default=Severity.OK)


def examine_machine(examination: Examination, output_dir: str | None = None) -> None:
    """Run all checks that need no config; ``output_dir`` comes from one, if any."""
    examination.run("packages", installed_findings)
    examination.run("machine", machine_findings)
    examination.run("sandbox", box_findings)
    examination.run("sandbox", worker_findings)
    examination.run("disk", lambda: disk_findings(output_dir))


def refused_findings(message: str, kind: FindingKind = INVALID) -> Iterator[CheckFinding]:
    """Yield a finding for each problem of a refused config."""
    first, *rest = _NUMBERED.split(message)
    yield from (kind.at("config", text.strip()) for text in rest or [first])
