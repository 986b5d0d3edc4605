"""The one registry: built-ins by lazy path, decorators, entry points and references, with one error out.

A name resolves in this order: a built-in (``"module:attr"``, imported on first use), something registered by a
decorator, an installed entry point, or a reference (``package.module:attr`` or ``./file.py:attr``).
"""

import hashlib
import importlib
import importlib.util
import inspect
import re
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, TypeVar

from grpo_verifiers.errors import DuplicateNameError, PluginError, UnknownNameError
from grpo_verifiers.errors.frames import note_plugin
from grpo_verifiers.errors.messages import unknown

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

T = TypeVar("T")
SourceKind = Literal["built-in", "registered", "entry point", "reference"]

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*\Z")
_import_lock = threading.RLock()


@dataclass(frozen=True)
class RegistryEntry:
    """A name of a registry and its source."""

    name: str
    way: SourceKind
    source: str


@dataclass
class _Registration(Generic[T]):
    value: T
    source: str


def source_of(value: object) -> str:
    """``file:line`` of a function or class, as far as Python knows it."""
    target = inspect.unwrap(value) if callable(value) else value
    try:
        file = inspect.getsourcefile(target)  # type: ignore[arg-type]  # a TypeError is the answer for other objects
        line = inspect.getsourcelines(target)[1]  # type: ignore[arg-type]  # same
    except (TypeError, OSError):
        return f"{getattr(target, '__module__', '?')}:{getattr(target, '__qualname__', type(target).__name__)}"
    return f"{file}:{line}"


def is_reference(name: str) -> bool:
    """True for a reference (``module:attr``, ``./file.py:attr``), False for a plain name and for an address."""
    return ":" in name and "://" not in name


def load_plugin(reference: str, base: Path | str | None = None) -> ModuleType:
    """Import a plug-in module, by dotted name or by path to a ``.py`` file (from ``base`` or the working directory)."""
    with _import_lock:
        if reference.endswith(".py"):
            return _load_file(reference, base)
        if not reference or not all(part.isidentifier() for part in reference.split(".")):
            raise PluginError(
                f"{reference!r} is not a plug-in: expected a dotted module name (package.module) or a path to a "
                "Python file (./file.py)."
            )
        note_plugin(reference)
        try:
            return importlib.import_module(reference)
        except (Exception, SystemExit) as error:
            raise PluginError(
                f"the plug-in {reference!r} cannot be imported: {_error_text(error)}. Its traceback is "
                "above; if the module is yours, run from its folder, install it, or give its path (./file.py)."
            ) from error


def file_module_name(path: Path) -> str:
    """The module name under which the file of a plug-in is imported: stable, and no clash with real modules."""
    digest = hashlib.sha256(str(path).encode()).hexdigest()[:10]
    return f"grpo_plugin_{re.sub(r'[^0-9A-Za-z_]', '_', path.stem)}_{digest}"


def absolute(path: str, base: Path | str | None) -> Path:
    """The absolute path of a file or folder, from ``base`` or the working directory."""
    return (Path(base or ".") / Path(path).expanduser()).resolve()


