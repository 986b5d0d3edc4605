"""The parent's side of a box: one zygote process at a level of confinement, which forks programs on request."""

import contextlib
import fcntl
import json
import os
import secrets
import select
import shutil
import socket
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Literal

from grpo_verifiers.sandbox import cgroup
from grpo_verifiers.sandbox.children import end_process, off_stdio, socket_pair
from grpo_verifiers.sandbox.inside import proc
from grpo_verifiers.sandbox.inside.wipe import wipe
from grpo_verifiers.sandbox.leftovers import MARK, OwnFolder

Level = Literal["full", "process", "none"]

START_SECONDS = 60.0
_FOLDER = Path(__file__).resolve().parent
_SYSTEM = (
    *("/usr/bin", "/usr/lib", "/usr/lib32", "/usr/lib64", "/usr/libexec", "/lib", "/lib32", "/lib64", "/bin"),
    *("/usr/share/zoneinfo", "/usr/share/perl", "/usr/share/perl5", "/usr/share/awk", "/etc/ld.so.cache"),
)
_LIBRARIES = ("/usr/lib", "/usr/lib64", "/usr/local/lib")
_PACKAGES = ("site-packages", "dist-packages")
_NEEDED = ("*.so*", "*-linux-*", "python3*", "perl5", "locale", "gconv", "gcc", "jvm")
"""Names in ``/usr/lib`` of libraries and languages; applications put their own folders there, too."""
_ALTERNATIVES = "/etc/alternatives"
"""Links on the way to programs of ``/usr/bin``, ``awk`` among them: passed through, and not read."""
_FIRST_UID, _UIDS = 1_900_000_000, 1 << 24
_SMALL_UID, _SMALL_UIDS = 61_184, 4_000
_GUEST = _FOLDER.parent / "code"
"""The folder of the package ``guest``, which serves in the box."""
_BOOT = (
    "import sys; sys.path[:0] = sys.argv[1:3]; import inside.zygote as z, guest.program as g; "
    "del sys.path[:2]; z.main(int(sys.argv[3]), int(sys.argv[4]), g.serve)"
)


class BoxError(Exception):
    """A box failed to start, or broke."""


@dataclass(frozen=True)
class Limits:
    """Bounds of one run.

    Attributes:
        wall: seconds from its start to its end.
        cpu: full seconds of processor time of each process; the wall bounds all of them together.
        memory: bytes of address space of each process, and of memory of all of them together.
        processes: processes and threads at a time.
        files: open files of each process.
        disk: bytes in the private folder, and in one file.
        output: bytes of standard output that are read.
        message: bytes of one answer.
        sent: bytes of all answers together; each question adds a little.
    """

    wall: float = 5.0
    cpu: int = 5
    memory: int = 1 << 30
    processes: int = 32
    files: int = 64
    disk: int = 64 << 20
    output: int = 1 << 20
    message: int = 4 << 20
    sent: int = 16 << 20


@dataclass(frozen=True)
class BoxKind:
    """A level of confinement, and the modules that are imported once, before programs are forked."""

    level: Level
    preload: tuple[str, ...] = ()


