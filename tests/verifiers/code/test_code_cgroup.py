"""The kernel's bound on a box: where its cgroup is made, what it takes in, that it goes, and what happens without one."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from grpo_verifiers.code.run import ProgramRun
from grpo_verifiers.sandbox import cgroup as _cgroup
from grpo_verifiers.sandbox.box import Box, BoxError, BoxKind, Limits
from grpo_verifiers.sandbox.leftovers import OwnFolder, sweep
from tests.waiting import comes

from .conftest import opened

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="cgroups are Linux's")


@pytest.fixture
def box(level):
    made = Box(BoxKind(level))
    if made.cgroup is None:
        made.close()
        pytest.skip("no memory cgroup can be made here")
    yield made
    made.close()


def members(box):
    return {int(pid) for pid in Path(box.cgroup._memory, "cgroup.procs").read_text().split()}


def called(source):
    return [{"mode": "calls", "source": source}, {"name": "f", "args": ["l"], "kwargs": ["d"]}]


def run(box, source, limits=None):
    with ProgramRun(box, limits or Limits(wall=10), called(source), last=True) as program:
        program.receive()
        reply = program.receive()
    return reply[1] if reply and reply[0] == "value" and program.end != "memory" else program.end


def test_programs_are_born_in_the_cgroup_of_their_box_under_their_bounds(box):
    assert members(box) == {box.zygote}
    memory = Path(box.cgroup._memory)
    source = "import os, threading, time\ndef work():\n    if os.fork() == 0: time.sleep(60)\ndef f():\n    t = threading.Thread(target=work); t.start(); t.join(); time.sleep(60)"
    program = ProgramRun(box, Limits(wall=20, memory=300 << 20, disk=10 << 20, processes=7), called(source))
    assert program.receive() == ["loaded"]
    assert comes(lambda: len(members(box)) >= 3, 10)
    program.finish()
    program._close()
    assert members(box) == {box.zygote}
    limit = memory / ("memory.limit_in_bytes" if box.cgroup.kind == "v1" else "memory.max")
    assert int(limit.read_text()) == (300 + 10 + 32) << 20
    if box.cgroup.counts_processes:
        assert Path(box.cgroup._folders[-1].path, "pids.max").read_text() == "9\n"
    for size in (100, 500, 200):
        assert run(box, "def f(): return 1", Limits(memory=size << 20, disk=0)) == 1
        assert int(limit.read_text()) == (size + 32) << 20


def test_a_cgroup_goes_with_its_box_and_without_one_memory_is_polled(level, monkeypatch):
    box = Box(BoxKind(level))
    folders = [folder.path for folder in box.cgroup._folders] if box.cgroup else []
    assert all(map(os.path.exists, folders))
    box.close()
    box.close()
    assert not any(map(os.path.exists, folders))
    monkeypatch.setenv("GRPO_VERIFIERS_CGROUP", "off")
    with opened(level) as box:
        assert box.cgroup is None
        assert box.reached["memory"] == "polled"


@pytest.mark.slow
def test_what_the_kernel_took_from_a_program_is_told_at_its_end(box):
    source = """
import os, time
def f():
    for _ in range({}):
        if os.fork() == 0:
            held = bytearray(b"x") * (120 << 20)
            time.sleep(0.3)
            os._exit(0)
    while True:
        try: os.wait()
        except ChildProcessError: return "done"
"""
    zygote, limits = box.zygote, Limits(wall=10, memory=150 << 20, disk=1 << 20)
    assert (run(box, source.format(1), limits), run(box, source.format(2), limits)) == ("done", "memory")
    assert run(box, source.format(1), limits) == "done"
    assert members(box) == {zygote}, "the last that is taken"


@pytest.mark.slow
def test_small_processes_that_fill_the_kernel_are_taken_before_the_zygote(box):
    source = """
import os, socket, time
def f():
    for _ in range(40):
        if os.fork() == 0:
            kept = []
            try:
                while True: kept.append(socket.socketpair())
            except OSError: pass
            for end in (end for pair in kept for end in pair):
                os.set_inheritable(end.fileno(), True)
                end.setblocking(False)
                try:
                    while True: end.send(b"x" * 32000)
                except OSError: pass
            os.execv("/bin/sleep", ["sleep", "60"])
    time.sleep(9)
    return "held"