def _load_file(reference: str, base: Path | str | None) -> ModuleType:
    path = absolute(reference, base)
    if not path.is_file():
        raise PluginError(f"the plug-in file {reference!r} does not exist: looked at {path}.")
    name = file_module_name(path)
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise PluginError(f"the plug-in file {path} cannot be read as Python.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    note_plugin(name)
    try:
        spec.loader.exec_module(module)
    except BaseException as error:
        del sys.modules[name]
        if not isinstance(error, Exception | SystemExit):
            raise
        raise PluginError(
            f"the plug-in file {path} cannot be imported: {_error_text(error)}. Its traceback is above."
        ) from error
    return module


def import_reference(reference: str, base: Path | str | None = None) -> Any:
    """The object that ``package.module:attr`` or ``./file.py:attr`` names; ``attr`` may be dotted."""
    where, _, attr = reference.rpartition(":")
    if not where or not attr:
        raise PluginError(f"{reference!r} is not a reference: expected package.module:attr or ./file.py:attr.")
    value: Any = load_plugin(where, base)
    for part in attr.split("."):
        try:
            value = getattr(value, part)
        except AttributeError as error:
            public = [name for name in dir(value) if not name.startswith("_")]
            raise PluginError(f"{reference!r}: {unknown('attribute', part, public)}") from error
    return value


class Registry(Generic[T]):
    """Named parts of one kind, from four sources."""

    replacements: ClassVar[int] = 0
    """Number of replaced entries of all registries: an earlier lookup may be out of date."""

    def __init__(
        self,
        kind: str,
        *,
        builtins: Mapping[str, str] | None = None,
        group: str | None = None,
        adopt: Callable[[str, Any], T] | None = None,
    ) -> None:
        """Describe the registry; messages call one entry a ``kind`` ("advantage estimator").

        ``builtins`` maps name to ``"module:attr"``; installed packages register in the entry-point ``group``. ``adopt``
        converts the object of a reference or entry point (such as a plain function) to an entry's type, or raises
        ``TypeError``.
        """
        self.kind = kind
        self.group = group
        self._builtins = dict(builtins or {})
        self._registered: dict[str, _Registration[T]] = {}
        self._resolved: dict[str, T] = {}
        self._adopt = adopt

    def register(self, name: str, value: T, *, source: str | None = None) -> T:
        """Add an entry under a name that nothing else has.

        Registering again from the same place (a notebook cell run twice, a plug-in file imported under another
        name) replaces the entry.

        Raises:
            DuplicateNameError: the name is in use; the message shows both sides.
        """
        if not isinstance(name, str) or not _NAME.match(name):
            raise ValueError(
                f"{name!r} is not a name for {_a(self.kind)}: use letters, digits, '_', '-' and '.', starting with a "
                "letter (a ':' would make it a reference)."
            )
        source = source or source_of(value)
        before = self._registered.get(name)
        owner = ""
        if name in self._builtins:
            owner = f"built in as {self._builtins[name]}"
        elif before is not None and not _same_definition(before, value, source):
            owner = f"registered at {before.source}"
        elif (point := self._entry_points().get(name)) is not None and point.module != getattr(
            getattr(value, "fn", value), "__module__", None
        ):
            owner = f"entry point {point.value} of {_distribution(point)}"
        if owner:
            raise DuplicateNameError(
                f"the {self.kind} {name!r} exists already: {owner}, registered again at {source}. Choose another name."
            )
        Registry.replacements += before is not None
        self._registered[name] = _Registration(value, source)
        self._resolved.pop(name, None)
        return value

    def unregister(self, name: str) -> None:
        """Remove an entry of a decorator, as tests and notebooks need."""
        self._registered.pop(name, None)
        self._resolved.pop(name, None)

    def get(self, name: str, *, base: Path | str | None = None) -> T:
        """The entry of that name, importing it if need be.

        Raises:
            UnknownNameError: the name does not exist; lists all names and the nearest match.
            PluginError: it exists, but cannot be imported.
        """
        if not isinstance(name, str):
            raise UnknownNameError(
                f"{_a(self.kind)} is chosen by name (a string), not {type(name).__name__}: {name!r}. "
                f"There is: {', '.join(self.names())}."
            )
        if name in self._registered:
            return self._registered[name].value
        if name in self._resolved:
            return self._resolved[name]
        points = self._entry_points()  # first of all: an installed package may claim a built-in's name
        if name in self._builtins:
            value = self._convert(name, import_reference(self._builtins[name]))
        elif name in points:
            value = self._load_entry_point(name, points[name])
        elif is_reference(name):
            # Never cached by name: a relative path means another file from another folder.
            return self._convert(name, import_reference(name, base))
        else:
            message = unknown(self.kind, name, self.names())
            raise UnknownNameError(
                f"{message} To use your own, register it in a plug-in, or refer to it as package.module:attr or "
                "./file.py:attr."
            )
        self._resolved[name] = value
        return value

    def __contains__(self, name: object) -> bool:
        return name in self._builtins or name in self._registered or name in self._entry_points()

    def __iter__(self) -> Iterator[str]:
        return iter(self.names())

    def names(self) -> list[str]:
        """Every name there is, sorted."""
        return sorted({*self._builtins, *self._registered, *self._entry_points()})

    def way(self, name: str) -> SourceKind:
        """The kind of source of a name."""
        if name in self._registered:
            return "registered"
        if name in self._builtins:
            return "built-in"
        return "entry point" if name in self._entry_points() else "reference"

    def entries(self) -> list[RegistryEntry]:
        """Every name and where it came from, sorted by name."""
        points = {name: f"{point.value} ({_distribution(point)})" for name, point in self._entry_points().items()}
        sources = points | self._builtins | {name: entry.source for name, entry in self._registered.items()}
        return [RegistryEntry(name, self.way(name), source) for name, source in sorted(sources.items())]

    def registered(self) -> list[T]:
        """The entries from decorators."""
        return [entry.value for entry in self._registered.values()]

    def resolve(self, part: Any, base: Path | str | None = None) -> T:
        """The entry for a name or a function: its registered entry, or a new one."""
        if isinstance(part, str) or not callable(part):
            return self.get(part, base=base)
        return self._convert(getattr(part, "__qualname__", type(part).__name__), part)

    def _load_entry_point(self, name: str, point: "EntryPoint") -> T:
        note_plugin(point.module)
        try:
            value = point.load()
        except (Exception, SystemExit) as error:
            raise PluginError(
                f"the {self.kind} {name!r} of the installed package {_distribution(point)} ({point.value}) cannot be "
                f"imported: {_error_text(error)}. Its traceback is above; repair or uninstall the package."
            ) from error
        if name in self._registered:  # importing the module ran its decorator
            return self._registered[name].value
        return self._convert(name, value)

    def _convert(self, name: str, value: Any) -> T:
        for entry in self._registered.values():
            if entry.value is value or getattr(entry.value, "fn", entry) is value:
                return entry.value
        return self._adopt(name, value) if self._adopt else value

    def _entry_points(self) -> "dict[str, EntryPoint]":
        if self.group is None:
            return {}
        from importlib.metadata import entry_points

        points: dict[str, EntryPoint] = {}
        for point in entry_points(group=self.group):
            other = points.get(point.name)
            clash = self._builtins.get(point.name)
            if clash is not None:
                raise DuplicateNameError(
                    f"the {self.kind} {point.name!r} exists already: built in as {clash}, and again as entry point "
                    f"{point.value} of {_distribution(point)}. Uninstall that package or rename its entry point."
                )
            if other is not None and other.value != point.value:
                raise DuplicateNameError(
                    f"two installed packages give the {self.kind} {point.name!r}: {other.value} of "
                    f"{_distribution(other)} and {point.value} of {_distribution(point)}. Uninstall one of them."
                )
            points[point.name] = point
        return points


def part_of_function(fn: Any, kind: type[T]) -> T | None:
    """The ``kind`` object of a function in the function's own module, where the module defines one; else None."""
    module = sys.modules.get(getattr(fn, "__module__", None) or "")
    parts = vars(module).values() if module else ()
    return next((part for part in parts if isinstance(part, kind) and getattr(part, "fn", None) is fn), None)


def _same_definition(before: _Registration[Any], value: object, source: str) -> bool:
    """True where the same definition registers its name again, perhaps edited."""
    old, new = (getattr(part, "fn", part) for part in (before.value, value))
    same_name = getattr(old, "__qualname__", None) == getattr(new, "__qualname__", None)
    same_module = getattr(old, "__module__", None) == getattr(new, "__module__", None)
    same_file = before.source.rpartition(":")[0] == source.rpartition(":")[0]
    return same_name and (same_module or same_file)


def _error_text(error: BaseException) -> str:
    ends = " (it ends the program)" if isinstance(error, SystemExit) else ""
    return f"{type(error).__name__}: {error}{ends}".rstrip(".")


def _a(kind: str) -> str:
    return f"an {kind}" if kind[0] in "aeiou" else f"a {kind}"


def _distribution(point: "EntryPoint") -> str:
    return f"{point.dist.name} {point.dist.version}" if point.dist else "an unnamed distribution"
