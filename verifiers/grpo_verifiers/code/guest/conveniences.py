"""Parts of the standard library that need what a box refuses, rebuilt on what it allows.

Nothing here guards anything: it runs in the program, which may undo it. Semaphores lie in anonymous shared memory and
not in ``/dev/shm``, named shared memory in the program's own folder; both count as its memory and disk. Where signals
are refused, a process of ``multiprocessing`` ends at the word of its parent. Modes and times of files in the program's
folder cannot be changed where Landlock leaves those of other files open: changing them does nothing there.
"""

import ctypes
import errno
import mmap
import os
import sys
import time
import types
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

_CORES = 4
"""As many as programs are told of: a pool with a process for each has to stay within the bound on processes."""
_PERHAPS = ("chmod", "lchmod", "utime")


def install() -> None:
    """Prepare modules as they are imported: programs that import none of them pay nothing."""
    for name, change in _CHANGES.items():
        if name in sys.modules:
            change(sys.modules[name])
    sys.meta_path.insert(0, _Finder())
    if not _may(lambda: os.utime(".")):
        for name in _PERHAPS:
            if hasattr(os, name):
                _forgive(name)
        os.truncate = _truncate


def _may(attempt: Callable[[], Any]) -> bool:
    try:
        attempt()
    except OSError:
        return False
    return True


def _forgive(name: str) -> None:
    """Make a function of ``os`` do nothing to files of the program's folder where it is refused."""
    real = getattr(os, name)

    def quiet(path: Any, *args: Any, **kwargs: Any) -> None:
        try:
            real(path, *args, **kwargs)
        except PermissionError:
            if type(path) is not int:
                folder = os.path.realpath(os.environ.get("HOME", "."))
                if os.path.commonpath([folder, os.path.realpath(os.fsdecode(path))]) != folder:
                    raise
            os.stat(path)  # noqa: PTH116 - no pathlib in the box

    quiet.__name__ = quiet.__qualname__ = name
    setattr(os, name, quiet)
    for each in (os.supports_fd, os.supports_dir_fd, os.supports_follow_symlinks):
        if real in each:
            each.add(quiet)


def _truncate(path: Any, length: int) -> None:
    """``os.truncate`` of a file that may be written."""
    if type(path) is int:
        os.ftruncate(path, length)
        return
    file = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.ftruncate(file, length)
    finally:
        os.close(file)


