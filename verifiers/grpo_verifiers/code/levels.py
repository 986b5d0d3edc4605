"""Levels of confinement that this machine offers: a box is started at each, and a program tries to break out."""

import functools
from dataclasses import dataclass
from typing import Any

from grpo_verifiers.code.run import ProgramRun
from grpo_verifiers.errors import VerifierFailedError
from grpo_verifiers.sandbox.box import Box, BoxError, BoxKind, Level, Limits

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
    """The highest level that works here, and a report on each level."""

    level: Level
    details: dict[str, str]

    def story(self) -> str:
        """The findings in a few lines, with advice on packages to install."""
        lines = [f"  {level}: {self.details[level]}" for level in reversed(LEVELS) if level in self.details]
        missing = [level for level in LEVELS if level in _ADVICE and LEVELS.index(level) > LEVELS.index(self.level)]
        return "\n".join([*lines, *(f"  for level {level!r}: {_ADVICE[level]}" for level in missing)])


@functools.cache
def probe() -> Findings:
    """The levels of confinement that work on this machine; tried once a process."""
    details = {level: _try(level) for level in ("full", "process")}
    works = [level for level in LEVELS if details.get(level, "").startswith("works")]
    details["none"] = "no confinement: programs have all rights of this user"
    return Findings(works[-1] if works else "none", details)


def choose(lowest: Level, highest: Level = "full") -> Level:
    """The best level between two that works here; SandboxError if none of them does."""
    findings = probe()
    best = LEVELS[min(LEVELS.index(findings.level), LEVELS.index(highest))]
    if LEVELS.index(best) < LEVELS.index(lowest):
        raise SandboxError(
            f"code: level is {lowest!r}, and the highest that works here is {findings.level!r}.\n{findings.story()}"
        )
    return best


def level_problems(level: Level, highest: Level, *, here: bool = True, **_: Any) -> list[str]:
    """Problems of two levels as options.

    SandboxError if they are valid, but programs run ``here`` and this machine offers none of them.
    """
    if LEVELS.index(highest) < LEVELS.index(level):
        return [f"highest ({highest!r}) is below level ({level!r})."]
    if here:
        choose(level, highest)
    return []


def _try(level: Level) -> str:
    try:
        box = Box(BoxKind(level))
    except (BoxError, OSError) as error:
        return f"does not start: {error}"
    try:
        with ProgramRun(box, Limits(), [{"mode": "calls", "source": _ESCAPES}]) as program:
            loaded = program.receive()
            reply = program.ask({"name": "escapes", "args": ["l"], "kwargs": ["d"]}) if loaded == ["loaded"] else loaded
    except BoxError as error:
        return f"starts, but {error}"
    finally:
        box.close()
    if reply != ["value", ["l"]]:
        return f"starts, but lets through: {reply[1][1:] if reply and reply[0] == 'value' else reply}"
    more = ", ".join(f"{name}: {value}" for name, value in box.reached.items() if name != "level")
    return f"works ({more})"
