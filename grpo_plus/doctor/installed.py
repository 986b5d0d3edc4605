"""Packages: there, within the versions that are asked for, importable; and what is relied on in TRL."""

import importlib
import importlib.metadata
import platform
from collections.abc import Iterator

from packaging.requirements import Requirement

from grpo_plus._trl import TESTED, UnsupportedTRLError, is_supported, is_untested, seam_problems
from grpo_plus.doctor.finding import DoctorFinding, ok, problem, warning
from grpo_verifiers.errors.messages import exact, type_name

OTHERS = ("grpo-plus", "tokenizers", "huggingface-hub", "vllm", "deepspeed", "ray", "flash-attn", "liger-kernel")
IMPORTED = ("torch", "transformers", "datasets", "accelerate", "peft", "bitsandbytes", "trl")
"""Imported for a look: what breaks by itself, through libraries of other languages or through each other."""

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


def installed_findings() -> Iterator[DoctorFinding]:
    """All versions that this interpreter would import in a line, then each package that is wrong."""
    asked = [Requirement(text) for text in importlib.metadata.requires("grpo-plus") or ()]
    needed = {each.name: each for each in asked if each.marker is None or each.marker.evaluate({"extra": ""})}
    found = {name: version for name in (*OTHERS, *needed) if (version := _version(name)) is not None}
    told = {"python": platform.python_version(), **found}
    yield INSTALLED.at("packages", ", ".join(f"{name} {version}" for name, version in told.items()))
    for name, each in needed.items():
        if name not in found:
            yield MISSING.at(name, f"not installed, wanted {each.specifier or 'any version'}")
        elif name != "trl" and not each.specifier.contains(found[name], prereleases=True):
            yield OUTSIDE.at(name, f"{found[name]}, wanted {each.specifier}")
    trl = found.get("trl") if "trl" in needed else None
    if trl is not None:  # before it is imported: this reads its source
        yield from _of_trl(trl)
    for name in IMPORTED:
        if name in needed and name in found and (error := _import_error(name)):
            yield BROKEN.at(name, error)


def _of_trl(version: str) -> Iterator[DoctorFinding]:
    if not is_supported(version):
        yield UNSUPPORTED.at("trl", version)
        return
    if is_untested(version):
        yield UNTESTED.at("trl", version)
    try:
        seams = seam_problems()
    except UnsupportedTRLError as error:
        seams = [str(error)]
    for seam in seams:
        yield SEAM.at("trl", f"{version}: {seam}")


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _import_error(name: str) -> str:
    """Why a package cannot be imported; empty where it can."""
    try:
        importlib.import_module(name)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - packages raise anything while they are imported
        return f"{type_name(type(error))}: {exact(str(error), 400)}"
    return ""
