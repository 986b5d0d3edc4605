"""What the checks of the config itself say, as findings."""

import re
from collections.abc import Iterator, Sequence

from grpo_plus.doctor.finding import Finding, info, ok, problem

READ = ok("config", "The config passes every check that train makes of it before it loads a model.")
INVALID = problem("config-invalid", "train refuses this config with the same words.", "Do what the message says.")
ELSEWHERE = problem(
    "config-not-here",
    "The config is right, but not for this machine: train refuses it here.",
    "Run it on the machine that it is for, or change what the message names.",
)
NOTE = info("config-note", "The config is valid, and something in it may surprise.")
_NUMBERED = re.compile(r"^  \d+\. ", re.MULTILINE)


def split_problems(message: str) -> list[str]:
    """The problems of a message, which numbers them where there are several."""
    first, *rest = _NUMBERED.split(message)
    return [text.strip() for text in rest] or [first.strip()]


def refused_findings(message: str, *, here_only: bool = False) -> Iterator[Finding]:
    """Each problem of a refused config; ``here_only``: it is accepted for a processor alone."""
    for text in split_problems(message):
        yield (ELSEWHERE if here_only else INVALID).at("config", text)


def note_findings(notes: Sequence[str]) -> Iterator[Finding]:
    """Each note on a valid config."""
    yield from (NOTE.at("config", note) for note in notes)