class Box:
    """A started zygote; used by one thread at a time."""

    def __init__(self, kind: BoxKind) -> None:
        """Start it and wait until it is ready; BoxError with the reason if it does not start."""
        self.kind = kind
        self.reached: dict[str, str] = {}
        self.zygote = 0
        """The process that forks programs: ``pid`` itself, or, at level full, a process below it."""
        self._runs = 0
        self._uid_lock, uid = _claim_uid()
        self._own = None if kind.level == "full" else OwnFolder(tempfile.gettempdir(), "grpo-box.")
        self.folder = self._own.path if self._own else ""
        """Holds the private folders of its programs; empty if the kernel bounds those."""
        self._process: subprocess.Popen[bytes] | None = None
        self.cgroup: cgroup.Cgroup | None = None
        self.control, theirs = socket_pair(socket.SOCK_SEQPACKET)
        try:
            self._start(theirs, uid)
            self._bound()
        except BaseException:
            self.close()
            raise
        finally:
            theirs.close()

    def _start(self, theirs: socket.socket, uid: int | None) -> None:
        if self.folder and uid is not None:
            os.chmod(self.folder, 0o711 | MARK)  # noqa: PTH101, S103 - programs of another user pass through it
        folders = (sysconfig.get_path("purelib"), sysconfig.get_path("platlib")) if self.kind.preload else ()
        packages = [os.path.realpath(path) for path in folders]  # the box has no links
        readable = _outermost([*_SYSTEM, *_python(), *packages])
        read, listed = _without_packages(_outermost([*_SYSTEM, *_python()]))
        me = off_stdio(os.pidfd_open(os.getpid()))
        # Folders of the packages ``inside`` and ``guest``, as the zygote sees them.
        folders = ("/box", "/box") if self.kind.level == "full" else (str(_FOLDER), str(_GUEST))
        python = [os.path.realpath(sys.executable), *("-I", "-S", "-B", "-X", "utf8", "-c", _BOOT)]
        with tempfile.TemporaryFile() as log:
            try:
                self._process = subprocess.Popen(  # noqa: S603 - our own module
                    [*self._wrapping(readable), *python, *folders, str(theirs.fileno()), str(me)],
                    stdin=subprocess.DEVNULL,
                    stdout=me,  # it has no position, like a program's pipe: the interpreter looks once, as it starts
                    stderr=log,
                    env={
                        "PATH": "/usr/bin:/bin",
                        "LANG": "C.UTF-8",
                        "PYTHONHASHSEED": "0",
                        "PYTHONDONTWRITEBYTECODE": "1",
                        # Each further one reserves 64 MiB of a program's address space for a thread.
                        "MALLOC_ARENA_MAX": "1",
                        **dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"),
                    },
                    cwd="/",
                    pass_fds=(theirs.fileno(), me),
                    start_new_session=True,
                )
                theirs.close()
                plan = {
                    "level": self.kind.level,
                    "uid": uid,
                    "read": read,
                    "list": [*listed, *packages],
                    "tmp": self.folder,
                    "path": list(dict.fromkeys(packages)),
                    "preload": self.kind.preload,
                }
                with contextlib.suppress(OSError):  # it died already: the answer below has the reason
                    self.control.send(json.dumps(plan).encode())
                answer = self.hear(START_SECONDS)
            finally:
                os.close(me)
            if answer is None or "ready" not in answer:
                log.seek(0)
                log_text = log.read(4000).decode("utf-8", "replace").strip().replace("\n", " | ")
                why = (answer or {}).get("failed") or log_text or f"no answer within {START_SECONDS:g} s"
                raise BoxError(why)
            self.reached = dict(answer["ready"])
            self.zygote = next((pid for pid in proc.descendants(self.pid) if not proc.descendants(pid)), self.pid)

    def _bound(self) -> None:
        """Bound the memory of programs by a cgroup if possible; else poll it."""
        try:
            self.cgroup = cgroup.make()
        except OSError as error:
            raise BoxError(f"no cgroup for the box: {error}") from error
        if self.cgroup is not None:
            try:
                self.cgroup.enter(self.zygote)
            except OSError:
                self.cgroup.close()
                self.cgroup = None
        self.reached["memory"] = f"cgroup {self.cgroup.kind}" if self.cgroup else "polled"

    def _wrapping(self, readable: Sequence[str]) -> list[str]:
        """The command line of bubblewrap, up to the program."""
        if self.kind.level != "full":
            return []
        bwrap = shutil.which("bwrap")
        if bwrap is None:
            raise BoxError("bubblewrap is not installed (no bwrap on the PATH)")
        # Folders that bubblewrap makes on the way to a mount are closed to other users unless made first.
        above = {str(parent): None for path in readable for parent in reversed(Path(path).parents[:-1])}
        binds = [part for path in above for part in ("--perms", "0755", "--dir", path)]
        binds += [part for path in readable for part in ("--ro-bind-try", path, path)]
        links = [path for path in _SYSTEM if os.path.islink(path)]  # noqa: PTH114 - strings
        binds += [part for path in links for part in ("--symlink", os.path.realpath(path), path)]
        binds += ["--ro-bind-try", _ALTERNATIVES, _ALTERNATIVES]
        root = ["--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"] if os.geteuid() == 0 else []
        return [
            bwrap,
            *("--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try"),
            *("--hostname", "box", *root, "--proc", "/proc", "--dev", "/dev", "--remount-ro", "/dev", *binds),
            *("--perms", "0755", "--dir", "/box", "--dir", "/box/tmp", "--dir", "/box/tmp/own"),
            *("--ro-bind", str(_FOLDER / "inside"), "/box/inside", "--ro-bind", str(_GUEST / "guest"), "/box/guest"),
            # Without a process of bubblewrap's own in between, which this process could not reap.
            *("--remount-ro", "/", "--chdir", "/", "--as-pid-1", "--"),
        ]

    @property
    def pid(self) -> int:
        """Process id of the started process."""
        return self._process.pid if self._process else 0

    def start(self, limits: Limits, roles: dict[str, int]) -> int:
        """Ask for a program and return its number; BoxError if the zygote has ended.

        ``roles`` has its descriptors by their roles: ``channel``, ``setup``, and optionally ``stdin`` and ``stdout``.
        """
        self._runs += 1
        if self.cgroup is not None:
            try:
                self.cgroup.bound(limits.memory + limits.disk, limits.processes)
            except OSError as error:
                raise BoxError(f"the kernel refused the memory bound: {error}") from error
        job = {"run": self._runs, "fds": list(roles), **vars(limits)}
        try:
            socket.send_fds(self.control, [json.dumps(job).encode()], list(roles.values()))
        except OSError as error:
            raise BoxError(f"the zygote has ended ({error})") from error
        return self._runs

    def stop(self, run: int) -> None:
        """Ask for the end of a program; it may have ended already."""
        with contextlib.suppress(OSError):
            self.control.send(json.dumps({"stop": run}).encode())

    def hear(self, timeout: float) -> dict[str, Any] | None:
        """The zygote's next message; None if it has ended or is silent. No program can write it."""
        if not select.select([self.control], [], [], timeout)[0]:
            return None
        try:
            message = self.control.recv(1 << 16)
        except OSError:
            return None
        return json.loads(message) if message else None

    def close(self) -> None:
        """End and reap the zygote with all its descendants, and remove its folders. Safe to repeat."""
        self.control.close()
        if self._process is not None:
            end_process(self._process, 0.5)  # it sees the connection end, and ends its program first
            self._process = None
        if self.cgroup is not None:
            self.cgroup.close()
            self.cgroup = None
        if self._own:
            with contextlib.suppress(OSError):
                wipe(self.folder)
            self._own.release()
            self.folder = ""
        if self._uid_lock is not None:
            self._uid_lock.close()


