"""Supported TRL releases, and the check that the installed one still has every attribute and method in use."""

import ast
import importlib.metadata
import importlib.util
import inspect
import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from packaging.version import Version

from grpo_plus.trl.host import Card, Generation, Host, Loop, Repeats

TESTED = ("1.14.2", "1.16.0")
"""Oldest and newest TRL release that the test suite runs with."""

_OLDEST, _UNTESTED, _EXCLUDED = Version("1.14.2"), Version("1.17"), Version("1.15")
OVERRIDE = "GRPO_PLUS_ANY_TRL"
"""Environment variable that disables the version check."""

SCORING_FUNCTION = "_ChunkedLogProbFunction"
"""The function in ``trl.trainer.utils`` that a model with a fused head scores by."""
_REST = ("*", "**")
_FUSED_HEAD = "trl", "trainer/utils.py", "add_fused_lm_head"


class UnsupportedTRLError(ImportError):
    """The installed TRL is too old, excluded, or newer than tested with a changed seam."""


class UntestedTRLWarning(UserWarning):
    """The installed TRL is newer than every tested release."""


def _release(version: str) -> Version:
    return Version(Version(version).base_version)  # 1.17.0.dev0 is what 1.17 will be, not what 1.16 was


def is_supported(version: str) -> bool:
    """True for tested TRL releases and newer ones."""
    release = _release(version)
    return release >= _OLDEST and release.release[:2] != _EXCLUDED.release[:2]


def is_untested(version: str) -> bool:
    """True for TRL releases newer than the newest tested one."""
    return _release(version) >= _UNTESTED


def check_version() -> None:
    """Refuse an unsupported TRL; warn of an untested one that has every seam.

    Raises:
        UnsupportedTRLError: names the installed and the tested versions, changed seams, and the override.
    """
    try:
        installed = importlib.metadata.version("trl")
    except importlib.metadata.PackageNotFoundError as error:
        raise UnsupportedTRLError(f"TRL is not installed: pip install 'trl=={TESTED[-1]}'.") from error
    if os.environ.get(OVERRIDE) == "1":
        return
    if not is_supported(installed):
        raise UnsupportedTRLError(
            f"TRL {installed} is installed; this release of grpo_plus is tested with {TESTED[0]} to {TESTED[-1]} "
            "(without 1.15, whose fused head needs Triton even on a CPU). Install one of those: pip install "
            f"'trl=={TESTED[-1]}'. To try {installed} all the same, set {OVERRIDE}=1."
        )
    if not is_untested(installed):
        return
    if problems := seam_problems():
        raise UnsupportedTRLError(
            f"TRL {installed} is newer than {TESTED[-1]}, the newest release tested, and changed what grpo_plus builds "
            f"on: {'; '.join(problems)}. Install a tested one: pip install 'trl=={TESTED[-1]}'. To try {installed} all "
            f"the same, set {OVERRIDE}=1."
        )
    warnings.warn(
        f"TRL {installed} is newer than {TESTED[-1]}, the newest release tested. Every seam that grpo_plus uses is "
        f"there; if training behaves oddly, try pip install 'trl=={TESTED[-1]}'. {OVERRIDE}=1 silences this.",
        UntestedTRLWarning,
        stacklevel=2,
    )


@dataclass(frozen=True)
class Seam:
    """A class of TRL or transformers, its source file, and the Protocol that lists the members in use."""

    package: str
    path: str
    name: str
    protocol: type

    @property
    def attributes(self) -> tuple[str, ...]:
        """Attributes that the class must assign."""
        return tuple(self.protocol.__annotations__)

    @property
    def methods(self) -> dict[str, tuple[str, ...]]:
        """Methods by name, each with its leading parameters."""
        methods = {}
        for name, member in vars(self.protocol).items():
            function = getattr(member, "__func__", member)  # of a static method
            if inspect.isfunction(function) and name != "__init__" and not name.startswith("__"):
                parameters = inspect.signature(function).parameters.values()
                methods[name] = tuple(one.name for one in parameters if one.kind is one.POSITIONAL_OR_KEYWORD)
        return methods


SEAMS = (
    Seam("transformers", "trainer.py", "Trainer", Loop),
    Seam("trl", "trainer/base_trainer.py", "_BaseTrainer", Card),
    Seam("trl", "trainer/grpo_trainer.py", "GRPOTrainer", Host),
    Seam("trl", "trainer/utils.py", "RepeatSampler", Repeats),
    Seam("trl", "generation/vllm_generation.py", "VLLMGeneration", Generation),
)
"""Trainer classes, base classes first, then the data sampler and the vLLM client."""


def seam_problems(sources: Mapping[str, str] | None = None) -> list[str]:
    """Members in use that the installed TRL and transformers lack or have changed; empty if compatible.

    Parses the source files without importing them. ``sources`` replaces the source of a class by its name.
    """
    inherited: dict[str, tuple[str, ...]] = {}
    assigned: set[str] = set()
    problems = []
    for seam in SEAMS:
        try:
            source = (sources or {}).get(seam.name) or source_file(seam.package, seam.path).read_text(encoding="utf-8")
        except OSError:
            problems.append(f"the file {seam.package}/{seam.path}, where {seam.name} stood, is gone")
            continue
        tree = ast.parse(source).body
        owner = next((node for node in tree if isinstance(node, ast.ClassDef) and node.name == seam.name), None)
        if owner is None:
            problems.append(f"the class {seam.name} is gone")
            continue
        inherited |= {node.name: _parameters(node) for node in owner.body if isinstance(node, ast.FunctionDef)}
        assigned |= {
            node.attr
            for node in ast.walk(owner)
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
            if isinstance(node.value, ast.Name) and node.value.id == "self"
        }
        for name, expected in seam.methods.items():
            actual = inherited.get(name)
            if actual is None:
                problems.append(f"the method {name} is gone")
            elif not _accepts(actual, expected):
                problems.append(
                    f"{name} takes ({', '.join(actual)}), expected it to start with ({', '.join(expected)})"
                )
        members = assigned | inherited.keys()
        problems += [f"the attribute self.{name} is gone" for name in seam.attributes if name not in members]
    return [*problems, *_fused_head_problems(sources)]


def _fused_head_problems(sources: Mapping[str, str] | None) -> list[str]:
    """A fused head must score by the function that `replace_fused_head` replaces; older releases have no such head."""
    package, path, name = _FUSED_HEAD
    try:
        source = (sources or {}).get(name) or source_file(package, path).read_text(encoding="utf-8")
    except OSError:
        return []
    changed = f"def {name}(" in source and f"{SCORING_FUNCTION}.apply(" not in source
    return [f"{name} no longer scores by {SCORING_FUNCTION}"] if changed else []


def _parameters(function: ast.FunctionDef) -> tuple[str, ...]:
    """Parameter names of a method; ends in ``*`` and ``**`` if it accepts any further arguments."""
    signature = function.args
    names = tuple(argument.arg for argument in signature.args)
    return (*names, *_REST) if signature.vararg is not None and signature.kwarg is not None else names


def _accepts(actual: Sequence[str], expected: Sequence[str]) -> bool:
    if tuple(actual[-2:]) == _REST:
        return tuple(expected[: len(actual) - 2]) == tuple(actual[:-2])
    return tuple(actual[: len(expected)]) == tuple(expected)


def source_file(package: str, path: str) -> Path:
    """Path of a file in an installed package, without importing the package."""
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        raise UnsupportedTRLError(f"{package} is not installed: pip install 'trl=={TESTED[-1]}'.")
    return Path(spec.origin).parent / path