"""
    zygote = box.zygote
    assert run(box, source, Limits(wall=10, memory=60 << 20, disk=1 << 20, processes=60)) == "memory"
    assert (members(box), run(box, "def f(): return 1")) == ({zygote}, 1)


def test_a_folder_that_was_asked_for_and_gives_no_cgroup_is_refused(monkeypatch, tmp_path):
    for place, why in ((tmp_path, "does not delegate the memory controller"), (tmp_path / "nowhere", "No such file")):
        monkeypatch.setenv("GRPO_VERIFIERS_CGROUP", str(place))
        with pytest.raises(
            BoxError, match=rf"GRPO_VERIFIERS_CGROUP is '{place}', and no cgroup can be created there: .*{why}"
        ):
            Box(BoxKind("none"))
    assert list(tmp_path.iterdir()) == []


def test_the_cgroup_of_a_killed_trainer_is_removed_by_the_next_one():
    code = "import os; from grpo_verifiers.sandbox.box import Box, BoxKind; box = Box(BoxKind('none')); print(*[f.path for f in box.cgroup._folders] if box.cgroup else [], flush=True); os.kill(os.getpid(), 9)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr

    def left():
        for path in done.stdout.split():
            sweep(str(Path(path).parent))
        return [path for path in done.stdout.split() if Path(path).exists()]

    comes(lambda: not left(), 30)
    assert left() == []


@pytest.mark.parametrize(
    ("root", "path", "place"),
    [("/", "/", ""), ("/", "/a", "/a"), ("/docker/x", "/docker/x", ""), ("/docker/x", "/docker/x/a", "/a"), ("/docker/x", "/a", "/a"), ("/", "/../a", None)],
)  # fmt: skip
def test_a_cgroup_is_found_below_its_mount(root, path, place, tmp_path):
    (tmp_path / "a").mkdir()
    assert _cgroup._place(str(tmp_path), root, path) == ("" if place is None else f"{tmp_path}{place}")


def test_the_best_place_comes_first(monkeypatch, tmp_path):
    for name in ("two/user/app", "memory/job", "pids"):
        (tmp_path / name).mkdir(parents=True)
    trees = (("", "cpu", "cpu io memory pids"), ("/user", "memory", "memory"), ("/user/app", "", "memory"))
    for name, given, offered in trees:
        (tmp_path / f"two{name}/cgroup.subtree_control").write_text(given)
        (tmp_path / f"two{name}/cgroup.controllers").write_text(offered)
    (tmp_path / "two/user/app/cgroup.subtree_control").unlink()  # as where the kernel refuses: it holds processes
    two = (str(tmp_path / "two"), "/", None)
    old = [(str(tmp_path / "memory"), "/", ["rw", "memory"]), (str(tmp_path / "pids"), "/", ["rw", "pids"])]
    paths = {"": "/user/app", "memory": "/job", "pids": "/"}
    monkeypatch.setattr(_cgroup, "_own_paths", lambda: paths)
    monkeypatch.setattr(_cgroup, "_mounts", lambda: iter([*old, two]))
    found = [[os.path.relpath(place, tmp_path) for place in places] for places in _cgroup._places()]
    assert found == [["two/user"], ["memory/job", "pids"], ["memory/job"]]
    monkeypatch.setattr(_cgroup, "_mounts", lambda: iter([two]))
    paths[""] = "/"
    assert list(_cgroup._places()) == [[str(tmp_path / "two")]]


def test_processes_enter_and_leave_a_cgroup_of_version_2():
    """All of it but the memory controller's files, where this machine has that on the older hierarchy."""
    place = next((point for point, _, controllers in _cgroup._mounts() if controllers is None), "")
    if not place or not os.access(place, os.W_OK):
        pytest.skip("no writable cgroup of version 2")
    group = _cgroup.Cgroup("v2", [OwnFolder(place, "grpo-box.")], "cgroup.events")
    child = subprocess.Popen(["/bin/sh", "-c", "read x; sleep 60 & echo $!; wait"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)  # fmt: skip
    group.enter(child.pid)
    child.stdin.write("\n")
    child.stdin.flush()
    grandchild = int(child.stdout.readline())
    procs = Path(group._memory, "cgroup.procs")
    assert {int(pid) for pid in procs.read_text().split()} == {child.pid, grandchild}
    assert not group.has_overflowed()
    for pid in (child.pid, grandchild):
        os.kill(pid, signal.SIGKILL)
    child.communicate()
    group.close()
    assert not procs.parent.exists()
