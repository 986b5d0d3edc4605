"""Where relative paths of a config start from: the folder of the YAML file they stand in."""

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

_folder: ContextVar[Path | None] = ContextVar("grpo_plus_config_folder", default=None)


@contextmanager
def anchored(folder: Path) -> Iterator[None]:
    """Resolve relative plug-in paths against ``folder`` inside the block."""
    token = _folder.set(folder.resolve())
    try:
        yield
    finally:
        _folder.reset(token)


def config_folder() -> Path:
    """The folder of the config file being read, else the working directory.

    A script that parses its own arguments with ``TrlParser`` names the file in ``--config``.
    """
    folder = _folder.get()
    if folder is not None:
        return folder
    arguments = sys.argv[1:]
    for position, argument in enumerate(arguments):
        value = argument.removeprefix("--config=") if argument.startswith("--config=") else None
        if argument == "--config" and position + 1 < len(arguments):
            value = arguments[position + 1]
        if value and Path(value).is_file():
            return Path(value).resolve().parent
    return Path.cwd()


def absolute(reference: str, base: Path | None = None) -> str:
    """A reference whose file path, if it has one, is absolute: it then means the same on every rank and worker."""
    where, colon, attr = reference.partition(".py:")
    path = where + ".py" if colon else reference
    if not path.endswith(".py"):
        return reference
    return str((Path(base or config_folder()) / Path(path).expanduser()).resolve()) + (f":{attr}" if colon else "")


def absolute_pieces(keywords: Mapping[str, Any]) -> dict[str, Any]:
    """An objective's keywords with the references to its pieces made absolute."""
    anchored: dict[str, Any] = dict(keywords)
    for kind in ("ratio", "surrogate", "reduce", "kl"):
        spec = anchored.get(kind)
        key = "estimator" if kind == "kl" else "name"
        if isinstance(spec, str):
            anchored[kind] = absolute(spec)
        elif isinstance(spec, Mapping) and isinstance(spec.get(key), str):
            anchored[kind] = {**spec, key: absolute(spec[key])}
    return anchored
