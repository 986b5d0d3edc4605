"""Environments of Prime Intellect's verifiers by the names that its own tools take.

A module there has a function ``load_environment``, which returns the environment; its tools name the module, with
dashes (``my-env``) or with an owner before it (``me/my-env``). Here a file (``./my_env.py``) and a reference to that
function mean the same. The environment lends its rubric.
"""

import importlib.util
from pathlib import Path
from typing import Any

from grpo_verifiers.errors import KeywordError, PluginError
from grpo_verifiers.exec.rubrics import is_rubric
from grpo_verifiers.registry import load_plugin

LOADER = "load_environment"
_NAMES = ("env", "environment", "vf_env", "rubric")
"""Of an environment or rubric that stands in a file as it is."""


def lent(value: Any) -> Any:
    """The rubric that a value is or lends; None for anything else."""
    rubric = value if is_rubric(value) else getattr(value, "rubric", None)
    return rubric if is_rubric(rubric) else None


def loaded(name: str, function: Any) -> Any:
    """What a ``load_environment`` returns."""
    try:
        found = function()
    except (Exception, SystemExit) as error:
        raise PluginError(
            f"verifier {name!r}: {LOADER}() failed: {type(error).__name__}: {error}. It is called without arguments: "
            "where it needs some, make the environment in a file of your own, and refer to it as ./file.py:env."
        ) from error
    if lent(found) is None:
        raise KeywordError(
            f"verifier {name!r}: {LOADER}() returned {type(found).__name__}, expected an environment with a rubric, of "
            "Prime Intellect's verifiers package up to 0.1."
        )
    return found


def named_environment(name: str, base: Path | None) -> Any:
    """The environment that a file or an installed module holds; None where ``name`` is neither."""
    if name.endswith(".py"):
        module = load_plugin(name, base)
    else:
        spelled = name.rpartition("/")[2].replace("-", "_")
        if not spelled.isidentifier() or not _declares(spelled):
            return None
        module = load_plugin(spelled)
    if callable(loader := getattr(module, LOADER, None)):
        return loaded(name, loader)
    for attribute in _NAMES:
        if lent(found := getattr(module, attribute, None)) is not None:
            return found
    public = [key for key, value in vars(module).items() if not key.startswith("_") and callable(value)]
    raise PluginError(
        f"verifier {name!r} is a file without {LOADER} and without an environment: name what judges, as in "
        f"{name}:{public[-1] if public else 'my_check'}."
    )


def _declares(module: str) -> bool:
    """Whether a module can be found, and its source has the loader; nothing is imported for it."""
    try:
        spec = importlib.util.find_spec(module)
        source = Path(spec.origin).read_text(encoding="utf-8") if spec and spec.origin else ""
    except (ImportError, ValueError, OSError):  # ValueError: half a module, or no text
        return False
    return LOADER in source


def of_loader(name: str, value: Any) -> Any:
    """What a reference to ``load_environment`` means: what that returns; other values as they are."""
    return loaded(name, value) if name.rpartition(":")[2] == LOADER and callable(value) else value
