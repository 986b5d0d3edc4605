"""The way from a function to a worker, without an import of the user's ``__main__``.

By import reference when a fresh process can import it, by path for a plug-in file, and by value (cloudpickle) for the
rest: closures, notebook cells, unguarded scripts.
"""

import contextlib
import functools
import hashlib
import importlib.machinery
import importlib.util
import os
import site
import sys
import sysconfig
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from grpo_verifiers.errors import VerifierError
from grpo_verifiers.registry import file_module_name, import_reference, load_plugin

MAX_PAYLOAD = 64 << 20
_FILE_MODULE = file_module_name(Path("x")).partition("x")[0]
_by_value = threading.RLock()  # a function may hold a verifier, whose pickle has bytes of its own


@dataclass(frozen=True)
class CheckSpec:
    """One check function and the kind of its workers.

    Attributes:
        target: ``module:attr`` or ``/path/file.py:attr``; empty when the function travels by value.
        payload: the function by value.
        plugins: modules that a worker imports first, so that their decorators run there too.
        confined: the worker gives up network, writable files and privileges (built-ins only).
        memory: address space of one worker in bytes; None leaves it unlimited.
        env: names of environment variables that reach the worker although they look like secrets.
        boxes: concurrent calls of an async check that waits for its own boxes and runs outside of workers; 0 for any
            other.
    """

    target: str = ""
    payload: bytes = field(default=b"", repr=False)
    plugins: tuple[str, ...] = ()
    confined: bool = False
    memory: int | None = None
    env: tuple[str, ...] = ()
    boxes: int = 0

    @functools.cached_property
    def key(self) -> str:
        """The function's key in a worker's table."""
        text = "\0".join((self.target, *self.plugins)).encode() + b"\0" + self.payload
        return hashlib.sha256(text).hexdigest()

    @property
    def identity(self) -> str:
        """The key of the function together with how it runs."""
        return f"{self.key} {self.confined} {self.memory} {self.boxes} {' '.join(self.env)}"

    def load(self) -> Callable[..., Any]:
        """Import or rebuild the function; runs in a worker, or where a pickled verifier is loaded."""
        for plugin in self.plugins:
            load_plugin(plugin)
        if self.payload:
            import cloudpickle

            value = cloudpickle.loads(self.payload)
        else:
            value = import_reference(self.target)
        fn: Callable[..., Any] = getattr(value, "fn", value)  # a decorated function's name holds its verifier
        return fn


def reference_to(fn: Any) -> str | None:
    """The import path of ``fn`` in a fresh process: ``module:attr`` or ``/path/file.py:attr``, else None."""
    module, name = getattr(fn, "__module__", None), getattr(fn, "__qualname__", None)
    home = sys.modules.get(module) if isinstance(module, str) else None
    if home is None or module == "__main__" or not isinstance(name, str) or "<" in name or not _holds(home, name, fn):
        return None
    if home.__name__.startswith(_FILE_MODULE) and home.__file__:
        return f"{Path(home.__file__).resolve()}:{name}"
    return f"{home.__name__}:{name}" if _importable(home) else None


def _holds(module: ModuleType, name: str, fn: Any) -> bool:
    value: Any = module
    for part in name.split("."):
        value = getattr(value, part, None)
    return value is fn or (value is not None and getattr(value, "fn", None) is fn)


def _importable(module: ModuleType) -> bool:
    """True if a fresh process imports the same file under that name: test runners make up module names."""
    path: Any = None
    spec: importlib.machinery.ModuleSpec | None = None
    parts = module.__name__.split(".")
    for end in range(1, len(parts) + 1):
        spec = _find(".".join(parts[:end]), path)
        if spec is None:
            return False
        path = spec.submodule_search_locations
    file = getattr(module, "__file__", None)
    return spec is not None and (file is None or (spec.origin is not None and _same(spec.origin, file)))


def _find(name: str, path: Any) -> importlib.machinery.ModuleSpec | None:
    looks = filter(None, (getattr(finder, "find_spec", None) for finder in sys.meta_path))
    return next((spec for look in looks if (spec := look(name, path)) is not None), None)


