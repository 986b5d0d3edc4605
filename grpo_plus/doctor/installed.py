"""Packages: installed, of a required version and importable; and the parts of TRL in use."""

import importlib
import importlib.metadata
import platform
from collections.abc import Iterator

from packaging.requirements import Requirement

from grpo_plus.doctor.finding import CheckFinding, ok, problem, warning
from grpo_plus.trl.versions import TESTED, UnsupportedTRLError, is_supported, is_untested, seam_problems
from grpo_verifiers.errors.messages import exact, type_name

OPTIONAL = ("grpo-plus", "tokenizers", "huggingface-hub", "vllm", "deepspeed", "ray", "flash-attn", "liger-kernel")
IMPORTED = ("torch", "transformers", "datasets", "accelerate", "peft", "bitsandbytes", "trl")
"""Packages to import: their native libraries, or their combination, may be broken."""

INSTALLED = ok("installed", "The versions that a run uses.")
MISSING = problem(
    "package-missing", "A package that every run needs is not installed.", "Install it: pip install NAME."
)
OUTSIDE = problem(
    "package-version",
    "The installed version is outside the range of this release; commands may fail anywhere.",
    "Install a version in the range: pip install 'NAME RANGE'.",
)
BROKEN = problem(
    "package-broken",
    "The package is installed, but importing it fails.",
    "Reinstall it, together with the packages in the error: pip install --force-reinstall NAME.",
)
UNSUPPORTED = problem(
    "trl-unsupported",
    f"This TRL was never tested and does not fit: every command refuses it ({TESTED[0]} to {TESTED[-1]} do).",
    f"pip install 'trl=={TESTED[-1]}'.",
)
UNTESTED = warning(
    "trl-untested",
    "TRL is newer than all tested versions; only its source was checked for the required methods.",
    f"If training behaves oddly: pip install 'trl=={TESTED[-1]}'.",
)
SEAM = problem(
    "trl-seam",
    "A required method or attribute of the trainer is missing or has changed: training fails there.",
    f"pip install 'trl=={TESTED[-1]}', and report this line.",
)


def installed_findings() -> Iterator[CheckFinding]:
    """Yield a line with the version of every package, then a finding for each problem."""
    requirements = [Requirement(text) for text in importlib.metadata.requires("grpo-plus") or ()]
    needed = {each.name: each for each in requirements if each.marker is None or each.marker.evaluate({"extra": ""})}
    installed = {name: version for name in (*OPTIONAL, *needed) if (version := _version(name)) is not None}
    versions = {"python": platform.python_version(), **installed}
    yield INSTALLED.at("packages", ", ".join(f"{name} {version}" for name, version in versions.items()))
    for name, each in needed.items():
        if name not in installed:
            yield MISSING.at(name, f"not installed, required: {each.specifier or 'any version'}")
        elif name != "trl" and not each.specifier.contains(installed[name], prereleases=True):
            yield OUTSIDE.at(name, f"{installed[name]}, required: {each.specifier}")
    trl = installed.get("trl") if "trl" in needed else None
    if trl is not None:  # before the import: this reads its source
        yield from _of_trl(trl)
    for name in IMPORTED:
        if name in needed and name in installed and (error := _import_error(name)):
            yield BROKEN.at(name, error)


def _of_trl(version: str) -> Iterator[CheckFinding]:
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
    """Return the error of importing a package, or an empty text."""
    try:
        importlib.import_module(name)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - an import may raise anything
        return f"{type_name(type(error))}: {exact(str(error), 400)}"
    return ""
