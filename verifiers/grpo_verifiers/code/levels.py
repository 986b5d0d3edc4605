"""Levels of confinement that this machine offers: a program tries to break out of a box of each."""

import contextlib
import functools
from dataclasses import dataclass
from typing import Any

from grpo_verifiers.code.referee import BoxSet, Referee
from grpo_verifiers.code.run import ProgramRun
from grpo_verifiers.errors import VerifierFailedError
from grpo_verifiers.sandbox.box import BoxError, BoxKind, Level, Limits

LEVELS: tuple[Level, ...] = ("none", "process", "full")
_ADVICE = {
    "full": "install bubblewrap (apt install bubblewrap) and allow user namespaces (in a container: run it with "
    "--security-opt seccomp=unconfined, or with user namespaces enabled)",
    "process": "use Linux 5.13 or newer with Landlock enabled (it must be among lsm= of the kernel's command line), on "
    "x86_64 or aarch64; as root only with the capabilities SETUID and SETGID, to give programs another user",
}
# Harmless where it succeeds; every line of it must fail in a box that holds.
_ESCAPES = """
import os, socket, ctypes
def escapes():
    escaped = []
    for name, attempt in (
        ("network", lambda: socket.socket()),
        ("local sockets", lambda: socket.socket(socket.AF_UNIX)),
        ("files", lambda: open("/etc/hostname").close()),
        ("other folders", lambda: os.listdir("/")),
        ("processes", lambda: os.listdir("/proc")),
        ("namespaces", lambda: ctypes.CDLL(None).unshare(0x10000000) == 0 or 1 / 0),
    ):
        try:
            attempt()
        except (OSError, ZeroDivisionError):
            continue
        escaped.append(name)
    return escaped
"""


class SandboxError(VerifierFailedError):
    """The required confinement is not available: no completion can be judged until that is repaired."""


@dataclass(frozen=True)
class Findings:
    """The highest level that works here, and a report on each level that was tried."""

    level: Level
    details: dict[str, str]

    def story(self) -> str:
        """The findings in a few lines, with advice on packages to install."""
        lines = [f"  {level}: {report}" for level, report in self.details.items()]
        missing = [level for level in self.details if level in _ADVICE and level != self.level]
        return "\n".join([*lines, *(f"  for level {level!r}: {_ADVICE[level]}" for level in missing)])


@functools.cache
def probe(highest: Level = "full") -> Findings:
    """The highest level of confinement up to ``highest`` that works on this machine; tried once a process."""
    details: dict[str, str] = {}
    with contextlib.closing(Referee()) as referee:
        for level in reversed(LEVELS[1 : LEVELS.index(highest) + 1]):
            try:
                return Findings(level, details | {level: f"works ({try_box(referee, BoxKind(level))})"})
            except (BoxError, RuntimeError) as error:  # RuntimeError: any other failure of the referee's job
                details[level] = f"does not work: {error}"
    return Findings("none", details | {"none": "no confinement: programs have all rights of this user"})


def choose(lowest: Level, highest: Level = "full") -> Level:
    """The best level between two that works here; SandboxError if none of them does."""
    findings = probe(highest)
    if LEVELS.index(findings.level) < LEVELS.index(lowest):
        raise SandboxError(
            f"code: level is {lowest!r}, and the highest that works here is {findings.level!r}.\n{findings.story()}"
        )
    return findings.level


def level_problems(level: Level, highest: Level, *, here: bool = True, **_: Any) -> list[str]:
    """Problems of two levels as options.

    SandboxError if they are valid, but programs run ``here`` and this machine offers none of them.
    """
    if LEVELS.index(highest) < LEVELS.index(level):
        return [f"highest ({highest!r}) is below level ({level!r})."]
    if here:
        choose(level, highest)
    return []


def try_box(referee: Referee, kind: BoxKind) -> str:
    """The bounds of programs in a box; BoxError if it does not work.

    No box is in this process: killed at the wrong moment, it would leave the box's folder.
    """
    return str(referee.run(_escape, kind, Limits().wall))


def _escape(kind: BoxKind, boxes: BoxSet) -> str:
    """In the referee: `try_box`."""
    box = boxes.box(kind)
    with ProgramRun(box, Limits(), [{"mode": "calls", "source": _ESCAPES}]) as program:
        loaded = program.receive()
        reply = program.ask({"name": "escapes", "args": ["l"], "kwargs": ["d"]}) if loaded == ["loaded"] else loaded
    if not reply or reply[0] != "value":
        raise BoxError(f"a harmless program failed: {reply or program.why}")
    if kind.level != "none" and reply != ["value", ["l"]]:
        raise BoxError(f"lets through: {reply[1][1:]}")
    return ", ".join(f"{name}: {value}" for name, value in box.reached.items() if name != "level")
