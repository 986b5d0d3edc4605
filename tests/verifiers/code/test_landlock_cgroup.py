"""What the kernel lets a worker and a program do to files and sockets, and where a cgroup may be made."""

import gc
import json
import os
import socket
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from grpo_verifiers.sandbox import cgroup as _cgroup
from grpo_verifiers.sandbox.inside import kernel, landlock

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the box is Linux's")


def in_child(work, *given):
    """What a function answers in a process of its own."""
    gc.collect()  # what others left open is closed now, and not while descriptors are counted
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            said = work(*given)
        except BaseException as error:
            said = f"{type(error).__name__}: {error}"
        os.write(writing, json.dumps(said).encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as file:
        text = file.read()
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return json.loads(text) if text else status


def denied(*attempts):
    """Which of these are refused."""
    found = []
    for attempt in attempts:
        try:
            attempt()
            found.append(0)
        except OSError:
            found.append(1)
    return found


def writes(folder):
    place = Path(folder)
    fresh = place / "fresh"
    return denied(lambda: (place / "old").open("r+"), lambda: fresh.write_text("x"), lambda: os.truncate(place / "old", 1), (place / "d").mkdir, lambda: (place / "old").rename(place / "d" / "new"), lambda: (place / "link").symlink_to("x"), lambda: os.mkfifo(place / "pipe"), (place / "gone").unlink, (place / "empty").rmdir)  # fmt: skip


@pytest.fixture
def places(tmp_path):
    for name in ("own", "other"):
        (tmp_path / name / "empty").mkdir(parents=True)
        for file in ("old", "gone"):
            (tmp_path / name / file).write_text("text")
    return tmp_path / "own", tmp_path / "other"


needs_landlock = pytest.mark.skipif(landlock.libc.syscall(444, None, landlock.ctypes.c_size_t(0), 1) < 3, reason="no Landlock, or an old one")  # fmt: skip


@needs_landlock
def test_a_worker_writes_below_its_folder_and_to_nowhere_and_reads_what_it_likes(places, monkeypatch):
    own, other = places
    assert landlock.version() == landlock.libc.syscall(444, None, landlock.ctypes.c_size_t(0), 1)

    def work():
        kernel.no_new_privileges()
        before = len(list(Path("/proc/self/fd").iterdir()))
        level = landlock.write_below(str(own))
        return [level, writes(own), writes(other), denied(lambda: Path(os.devnull).write_text("x"), lambda: Path("/dev/shm/grpo-x").write_text("x")), (other / "old").read_text(), len(list(Path("/proc/self/fd").iterdir())) - before]  # fmt: skip

    assert in_child(work) == [landlock.version(), [0] * 9, [1] * 9, [0, 1], "text", 0]
    monkeypatch.setattr(landlock, "version", lambda: 0)
    with pytest.raises(OSError, match="this kernel has no Landlock"):
        landlock.write_below(str(own))


@needs_landlock
def test_a_program_reads_what_it_is_given_and_writes_where_it_stands(places):
    own, other = places
    shown = own.parent / "shown"
    (shown / "deep").mkdir(parents=True)
    (shown / "deep" / "run").write_text("#!/bin/sh\nexit 3\n")
    (shown / "deep" / "run").chmod(0o755)
    (other / "file").write_text("shown".encode("idna").decode())  # which sockets import when they can no longer
    server = socket.create_server(("127.0.0.1", 0))

    def work():
        rules = landlock.Rules([str(shown), str(other / "file"), str(shown), "/nowhere", "/bin", "/lib", "/lib64", "/usr"], [str(other)], str(own))  # fmt: skip
        os.chdir(own)
        kernel.no_new_privileges()
        parent = os.getppid()
        rules.enter()
        return [
            [fd >= 20 and not os.get_inheritable(fd) for fd in rules.opened],
            denied(*(lambda path=path: Path(path).read_text() for path in (shown / "deep" / "run", other / "file", own / "old", other / "old", "/etc/hostname"))),
            denied(*(lambda path=path: list(Path(path).iterdir()) for path in (shown, own, other, "/"))),
            denied(lambda: (other / "file").write_text("x"), lambda: (shown / "x").write_text("x")),
            writes(own), writes(other),
            denied(lambda: Path("/dev/null").write_text("x"), lambda: Path("/dev/urandom").open("rb").read(1), lambda: Path("/dev/full").open("rb")),
            denied(lambda: os.mknod(own / "device", 0o20600, os.makedev(1, 3)), lambda: socket.socket(socket.AF_UNIX).bind(str(own / "socket"))),
            denied(lambda: socket.create_connection(server.getsockname()), lambda: socket.create_server(("127.0.0.1", 0))) if landlock.version() >= 4 else [1, 1],
            denied(lambda: os.kill(parent, 0)) if landlock.version() >= 6 else [1],
            os.waitstatus_to_exitcode(os.system(str(shown / "deep" / "run"))),
        ]  # fmt: skip

    with server:
        found = in_child(work)
    assert all(found[0])
    assert found[1:] == [[0, 0, 0, 1, 1], [0, 0, 0, 1], [1, 1], [0] * 9, [1] * 9, [0, 0, 1], [1, 1], [1, 1], [1], 3]  # fmt: skip


def test_places_for_cgroups_are_read_of_the_kernels_tables(monkeypatch, tmp_path):
    tables = {"/proc/self/mountinfo": "1 2 0:1 / /proc rw - proc proc rw\n30 25 0:26 /r /cg rw,x shared:4 - cgroup2 cgroup2 rw\n31 25 0:27 / /cg/m rw - cgroup cgroup rw,memory\n", "/proc/self/cgroup": "5:memory,x:/a/b\n0::/r/own:1\n"}  # fmt: skip
    monkeypatch.setattr(_cgroup, "Path", lambda *parts: SimpleNamespace(read_text=lambda **_: tables["/".join(parts)]) if "/".join(parts) in tables else Path(*parts))  # fmt: skip
    assert list(_cgroup._mounts()) == [("/cg", "/r", None), ("/cg/m", "/", ["rw", "memory"])]
    assert _cgroup._own_paths() == {"memory": "/a/b", "x": "/a/b", "": "/r/own:1"}
    monkeypatch.undo()
    for name in ("top", "top/own"):
        (tmp_path / name).mkdir()
    control = tmp_path / "top" / "cgroup.subtree_control"
    for given, offered, top, written, found in (("memory", "memory", False, "memory", True), ("", "memory pids", False, "", False), ("", "memory pids", True, "+memory", True), ("pids", "memory pids", True, "+memory", True), ("", "pids", True, "+pids", False), ("memory", "memory pids", True, "+pidsy", True)):  # fmt: skip
        control.write_text(given)
        (tmp_path / "top" / "cgroup.controllers").write_text(offered)
        assert (_cgroup._delegates(str(tmp_path / "top"), top=top), control.read_text()) == (found, written)
    assert _cgroup._delegates(str(tmp_path / "none"), top=True) is False
    for kind, limit in (("v1", "memory.limit_in_bytes"), ("v2", "memory.max")):
        (tmp_path / "top" / limit).write_text("")
        assert _cgroup._kind(str(tmp_path / "top")) == (kind, {"v1": "memory.oom_control", "v2": "memory.events"}[kind])
    with pytest.raises(OSError, match=f"{tmp_path} does not delegate the memory controller"):
        _cgroup._kind(str(tmp_path / "none"))
    with pytest.raises(FileNotFoundError):
        _cgroup._write(str(tmp_path / "none"), "x")
    for wish, made in (("off", None), ("", "first"), (str(tmp_path), "wished")):
        monkeypatch.setenv("GRPO_VERIFIERS_CGROUP", wish)
        monkeypatch.setattr(_cgroup, "_places", lambda: iter([["bad"], ["first"], ["second"]]))
        monkeypatch.setattr(_cgroup, "_create_in", lambda places: "wished" if places == [str(tmp_path)] else places[0] if places != ["bad"] else Path("/nowhere").stat())  # fmt: skip
        assert _cgroup.make() == made
    monkeypatch.setenv("GRPO_VERIFIERS_CGROUP", "")
    monkeypatch.setattr(_cgroup, "_places", lambda: iter([["bad"]]))
    assert _cgroup.make() is None
