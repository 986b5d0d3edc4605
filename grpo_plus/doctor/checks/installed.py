"""Packages: there, within the versions that are asked for, importable; and what is relied on in TRL."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from packaging.specifiers import SpecifierSet

from grpo_plus._trl import OVERRIDE, TESTED, is_supported, is_untested
from grpo_plus.doctor.finding import Finding, ok, problem, warning

INSTALLED = ok("installed", "The versions that a run uses.")
MISSING = problem(
    "package-missing", "A package that every run needs is not installed.", "Install it: pip install NAME."
)
OUTSIDE = problem(
    "package-version",
    "The installed version is outside of what this release asks for; commands may fail anywhere.",
    "Install a version within the range: pip install 'NAME RANGE'.",
)
BROKEN = problem(
    "package-broken",
    "The package is installed, but importing it fails.",
    "Reinstall it, together with what the error names: pip install --force-reinstall NAME.",
)
UNSUPPORTED = problem(
    "trl-unsupported",
    f"This TRL was never tested and is known not to fit: every command refuses it ({TESTED[0]} to {TESTED[-1]} do).",
    f"pip install 'trl=={TESTED[-1]}'.",
)
UNTESTED = warning(
    "trl-untested",
    "TRL is newer than any that the tests ran with; what is relied on was looked for in its source.",
    f"If training behaves oddly: pip install 'trl=={TESTED[-1]}'.",
)
SEAM = problem(
    "trl-seam",
    "A method or attribute of the trainer that is relied on is gone or takes something else: training fails there.",
    f"pip install 'trl=={TESTED[-1]}', and report this line.",
)
UNCHECKED = warning(
    "trl-check-off",
    f"{OVERRIDE}=1 lets in any TRL, this one too, without a check.",
    f"Unset {OVERRIDE}, or install a tested TRL.",
)


@dataclass(frozen=True)
class Needed:
    """A package that is asked for: the range, and the version found."""

    range: str
    version: str | None


@dataclass(frozen=True)
class Installed:
    """Installed packages: ``broken`` has the errors of imports, ``seams`` the parts that TRL lacks."""

    needed: Mapping[str, Needed]
    others: Mapping[str, str]
    broken: Mapping[str, str]
    override: bool
    seams: tuple[str, ...]


def installed_findings(facts: Installed) -> Iterator[Finding]:
    """Each package that is wrong, and all versions in a line."""
    found = {name: each.version for name, each in facts.needed.items() if each.version is not None}
    yield INSTALLED.at(
        "packages", ", ".join(f"{name} {version}" for name, version in {**facts.others, **found}.items())
    )
    for name, each in facts.needed.items():
        if each.version is None:
            yield MISSING.at(name, f"not installed, wanted {each.range or 'any version'}")
        elif name != "trl" and not SpecifierSet(each.range).contains(each.version, prereleases=True):
            yield OUTSIDE.at(name, f"{each.version}, wanted {each.range}")
    for name, error in facts.broken.items():
        yield BROKEN.at(name, error)
    yield from _of_trl(found.get("trl"), facts)


def _of_trl(version: str | None, facts: Installed) -> Iterator[Finding]:
    if version is None:
        return
    fits = is_supported(version)
    if facts.override and (not fits or is_untested(version)):
        yield UNCHECKED.at("trl", f"{version}, {OVERRIDE}=1")
    if not fits:
        yield UNSUPPORTED.at("trl", version)
    elif is_untested(version):
        yield UNTESTED.at("trl", version)
    for seam in facts.seams:
        yield SEAM.at("trl", f"{version}: {seam}")