def _same(one: str, other: str) -> bool:
    return one == other or (Path(one).exists() and Path(other).exists() and os.path.samefile(one, other))  # noqa: PTH121


def by_value(fn: Any, along: Sequence[ModuleType] = ()) -> bytes:
    """The function as bytes that a process without its script, its notebook or the modules ``along`` can load."""
    import cloudpickle

    module = sys.modules.get(getattr(fn, "__module__", None) or "")
    # Plug-in files and modules with invented names do not exist in a worker: they are pickled with the function.
    registered = {each.__name__: each for each in along}
    registered |= {name: each for name, each in list(sys.modules.items()) if name.startswith(_FILE_MODULE)}
    if module is not None and module.__name__ != "__main__" and not _importable(module):
        registered[module.__name__] = module
    with _by_value, contextlib.ExitStack() as afterwards:
        try:
            for name in registered.keys() - cloudpickle.list_registry_pickle_by_value():  # keep the user's own
                cloudpickle.register_pickle_by_value(registered[name])
                afterwards.callback(cloudpickle.unregister_pickle_by_value, registered[name])
            payload: bytes = cloudpickle.dumps(fn)
        except Exception as error:
            raise VerifierError(
                f"the function {_name(fn)} cannot be sent to a worker process: {type(error).__name__}: {error}. It "
                "holds an object that exists in this process only (a lock, a socket, an open file): create that inside "
                'the function, or choose isolation="inline".'
            ) from error
    if len(payload) > MAX_PAYLOAD:
        raise VerifierError(
            f"the function {_name(fn)} carries {len(payload) >> 20} MiB (at most {MAX_PAYLOAD >> 20}): a closure "
            "or global holds large data. Load it inside the function, or put the function into a module."
        )
    return payload


def make_spec(
    fn: Callable[..., Any],
    *,
    confined: bool = False,
    memory: int | None = None,
    env: Sequence[str] = (),
    plugins: Sequence[str] = (),
    boxes: int = 0,
    elsewhere: bool = False,
) -> CheckSpec:
    """Describe ``fn`` for a worker.

    A worker ``elsewhere``, on a machine with only the installed packages, gets all other code by value: the function
    with the modules of its own package or folder.
    """
    target = reference_to(fn)
    if elsewhere:
        plugins = [name for name in plugins if _installed(sys.modules.get(name))]
        if not _installed(sys.modules.get(getattr(fn, "__module__", None) or "")):
            target = None
    payload = b"" if target else by_value(fn, along=_neighbours(fn) if elsewhere else ())
    return CheckSpec(target or "", payload, tuple(plugins), confined, memory, tuple(env), boxes)


def _installed(module: ModuleType | None) -> bool:
    """True if every machine with the same packages has this module."""
    file = getattr(module, "__file__", None)
    if module is None or file is None:
        return module is not None and module.__name__ in sys.builtin_module_names
    here = Path(file).resolve()
    homes = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    homes |= {*site.getsitepackages(), site.getusersitepackages(), str(Path(__file__).parents[1])}
    return any(here.is_relative_to(Path(home).resolve()) for home in homes)


def _neighbours(fn: Any) -> list[ModuleType]:
    """Modules near a function that its module may import and that are not installed: its package, or its folder."""
    own = sys.modules.get(getattr(fn, "__module__", None) or "")
    if own is None or not getattr(own, "__file__", None) or own.__name__ == "__main__":
        return []
    top, folder = own.__name__.partition(".")[0], Path(own.__file__ or "").resolve().parent
    if "." in own.__name__ or hasattr(own, "__path__"):
        return [sys.modules[top]] if top in sys.modules else [own]
    files = [(each, getattr(each, "__file__", None)) for each in list(sys.modules.values())]
    siblings = [each for each, file in files if file and Path(file).resolve().parent == folder and not _installed(each)]
    return [each for each in siblings if each.__name__ != "__main__" and sys.modules.get(each.__name__) is each]


def _name(fn: Any) -> str:
    return repr(getattr(fn, "__qualname__", type(fn).__name__))
