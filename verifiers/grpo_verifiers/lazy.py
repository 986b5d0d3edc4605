"""Public names that are imported on first use (PEP 562), and a test for installed packages."""

import importlib.util
from collections.abc import Callable, Mapping
from typing import Any


def installed(package: str) -> bool:
    """True if a package can be imported; a plain folder of the same name does not count."""
    spec = importlib.util.find_spec(package)
    return spec is not None and spec.origin is not None


def lazy_names(
    package: str, where: Mapping[str, str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """A package's ``__getattr__``, ``__dir__`` and ``__all__``, from its modules and the names that each holds."""
    modules = {name: f"{package}.{module}" for module, names in where.items() for name in names.split()}

    def __getattr__(name: str) -> Any:  # noqa: N807 - becomes the module's own hook
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(modules[name]), name)
        setattr(importlib.import_module(package), name, value)
        return value

    return __getattr__, lambda: sorted(modules), sorted(modules)
