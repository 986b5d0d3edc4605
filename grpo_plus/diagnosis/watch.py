"""Track findings: each is reported when it begins or becomes more severe."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from grpo_plus.diagnosis.finding import RANK, Finding, Severity

CLEAR = 3
"""A finding ends after this many updates in a row without it."""
PERMANENT = frozenset(["hacking", "nan"])
"""Findings that never end: they stay true of the run."""


@dataclass
class OpenFinding:
    """A current finding, its first step, its highest severity so far, and the updates in a row without it."""

    finding: Finding
    since: int
    worst: Severity
    clear: int = 0


def more_severe(one: Severity, other: Severity) -> Severity:
    """Return the more severe of two."""
    return min(one, other, key=RANK.__getitem__)


@dataclass
class FindingTracker:
    """Current findings, and the severity at which each was reported.

    >>> tracker, lost = FindingTracker(), Finding("nan", "severe", "loss is NaN", "overflow", "a smaller learning_rate")
    >>> [len(tracker.update(step, findings)[0]) for step, findings in ((1, []), (2, [lost]), (3, [lost]))]
    [0, 1, 0]
    """

    current: dict[str, OpenFinding] = field(default_factory=dict)
    worst: dict[str, Severity] = field(default_factory=dict)

    def update(self, step: int, findings: Iterable[Finding]) -> tuple[list[Finding], list[OpenFinding]]:
        """Take the findings at a step; return those that are new or more severe, and those that ended."""
        by_name = {finding.name: finding for finding in findings}
        new, ended = [], []
        for name, finding in by_name.items():
            if name not in self.current or RANK[finding.severity] < RANK[self.current[name].worst]:
                new.append(finding)
            entry = self.current.setdefault(name, OpenFinding(finding, step, finding.severity))
            entry.finding, entry.worst, entry.clear = finding, more_severe(entry.worst, finding.severity), 0
        for name, entry in list(self.current.items()):
            if name in by_name or name in PERMANENT:
                continue
            entry.clear += 1
            if entry.clear >= CLEAR:
                ended.append(self.current.pop(name))
        return new, ended

    def is_new(self, finding: Finding) -> bool:
        """Return True if this finding was not yet reported at this severity, and mark it as reported."""
        before = self.worst.get(finding.name)
        new = before is None or RANK[finding.severity] < RANK[before]
        self.worst[finding.name] = finding.severity if before is None else more_severe(before, finding.severity)
        return new

    def state_dict(self) -> dict[str, Any]:
        """Return JSON values; empty at the start."""
        if not self.worst:
            return {}
        standing = [
            {"finding": entry.finding.as_data(), "since": entry.since, "clear": entry.clear, "worst": entry.worst}
            for entry in self.current.values()
        ]
        return {"standing": standing, "worst": self.worst}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a `state_dict`."""
        self.current = {}
        for entry in state["standing"]:
            data = entry["finding"]
            finding = Finding(**{**data, "steps": tuple(data["steps"]), "examples": tuple(data["examples"])})
            self.current[finding.name] = OpenFinding(finding, int(entry["since"]), entry["worst"], int(entry["clear"]))
        self.worst = dict(state["worst"])
