"""Versions of packages, those that cannot be imported, and what TRL lacks."""

import importlib
import importlib.metadata
import os
import platform

from packaging.requirements import Requirement

from grpo_plus._trl import OVERRIDE, UnsupportedTRLError, is_supported, seam_problems
from grpo_plus.doctor.checks.installed import Installed, Needed
from grpo_verifiers.errors.messages import exact, type_name

OTHERS = ("grpo-plus", "tokenizers", "huggingface-hub", "vllm", "deepspeed", "ray", "flash-attn", "liger-kernel")
IMPORTED = ("torch", "transformers", "datasets", "accelerate", "peft", "bitsandbytes", "trl")
"""Imported for a look: what breaks by itself, through libraries of other languages or through each other."""


def installed() -> Installed:
    """Look at what this interpreter would import."""
    needed = {}
    for text in importlib.metadata.requires("grpo-plus") or ():
        asked = Requirement(text)
        if asked.marker is None or asked.marker.evaluate({"extra": ""}):
            needed[asked.name] = Needed(str(asked.specifier), _version(asked.name))
    others = {name: version for name in OTHERS if (version := _version(name)) is not None}
    trl = needed["trl"].version if "trl" in needed else None
    seams: list[str] = []
    if trl is not None:
        try:
            seams = seam_problems() if is_supported(trl) else []
        except UnsupportedTRLError as error:
            seams = [str(error)]
    there = [name for name in IMPORTED if name in needed and needed[name].version is not None]
    errors = {name: _import_error(name) for name in there}
    broken = {name: text for name, text in errors.items() if text}
    python = {"python": platform.python_version()}
    return Installed(needed, python | others, broken, os.environ.get(OVERRIDE) == "1", tuple(seams))


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
