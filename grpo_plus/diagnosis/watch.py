"""What has been said of a run: each finding once when it begins or grows graver, and once when it ends."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from grpo_plus.diagnosis.finding import RANK, Finding, Severity

CLEAR = 3
"""Looks in a row without a finding until it has ended."""
FOR_GOOD = frozenset(["hacking", "nan"])
"""Findings that never end: what they say of the run stays true."""


@dataclass
class Open:
    """A finding that stands, the step that it began at, and how often in a row it was not found again.

    ``worst`` is how grave it has been.
    """

    finding: Finding
    since: int
    worst: Severity
    clear: int = 0


def graver(one: Severity, other: Severity) -> Severity:
    """The graver of two."""
    return min(one, other, key=RANK.__getitem__)


@dataclass
class Watch:
    """Findings that stand now, how grave each was whose beginning was said, and names of those whose end was.

    >>> watch, lost = Watch(), Finding("nan", "severe", "loss is NaN", "overflow", "a smaller learning_rate")
    >>> [len(watch.look(step, found)[0]) for step, found in ((1, []), (2, [lost]), (3, [lost]))]
    [0, 1, 0]
    """

    standing: dict[str, Open] = field(default_factory=dict)
    ended: set[str] = field(default_factory=set)
    worst: dict[str, Severity] = field(default_factory=dict)

    def look(self, step: int, found: Iterable[Finding]) -> tuple[list[Finding], list[Open]]:
        """Take what holds at a step; gives the findings that began or grew graver, and those that ended."""
        now = {one.name: one for one in found}
        fresh, gone = [], []
        for name, one in now.items():
            if name not in self.standing or RANK[one.severity] < RANK[self.standing[name].worst]:
                fresh.append(one)
            entry = self.standing.setdefault(name, Open(one, step, one.severity))
            entry.worst, entry.clear = graver(entry.worst, one.severity), 0
            if name not in FOR_GOOD or not entry.finding.examples:
                entry.finding = one
        for name, held in list(self.standing.items()):
            if name in now or name in FOR_GOOD:
                continue
            held.clear += 1
            if held.clear >= CLEAR:
                gone.append(self.standing.pop(name))
        return fresh, gone

    def is_new(self, one: Finding) -> bool:
        """Whether the beginning of this finding was not said yet, or not as gravely; from now on it was."""
        before = self.worst.get(one.name)
        fresh = before is None or RANK[one.severity] < RANK[before]
        self.worst[one.name] = one.severity if before is None else graver(before, one.severity)
        return fresh

    def ends_newly(self, name: str) -> bool:
        """Whether the end of this finding was not said yet; from now on it was."""
        fresh = name not in self.ended
        self.ended.add(name)
        return fresh

    def state_dict(self) -> dict[str, Any]:
        """As JSON values; empty at the start."""
        if not self.worst:
            return {}
        standing = [
            {"finding": held.finding.as_data(), "since": held.since, "clear": held.clear, "worst": held.worst}
            for held in self.standing.values()
        ]
        return {"standing": standing, "ended": sorted(self.ended), "worst": self.worst}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from it."""
        self.standing = {}
        for held in state["standing"]:
            data = held["finding"]
            one = Finding(**{**data, "steps": tuple(data["steps"]), "examples": tuple(data["examples"])})
            self.standing[one.name] = Open(one, int(held["since"]), held["worst"], int(held["clear"]))
        self.ended, self.worst = set(state["ended"]), dict(state["worst"])
