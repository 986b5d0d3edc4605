"""Packages imported late: public names that wait for their first use (PEP 562), and what is installed at all."""

import importlib.util
from collections.abc import Callable, Mapping
from typing import Any


def installed(package: str) -> bool:
    """Whether there is such a package to import; a plain folder of the same name beside the script is none."""
    spec = importlib.util.find_spec(package)
    return spec is not None and spec.origin is not None


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
