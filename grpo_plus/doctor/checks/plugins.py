"""Parts of installed packages: whether each can be loaded under a name of its own."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from grpo_plus.doctor.finding import Finding, ok, problem, warning

LOADED = ok("plug-ins", "Parts that installed packages add; all of them can be loaded.")
FAILED = warning(
    "plug-in-broken",
    "A part of an installed package cannot be loaded: a config that names it fails.",
    "Repair, update or uninstall the package.",
)
CLASH = problem(
    "plug-in-clash",
    "Two parts have the same name: every config that chooses a part of this kind fails.",
    "Uninstall one of the packages, or rename its entry point.",
)


@dataclass(frozen=True)
class Point:
    """An entry point: its kind, name and source, and the error of loading it."""

    kind: str
    name: str
    source: str
    error: str = ""


@dataclass(frozen=True)
class Plugins:
    """All entry points, and the kinds whose names clash, each with what is said about it."""

    points: Sequence[Point]
    clashes: Sequence[tuple[str, str]] = ()


def plugin_findings(facts: Plugins) -> Iterator[Finding]:
    """Each that fails, and the number of those that do not."""
    for kind, text in facts.clashes:
        yield CLASH.at(kind, text)
    for point in facts.points:
        if point.error:
            yield FAILED.at(f"{point.kind} {point.name}", f"{point.source}: {point.error}")
    fine = [f"{point.kind} {point.name}" for point in facts.points if not point.error]
    yield LOADED.at("plug-ins", ", ".join(fine) or "none installed")
