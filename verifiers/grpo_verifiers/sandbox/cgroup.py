"""The kernel's bound on the memory of a box: a memory cgroup for each box, if the machine allows one.

It counts memory that is invisible from outside: shared memory that is in no page table, bytes that wait in sockets and
pipes, page tables, files in memory. The zygote is moved there when it is ready, so programs start in it. Nothing is
moved later, which takes the kernel milliseconds.
"""

import contextlib
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path

from grpo_verifiers.sandbox.children import off_stdio
from grpo_verifiers.sandbox.leftovers import OwnFolder

VARIABLE = "GRPO_VERIFIERS_CGROUP"
"""``off`` for none, or the folder of a delegated cgroup to create cgroups in; unset, it is searched for."""

_KERNEL = 32 << 20
"""Bytes on top of a program's: its own copies of the zygote's pages, page tables, descriptors."""
_CLOSING_SECONDS = 2.0


class Cgroup:
    """The cgroup of one box: a folder of the memory controller, and of the process controller if available."""

    def __init__(self, kind: str, folders: list[OwnFolder], events: str) -> None:
        self.kind = kind
        self._folders = folders
        self._memory = folders[0].path
        self._bounds = (0, 0)
        self._events = off_stdio(os.open(f"{self._memory}/{events}", os.O_RDONLY | os.O_CLOEXEC))
        self._killed = self._kills()
        self.counts_processes = Path(folders[-1].path, "pids.max").exists()

    def enter(self, pid: int) -> None:
        """Add a process and its future children; OSError if the kernel refuses."""
        for folder in self._folders:
            _write(f"{folder.path}/cgroup.procs", str(pid))

    def bound(self, memory: int, processes: int) -> None:
        """Set the bounds of programs from now on: bytes and processes; OSError if the kernel refuses."""
        self._killed = self._kills()
        if self._bounds == (memory, processes):
            return
        total = str(memory + _KERNEL)
        if self.kind == "v2":
            _write(f"{self._memory}/memory.max", total)
            with contextlib.suppress(FileNotFoundError):
                _write(f"{self._memory}/memory.swap.max", "0")
        else:
            # Memory with swap is never bounded below memory alone, so the order of the two depends on both values.
            swap = f"{self._memory}/memory.memsw.limit_in_bytes"
            with contextlib.suppress(OSError):
                _write(swap, total)
            _write(f"{self._memory}/memory.limit_in_bytes", total)
            with contextlib.suppress(FileNotFoundError):
                _write(swap, total)
        if self.counts_processes:
            # The zygote counts, and the process that it forks to end a program.
            _write(f"{self._folders[-1].path}/pids.max", str(processes + 2))
        self._bounds = (memory, processes)

    def has_overflowed(self) -> bool:
        """True if the kernel killed for memory since the bound was set."""
        return self._kills() > self._killed

    def _kills(self) -> int:
        match = re.search(rb"^oom_kill (\d+)$", os.pread(self._events, 4096, 0), re.MULTILINE)
        return int(match[1]) if match else 0

    def close(self) -> None:
        """Remove it after the end of its processes. Safe to repeat."""
        if self._events >= 0:
            os.close(self._events)
            self._events = -1
        until = time.monotonic() + _CLOSING_SECONDS
        while self._folders:
            try:
                os.rmdir(self._folders[-1].path)  # noqa: PTH106 - it is not empty, but for the kernel
            except FileNotFoundError:
                pass
            except OSError:
                if time.monotonic() < until:
                    time.sleep(0.002)
                    continue
            self._folders.pop().release()


def make() -> Cgroup | None:
    """Create a cgroup for a box; None if that is impossible or switched off.

    OSError if ``GRPO_VERIFIERS_CGROUP`` names a folder in which that is impossible.
    """
    setting = os.environ.get(VARIABLE, "")
    if setting == "off":
        return None
    if setting:
        try:
            return _create_in([setting])
        except OSError as error:
            raise OSError(f"{VARIABLE} is {setting!r}, and no cgroup can be created there: {error}") from error
    for places in _places():
        with contextlib.suppress(OSError):
            return _create_in(places)
    return None


