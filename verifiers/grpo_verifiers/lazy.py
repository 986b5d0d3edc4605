"""Lazy public names (PEP 562): importing a package costs nothing until one of its names is used."""

import importlib
from collections.abc import Callable, Mapping
from typing import Any


def lazy_names(package: str, where: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Build a package's ``__getattr__`` and ``__dir__`` from a mapping of public name to module."""

    def __getattr__(name: str) -> Any:  # noqa: N807 - becomes the module's own hook
        if name not in where:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(where[name]), name)
        setattr(importlib.import_module(package), name, value)
        return value

    def __dir__() -> list[str]:  # noqa: N807 - becomes the module's own hook
        return sorted(where)

    return __getattr__, __dir__