def _outermost(paths: Sequence[str]) -> list[str]:
    """Resolved paths without nested ones: each path costs every program a rule and a mount."""
    real = dict.fromkeys(os.path.realpath(path) for path in paths)
    return [path for path in real if not any(str(parent) in real for parent in Path(path).parents)]


def _python() -> list[str]:
    """The interpreter, its libraries and the standard library."""
    own = {"base": sys.base_prefix, "platbase": sys.base_exec_prefix}  # not those of a virtual environment
    libraries = [
        os.path.realpath(sys.executable),
        *(sysconfig.get_path(kind, vars=own) for kind in ("stdlib", "platstdlib")),
    ]
    places = {os.path.join(sys.base_prefix, "lib"), "/usr/local/lib"}  # noqa: PTH118 - strings
    return libraries + [str(path) for place in sorted(places) for path in Path(place).glob("*.so*")]


def _without_packages(paths: Sequence[str]) -> tuple[list[str], list[str]]:
    """The contents of these folders without installed packages and applications; and folders to list only."""
    places = [*_LIBRARIES, str(Path(sysconfig.get_path("stdlib")).parent)]
    hidden = {
        str(path.resolve()) for place in places for kind in _PACKAGES for path in Path(place).glob(f"python*/{kind}")
    }
    shared = {os.path.realpath("/usr/lib"), os.path.realpath("/lib")}
    listed: list[str] = []

    def parts(path: str) -> list[str]:
        if path in hidden:
            return []
        if path not in shared and not any(each.startswith(f"{path}/") for each in hidden):
            return [path]
        listed.append(path)
        needed = _NEEDED if path in shared else ("*",)
        names = [name for name in sorted(os.listdir(path)) if any(fnmatchcase(name, each) for each in needed)]  # noqa: PTH208 - strings
        return [part for name in names for part in parts(f"{path}/{name}")]

    return [part for path in paths for part in parts(path)], listed


def _claim_uid() -> tuple[socket.socket | None, int | None]:
    """A user id that only the programs of this box have; None if this process is not root or no id is free."""
    if os.geteuid() != 0:
        return None, None
    try:
        maps = [[int(part) for part in line.split()] for line in Path("/proc/self/uid_map").read_text().splitlines()]
    except (OSError, ValueError):
        return None, None
    for first, count in ((_FIRST_UID, _UIDS), (_SMALL_UID, _SMALL_UIDS)):
        if not any(start <= first and first + count <= start + size for start, _, size in maps):
            continue
        for _ in range(50):
            uid = first + secrets.randbelow(count)
            lock = socket.socket(socket.AF_UNIX)
            try:
                lock.bind(f"\0grpo-box-{uid}")
            except OSError:
                lock.close()
                continue
            fcntl.fcntl(lock, fcntl.F_SETFD, fcntl.FD_CLOEXEC)
            return lock, uid
    return None, None