def _create_in(places: list[str]) -> Cgroup:
    """A cgroup with a folder in each of these places, the memory controller's first."""
    folders: list[OwnFolder] = []
    try:
        folders += [OwnFolder(place, "grpo-box.") for place in places]
        kind, events = _kind(folders[0].path)
        return Cgroup(kind, folders, events)
    except BaseException:
        for folder in folders:
            with contextlib.suppress(OSError):
                os.rmdir(folder.path)  # noqa: PTH106 - as above
            folder.release()
        raise


def _kind(folder: str) -> tuple[str, str]:
    """Version of a memory cgroup, and the file that counts the killed processes."""
    for kind, limit, events in (
        ("v2", "memory.max", "memory.events"),
        ("v1", "memory.limit_in_bytes", "memory.oom_control"),
    ):
        if Path(folder, limit).exists():
            return kind, events
    raise OSError(f"{Path(folder).parent} does not delegate the memory controller (see its cgroup.subtree_control)")


def _places() -> Iterator[list[str]]:
    """Folders for a new cgroup, the best first: of the memory controller and of the one of processes."""
    mounts = list(_mounts())
    own = _own_paths()
    for point, root, controllers in mounts:
        if controllers is None and "" in own and (place := _place(point, root, own[""])):
            # A cgroup with processes delegates nothing, except the root: use its parent if that is delegated to us.
            parent = os.path.dirname(place)  # noqa: PTH120 - text
            yield from (
                [each] for each in (place, parent)[: 1 + (place != point)] if _delegates(each, top=each == point)
            )
    places = {
        name: place
        for name in ("memory", "pids")
        for point, root, controllers in mounts
        if controllers and name in controllers and name in own and (place := _place(point, root, own[name]))
    }
    if "memory" in places:
        if "pids" in places:
            yield [places["memory"], places["pids"]]
        yield [places["memory"]]


def _delegates(place: str, *, top: bool) -> bool:
    """True if children of a cgroup (version 2) have the memory controller; it is enabled for the topmost."""
    enabled: list[str] = []
    with contextlib.suppress(OSError):
        enabled = Path(place, "cgroup.subtree_control").read_text(encoding="ascii").split()
        offered = Path(place, "cgroup.controllers").read_text(encoding="ascii").split()
        for name in ("pids", "memory") if top else ():
            if name in offered and name not in enabled:
                _write(f"{place}/cgroup.subtree_control", f"+{name}")
                enabled.append(name)
    return "memory" in enabled


def _mounts() -> Iterator[tuple[str, str, list[str] | None]]:
    """Mount point, root and controllers of each hierarchy; no list of controllers for the one of version 2."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="surrogateescape").splitlines():
            first, _, last = line.partition(" - ")
            kind, _, options = last.split(" ", 2)
            if kind in {"cgroup", "cgroup2"}:
                root, point = first.split(" ")[3:5]
                yield point, root, None if kind == "cgroup2" else options.split(",")


def _own_paths() -> dict[str, str]:
    """The cgroup of this process by controller; that of version 2 under an empty name."""
    paths: dict[str, str] = {}
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text(encoding="utf-8", errors="surrogateescape").splitlines():
            _, names, path = line.split(":", 2)
            paths.update(dict.fromkeys(names.split(","), path))
    return paths


def _place(point: str, root: str, path: str) -> str:
    """The folder of a cgroup; empty if it is outside of the mount."""
    if root != "/" and path == root:
        path = "/"
    elif root != "/" and path.startswith(f"{root}/"):
        path = path[len(root) :]
    place = point if path == "/" else point + path
    return place if ".." not in path.split("/") and os.access(place, os.W_OK) else ""


def _write(path: str, text: str) -> None:
    """Write in one call: a kernel file takes no second piece and must exist already."""
    file = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(file, text.encode())
    finally:
        os.close(file)
