"""Runner of the checks, and their report without private data. An exception in a check becomes a finding."""

import contextlib
import getpass
import os
import platform
import re
import textwrap
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from grpo_plus import __version__
from grpo_plus.check.finding import FAILED, CheckFinding, FindingKind, Severity, info, ok, problem
from grpo_plus.check.machine import box_findings, disk_findings, installed_findings, machine_findings, worker_findings
from grpo_verifiers.errors.messages import counted, cut, exact, readable, type_name
from grpo_verifiers.redaction import redact_text

READ = ok("config", "The config passes every check of train before a model is loaded.")
INVALID = problem("config-invalid", "train refuses this config with the same message.", "Follow the message.")
ELSEWHERE = problem(
    "config-not-here",
    "The config is right, but not for this machine: train refuses it here.",
    "Run it on the intended machine, or change the settings in the message.",
)
PART_FAILS = problem(
    "part-fails",
    "A part of the config fails on the sample group: training would end in its first step.",
    "Correct the part; the error names it and the expected result.",
)
NOTE = info("config-note", "The config is valid, but a setting may have a surprising effect.")
_NUMBERED = re.compile(r"^  \d+\. ", re.MULTILINE)
"""Number before each problem of a message with several."""


@dataclass
class Examination:
    """Findings and lines by section, and subjects that were not checked."""

    sections: dict[str, list[CheckFinding]] = field(default_factory=dict)
    lines: dict[str, list[str]] = field(default_factory=dict)
    unchecked: list[str] = field(default_factory=list)
    raised: type[BaseException] = KeyboardInterrupt
    """Errors that end the command: mistakes in its own options."""

    def run(self, section: str, check: Callable[[], Iterable[CheckFinding]]) -> None:
        """Run a check and store its findings; an exception is a finding too."""
        findings = self.sections.setdefault(section, [])
        with self.failing(section):
            findings.extend(check())

    def tell(self, section: str, lines: Iterable[str]) -> None:
        """Store lines of a section, which precede its findings."""
        self.sections.setdefault(section, [])
        self.lines.setdefault(section, []).extend(lines)

    @contextlib.contextmanager
    def failing(self, section: str) -> Iterator[None]:
        """Turn any exception except Ctrl-C into a finding of the section."""
        try:
            yield
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt | self.raised):
                raise
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
    for check in (installed_findings, machine_findings, box_findings, worker_findings):
        examination.run("machine", check)
    examination.run("machine", lambda: disk_findings(output_dir))


def refused_findings(message: str, kind: FindingKind = INVALID) -> Iterator[CheckFinding]:
    """Yield a finding for each problem of a refused config."""
    first, *rest = _NUMBERED.split(message)
    yield from (kind.at("config", text.strip()) for text in rest or [first])


SCHEMA = 2
"""Version of the data; increased when a field is renamed or removed."""
WIDTH = 110
MOST = 1200
"""Characters of a value."""
_HOMES = re.compile(r"(?<![\w.])(/(?:home|Users)/)[^/\s'\",:;]+")
_ABOVE = re.compile(r"Its traceback is above[.;] ?(\w?)")
"""Reference to a traceback in errors of plug-ins; a report omits the traceback."""
_PLAIN_USERS = {"root", "user", "ubuntu", "runner", "nobody", "app", "admin"}
_COLOURS = {Severity.PROBLEM: "31", Severity.WARNING: "33", Severity.INFO: "36", Severity.OK: "32"}


def exit_code(examination: Examination, *, strict: bool) -> int:
    """Return 2 for a problem, 1 for a warning if ``strict``, 0 otherwise."""
    return {Severity.PROBLEM: 2, Severity.WARNING: int(strict)}.get(examination.worst, 0)