class _Finder:
    """Finds nothing by itself: what others find is changed once it has been loaded."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: types.ModuleType | None = None) -> Any:
        if name not in _CHANGES:
            return None
        found = (finder.find_spec(name, path, target) for finder in sys.meta_path if finder is not self)
        spec: Any = next((each for each in found if each is not None), None)
        if spec is None or spec.loader is None:
            return spec
        spec.loader = _Loader(spec, spec.loader, _CHANGES[name])
        return spec


class _Loader:
    def __init__(self, spec: Any, loader: Any, change: Callable[[Any], None]) -> None:
        self._spec, self._loader, self._change = spec, loader, change

    def create_module(self, spec: Any) -> Any:
        return self._loader.create_module(spec)

    def exec_module(self, module: types.ModuleType) -> None:
        self._spec.loader = self._loader
        self._loader.exec_module(module)
        self._change(module)


def _has_shared_folder() -> bool:
    return _may(lambda: os.close(os.open("/dev/shm", os.O_TMPFILE | os.O_RDWR, 0o600)))  # noqa: S108 - not ours


def _semaphores(module: Any) -> None:
    if not _has_shared_folder():
        module.SemLock = SemLock
        module.sem_unlink = lambda name: None  # noqa: ARG005 - as it is called
        cores = os.cpu_count() or 1
        os.cpu_count = lambda: min(_CORES, cores)


def _arenas(module: Any) -> None:
    if not _has_shared_folder():
        module.Arena._dir_candidates = []  # noqa: SLF001 - where it looks before the program's folder


def _named_memory(module: Any) -> None:
    if _has_shared_folder():
        return
    from multiprocessing import resource_tracker  # a process of its own, which would wait for names in /dev/shm

    resource_tracker.register = resource_tracker.unregister = lambda name, kind: None  # type: ignore[assignment]  # noqa: ARG005

    def place(name: str) -> str:
        return os.path.join(os.environ.get("TMPDIR", "."), ".shm" + name.replace("/", "-"))  # noqa: PTH118 - no pathlib here

    module.shm_open = lambda path, flags, mode=0o777: os.open(place(path), flags | os.O_CLOEXEC, mode)
    module.shm_unlink = lambda path: os.unlink(place(path))  # noqa: PTH108 - same


def _endings(module: Any) -> None:
    """Have children end at a word of their parent where it may send no signal."""
    if _may(lambda: os.kill(os.getpid(), 0)):
        return
    import threading

    launch, signal = module.Popen._launch, module.Popen._send_signal  # noqa: SLF001 - what starts and ends a child

    def launched(self: Any, process: Any) -> None:
        reading, self.word = os.pipe()
        start = process._bootstrap  # noqa: SLF001 - same

        def begin(*args: Any, **kwargs: Any) -> Any:
            os.close(self.word)
            threading.Thread(target=lambda: os._exit(os.read(reading, 1)[0]), daemon=True).start()
            return start(*args, **kwargs)

        process._bootstrap = begin  # noqa: SLF001 - same
        try:
            launch(self, process)
        finally:
            del process._bootstrap  # noqa: SLF001 - same
            os.close(reading)

    def told(self: Any, number: int) -> None:
        try:
            signal(self, number)
        except PermissionError:
            if self.returncode is None:
                os.write(self.word, bytes([128 + number]))

    module.Popen._launch, module.Popen._send_signal = launched, told  # noqa: SLF001 - same


class _Moment(ctypes.Structure):
    _fields_: ClassVar = [("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long)]


class SemLock:
    """The class of that name of ``_multiprocessing``, over a semaphore that forked processes share."""

    SEM_VALUE_MAX = 2**31 - 1

    def __init__(self, kind: int, value: int, maxvalue: int, name: str, unlink: bool) -> None:
        if value > maxvalue or value < 0:
            raise ValueError("invalid value")
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._memory = mmap.mmap(-1, mmap.PAGESIZE)
        self.handle = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        self._at = ctypes.c_void_p(self.handle)
        self.kind, self.maxvalue, self.name = kind, maxvalue, None if unlink else name
        self._taken, self._owner = 0, (0, 0)
        self._check(self._libc.sem_init(self._at, 1, ctypes.c_uint(value)))

    def _check(self, result: int) -> None:
        if result != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))

    def acquire(self, block: bool = True, timeout: float | None = None) -> bool:
        """Take it, and say whether that was possible."""
        if self.kind == 0 and self._is_mine():
            self._taken += 1
            return True
        end = None if timeout is None else time.time() + max(0.0, timeout)
        while self._take(block, end) != 0:
            number = ctypes.get_errno()
            if number in {errno.EAGAIN, errno.ETIMEDOUT}:
                return False
            if number != errno.EINTR:
                raise OSError(number, os.strerror(number))
        self._taken += 1
        self._owner = _me()
        return True

    def _take(self, block: bool, end: float | None) -> int:
        if not block:
            return int(self._libc.sem_trywait(self._at))
        if end is None:
            return int(self._libc.sem_wait(self._at))
        moment = _Moment(int(end), int(end % 1 * 1e9))
        return int(self._libc.sem_timedwait(self._at, ctypes.byref(moment)))

    def release(self) -> None:
        """Give it back."""
        if self.kind == 0:
            if not self._is_mine():
                raise AssertionError("attempt to release recursive lock not owned by thread")
            if self._taken > 1:
                self._taken -= 1
                return
        elif self._get_value() >= self.maxvalue:
            raise ValueError("semaphore or lock released too many times")
        self._taken -= 1
        self._check(self._libc.sem_post(self._at))

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()

    def _count(self) -> int:
        return self._taken

    def _is_mine(self) -> bool:
        return self._taken > 0 and self._owner == _me()

    def _get_value(self) -> int:
        found = ctypes.c_int()
        self._check(self._libc.sem_getvalue(self._at, ctypes.byref(found)))
        return found.value

    def _is_zero(self) -> bool:
        return self._get_value() == 0

    def _after_fork(self) -> None:
        self._taken = 0

    @staticmethod
    def _rebuild(*_: object) -> Any:
        raise OSError(errno.ENOSYS, "a program's locks reach the processes that it forks; start them with fork")


def _me() -> tuple[int, int]:
    import threading

    return os.getpid(), threading.get_ident()


_CHANGES: dict[str, Callable[[Any], None]] = {
    "_multiprocessing": _semaphores,
    "_posixshmem": _named_memory,
    "multiprocessing.heap": _arenas,
    "multiprocessing.popen_fork": _endings,
}