def shareable(text: str) -> str:
    """Remove secrets, and the user's name in paths.

    >>> shareable("/home/maria/run, token=hf_abcdefghijklmnopqrstuvwxyz")
    '/home/(user)/run, token=(hidden)'
    """
    home = str(Path.home())
    if len(home) > 1:
        text = re.sub(rf"{re.escape(home)}(?![\w.-])", "~", text)
    text = _HOMES.sub(r"\1(user)", text)
    names = {os.environ.get(variable, "") for variable in ("USER", "LOGNAME", "SUDO_USER", "USERNAME")}
    with contextlib.suppress(Exception):  # a user without a name
        names.add(getpass.getuser())
    for name in sorted(names - _PLAIN_USERS):
        if len(name) > 1:
            text = re.sub(rf"(?<=/){re.escape(name)}(?=/|\b)", "(user)", text)
    return readable(redact_text(text), 4 * MOST)


def text_report(examination: Examination, *, colour: bool = False) -> str:
    """Format the report for people: one line if all is well, else meaning and remedy of each finding."""
    counts = Counter(finding.severity for finding in examination.findings)
    bad = (severity for severity in (Severity.PROBLEM, Severity.WARNING) if counts[severity])
    summary = ", ".join(counted(counts[severity], severity.value) for severity in bad) or "no problems"
    lines = [f"grpo-plus check {__version__} on {platform.system()} {platform.machine()}: {summary}"]
    for section, findings in examination.sections.items():
        texts = "\n".join(map(shareable, examination.lines.get(section, ())))
        shown = [f"  {line}".rstrip() for line in texts.splitlines()]
        lines += ["", section] if findings or shown else []
        lines += [*shown, *([""] if findings and shown else [])]
        for finding in findings:
            lines += _lines(finding, colour=colour)
    if examination.unchecked:
        lines += ["", "not checked"]
        lines += [line for text in examination.unchecked for line in _wrapped("- ", shareable(text), 2)]
    return "\n".join(lines)


def data_report(examination: Examination) -> dict[str, Any]:
    """Return the report as data."""
    counts = Counter(finding.severity.value for finding in examination.findings)
    return {
        "schema": SCHEMA,
        "grpo_plus": __version__,
        "platform": f"{platform.system()} {platform.machine()}",
        "worst": examination.worst.value,
        "counts": {severity.value: counts[severity.value] for severity in Severity},
        "findings": [
            {
                "section": section,
                "code": finding.code,
                "severity": finding.severity.value,
                "thing": shareable(finding.thing),
                "value": _cut(shareable(finding.value)),
                "means": finding.kind.means,
                "remedy": finding.kind.remedy,
            }
            for section, findings in examination.sections.items()
            for finding in findings
        ],
        "lines": {section: [*map(shareable, texts)] for section, texts in examination.lines.items()},
        "not_checked": [shareable(text) for text in examination.unchecked],
    }


def _lines(finding: CheckFinding, *, colour: bool) -> Iterator[str]:
    word = f"{finding.severity.value:<7}"
    if colour:
        word = f"\x1b[{_COLOURS[finding.severity]}m{word}\x1b[0m"
    value = _cut(shareable(finding.value)).replace("\n", " ")
    first, *more = _wrapped("", f"{finding.code} [{shareable(finding.thing)}]: {value}", 10)
    yield f"  {word} {first.strip()}"
    yield from more
    if finding.severity is not Severity.OK:
        yield from _wrapped("means: ", finding.kind.means, 10)
        if finding.kind.remedy:
            yield from _wrapped("do: ", finding.kind.remedy, 10)


def _cut(text: str) -> str:
    """Remove the traceback of a value, and limit its length."""
    text = text.partition("\nTraceback (most recent call last)")[0].rstrip(":")
    text = _ABOVE.sub(lambda match: match[1].upper(), text).rstrip()
    return cut(text, MOST)


def _wrapped(title: str, text: str, indent: int) -> list[str]:
    """Wrap to a width that an issue shows without scrolling, without splitting words."""
    first, later = " " * indent + title, " " * (indent + 2)
    return textwrap.wrap(
        text, WIDTH, initial_indent=first, subsequent_indent=later, break_long_words=False, break_on_hyphens=False
    )
