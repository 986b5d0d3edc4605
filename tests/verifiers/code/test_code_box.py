"""The table of levels and attacks, one test a cell: what a program tries, and that it gets nowhere.

Every attack is a function that returns what it got hold of; the box holds where that is the harmless value beside it.
Level none is asked what it bounds, and shown to let through what the table says that it does.
"""

import errno
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import closing
from pathlib import Path

import pytest

from grpo_verifiers import get_verifier
from grpo_verifiers.code.pool import close_pool
from grpo_verifiers.code.run import ProgramRun
from grpo_verifiers.sandbox.box import Box, BoxError, BoxKind, Limits
from grpo_verifiers.sandbox.inside import seccomp, syscalls
from grpo_verifiers.sandbox.inside.proc import descendants
from grpo_verifiers.sandbox.watch import UsageMonitor, deleted_bytes, disk_used

from .conftest import offered, opened

TRY = """
import os, socket, ctypes, signal, time, sys
libc = ctypes.CDLL(None, use_errno=True)
def tried(attempt):
    try:
        return attempt()
    except OSError as error:
        return "denied"
"""


@pytest.fixture(scope="module")
def box(level):
    with opened(level) as made:
        yield made


@pytest.fixture(
    scope="module", params=[(level, how) for level in ("full", "process", "none") for how in ("", "off")], ids="-".join
)
def memory_box(request):
    """A box of any level whose memory the kernel bounds, or that is polled."""
    level, how = request.param
    offered(level)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GRPO_VERIFIERS_CGROUP", how)
        made = Box(BoxKind(level))
    if how == "" and made.cgroup is None:
        made.close()
        pytest.skip("no memory cgroup can be made here")
    yield made
    made.close()


def answer(box, source, *args, limits=None, name="f"):
    """What the function answers, or how the program ended."""
    messages = [{"mode": "calls", "source": TRY + source}, {"name": name, "args": ["l", *args], "kwargs": ["d"]}]
    with ProgramRun(box, limits or Limits(wall=10), messages, last=True) as program:
        loaded = program.receive()
        if loaded is not None and loaded != ["loaded"]:
            return loaded
        reply = program.receive()
    return reply[1] if reply and reply[0] == "value" else reply or program.end


@pytest.mark.slow
def test_files_outside_are_out_of_reach(box, tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("the expected values")
    secret.chmod(0o644)
    outside = ("/etc/passwd", "/etc/hostname", "/root/.bashrc", "/proc/self/environ", "/proc/1/cmdline")
    beside = [pytest.__file__, *map(str, Path(os.__file__).parent.glob("site-packages/*/__init__.py"))][:3]
    paths = [
        str(secret),
        __file__,
        *outside,
        *beside,
        "/usr/share/doc",
        "/usr/src",
        "/usr/lib/os-release",
        "/usr/local/bin",
    ]
    listing = ["/", "/proc", "/home", "/tmp/..", str(tmp_path), "/etc", "/root"]
    for attempt, tried in (("open(p).read()", paths), ("os.listdir(p)", listing)):
        got = answer(box, f"def f(*ps): return [tried(lambda: {attempt}) for p in ps]", *tried)
        assert got == ["l", *["denied"] * len(tried)]
    link = "def f(p):\n    os.symlink(p, 'link')\n    return tried(lambda: open('link').read())"
    assert answer(box, link, str(secret)) == "denied"


def test_nothing_outside_can_be_written_and_what_exists_shows_where_the_table_says_so(box, tmp_path):
    tmp_path.chmod(0o777)
    paths = [str(tmp_path / "x"), "/tmp/../x", "/dev/shm/x", "/usr/x", "/x", os.path.realpath(os.__file__), "/dev/x"]
    write = "def f(*ps): return [tried(lambda: open(p, 'a').write('x')) for p in ps]"
    assert answer(box, write, *paths) == ["l", *["denied"] * len(paths)]
    assert not (tmp_path / "x").exists()
    (tmp_path / "file").write_text("x")
    got = answer(box, "def f(p): return tried(lambda: os.stat(p).st_size)", str(tmp_path / "file"))
    # Landlock does not cover it; and folders closed to other users stay closed.
    assert got in ({"denied"} if box.kind.level == "full" else {"denied", 1})


def test_the_network_is_out_of_reach(box):
    source = """
def f(tcp, udp):
    return [
        tried(lambda: socket.create_connection(("127.0.0.1", tcp)) and "got"),
        tried(lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"x", ("127.0.0.1", udp))),
        tried(lambda: socket.socket(socket.AF_UNIX).connect("\\0grpo-test-target")),
        tried(lambda: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW)),
        tried(lambda: socket.socket(socket.AF_INET6)),
        libc.syscall(425, 8, None),
        tried(lambda: socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)),
        tried(lambda: socket.socketpair()[0].bind("\\0grpo-test-mark")),
        tried(lambda: socket.socketpair()[0].connect("\\0grpo-test-target")),
    ]
"""
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.socket(socket.AF_UNIX) as abstract,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp,
    ):
        abstract.bind("\0grpo-test-target")
        abstract.listen()
        udp.bind(("127.0.0.1", 0))
        got = answer(box, source, server.getsockname()[1], udp.getsockname()[1])
    assert got == ["l", "denied", "denied", "denied", "denied", "denied", -1, "denied", "denied", "denied"]
    pair = "def f():\n    a, b = socket.socketpair()\n    a.send(b'x')\n    return b.recv(9)"
    assert answer(box, pair) == ["b", "78"]


def test_processes_outside_can_be_neither_signalled_nor_read(box):
    target = os.fork()
    if target == 0:
        time.sleep(30)
        os._exit(0)
    zygote = sorted(descendants(box.pid) | {box.pid})
    source = """
def f(*pids):
    for pid in [*pids, os.getppid(), -1, *range(2, 40)]:
        if pid > 0 or pid == -1:
            if pid != os.getpid() and pid != os.getpgid(0):
                tried(lambda: os.kill(pid, signal.SIGKILL))
    return "done"
"""
    try:
        assert answer(box, source, target, os.getpid(), *zygote) == "done"
        assert (os.waitpid(target, os.WNOHANG), answer(box, "def f(): return 1")) == ((0, 0), 1)
    finally:
        os.kill(target, 9)
        os.waitpid(target, 0)
    source = """
def f(*pids):
    found = []
    for pid in [*pids, os.getppid(), 1, 2, 3]:
        found.append(libc.ptrace(16, pid, 0, 0))
        found.append(tried(lambda: open(f"/proc/{pid}/mem", "rb")))
        found.append(libc.syscall(310, pid, None, 0, None, 0, 0))
    return sorted(set(map(str, found)))
"""
    pids = sorted(descendants(box.pid) | {box.pid, os.getpid()})
    assert answer(box, source, *pids) == ["l", "-1", "denied"]
    source = "import fcntl\ndef f(pid):\n    r, w = os.pipe()\n    return [tried(lambda: fcntl.fcntl(r, each, pid)) for each in (8, 10, 15)] + [libc.ioctl(r, 0x8901, ctypes.byref(ctypes.c_int(pid)))]"
    assert answer(box, source, os.getpid()) == ["l", "denied", "denied", "denied", -1]


@pytest.mark.slow
def test_a_sibling_program_is_out_of_reach(level):
    secret = "secret = 'a sibling''s value'\nimport time\ndef f():\n    time.sleep(1)\n    return secret"
    attack = """
def f(*pids):
    for pid in pids:
        tried(lambda: os.kill(pid, 9))
    return [tried(lambda: open(f"/proc/{pid}/mem", "rb")) for pid in pids] + [libc.ptrace(16, pid, 0, 0) for pid in pids]
"""
    got = []
    with opened(level) as first, opened(level) as second:
        thread = threading.Thread(target=lambda: got.append(answer(first, secret)))
        thread.start()
        time.sleep(0.3)
        assert set(answer(second, attack, *sorted(descendants(first.pid)))[1:]) == {"denied", -1}
        thread.join(60)
    assert got == ["a siblings value"]


def test_the_kernels_far_corners_are_closed_call_by_call(box):
    calls = [
        *("unshare(0x10000000)", "unshare(0x20000)", "mount(b'none', b'/tmp', b'tmpfs', 0, None)", "chroot(b'/tmp')"),
        *("setns(0, 0)", "setresuid(0, 0, 0)", "shmget(0, 4096, 0o1600)", "msgget(0, 0o1600)", "semget(0, 1, 0o1600)"),
        *("syscall(435, None, 0)", "syscall(250, 0, 0, 0)", "syscall(321, 0, 0, 0)"),  # clone3, keyctl, bpf
        *("syscall(240, b'grpo-test', 0o102, 0o600, None)", "syscall(206, 8, None)", "syscall(162)"),
    ]
    found = answer(box, f"def f(): return [{', '.join(f'libc.{call}' for call in calls)}]")
    assert dict(zip(calls, found[1:], strict=True)) == dict.fromkeys(calls, -1)
    # Each for real, with zeros for arguments; newer ones do not exist for a program
    source = """
def f(*numbers):
    told = []
    for number in numbers:
        ctypes.set_errno(0)
        told.append([libc.syscall(number, 0, 0, 0, 0, 0, 0), ctypes.get_errno()])
    return told
"""
    column = {"x86_64": 0, "aarch64": 1}[os.uname().machine]
    numbers = seccomp.denied_numbers(column, alone=box.kind.level == "full")
    assert len(numbers) > 100
    assert answer(box, source, *numbers)[1:] == [["l", -1, errno.EPERM]] * len(numbers)
    newer = range(syscalls.NEWEST + 1, syscalls.NEWEST + 40)
    assert answer(box, source, *newer)[1:] == [["l", -1, errno.ENOSYS]] * len(newer)
    status = "import struct\ndef f():\n    head = struct.pack('=Ii', 0x20080522, 0); data = ctypes.create_string_buffer(24)\n    libc.capget(head, data)\n    return [libc.prctl(39, 0, 0, 0, 0), libc.prctl(3, 0, 0, 0, 0), struct.unpack('=6I', data.raw)[0] & ~4, os.getuid() != 0]"
    assert answer(box, status) == ["l", 1, 0, 0, True]


def test_attributes_of_files_outside_cannot_be_changed(level, tmp_path, monkeypatch):
    target = tmp_path / "target"
    target.write_text("x" * 10)
    target.chmod(0o666)
    tmp_path.chmod(0o777)
    before = target.stat()
    source = "def f(p): return [tried(a) for a in (lambda: os.chmod(p, 0), lambda: os.truncate(p, 0), lambda: os.utime(p, (0, 0)), lambda: os.setxattr(p, 'user.a', b'x'), lambda: os.chown(p, -1, -1), lambda: os.remove(p), lambda: os.rename(p, p + '1'), lambda: os.link(p, 'l'))]"
    with opened(level) as box:
        assert answer(box, source, str(target)) == ["l", *["denied"] * 8]
    after = target.stat()
    assert (after.st_mode, after.st_size, after.st_mtime) == (before.st_mode, before.st_size, before.st_mtime)


def test_files_can_neither_be_watched_nor_allocated_past_their_end(box):
    source = """
import fcntl
def f(folder):
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    notice = [tried(lambda: fcntl.fcntl(fd, 1026, flags)) for flags in (1, 1 - (1 << 31))]
    lease = [tried(lambda: fcntl.fcntl(os.open("own", os.O_CREAT | os.O_RDWR), command, 1)) for command in (1024, 1040)]
    return notice + lease + [libc.inotify_init(), libc.inotify_init1(0), libc.inotify_add_watch(fd, b".", 1), libc.fanotify_init(0, 0), libc.syscall(451, fd, None, None, 0)]
"""
    folder = str(Path(re.__file__).resolve().parent)
    assert answer(box, source, folder) == ["l", *["denied"] * 4, *[-1] * 5]
    source = """
def f():
    fd = os.open("x", os.O_CREAT | os.O_RDWR)
    keep = libc.fallocate(fd, 1, ctypes.c_long(0), ctypes.c_long(1 << 30))
    struct = __import__("struct")
    ioctl = libc.ioctl(fd, 0x4030582A, struct.pack("hhqqiI4I", 0, 0, 0, 1 << 30, 0, 0, 0, 0, 0, 0))
    plain = tried(lambda: os.posix_fallocate(fd, 0, 1 << 20))
    return [keep, ioctl, plain, os.stat(fd).st_blocks * 512 >= 1 << 20, os.stat(fd).st_blocks * 512 < 2 << 20]
"""
    assert answer(box, source) == ["l", -1, -1, None, True, True]


CORE_PATTERN = Path("/proc/sys/kernel/core_pattern")
CRASH = """
def f():
    ended = []
    for dumpable in (False, True):
        pid = os.fork()
        if pid == 0:
            if dumpable: libc.prctl(4, 1, 0, 0, 0)
            held = bytearray(b"x") * (1 << 20)
            ctypes.string_at(0)
        ended.append(os.WTERMSIG(os.waitpid(pid, 0)[1]))
    shell = os.spawnv(os.P_WAIT, "/bin/bash", ["bash", "-c", "ulimit -c 0; ulimit -c unlimited; kill -SEGV $$"])
    return [*ended, -shell]
"""


@pytest.fixture(params=["pipe", "file"])
def cores(request, tmp_path):
    """A folder that every core dump of the machine goes to, for the moment of a test."""
    tmp_path.chmod(0o777)
    helper = tmp_path / "helper.sh"
    helper.write_text(f"#!/bin/sh\n/bin/cat > {tmp_path}/core.$1\n")
    helper.chmod(0o755)
    before = CORE_PATTERN.read_text()
    try:
        CORE_PATTERN.write_text(f"|{helper} %P" if request.param == "pipe" else f"{tmp_path}/core.%P")
    except OSError as error:
        pytest.skip(f"the kernel's pattern of core dumps cannot be set here: {error}")
    try:
        yield tmp_path
    finally:
        CORE_PATTERN.write_text(before)


def dumps(folder):
    """Bytes of the core dumps that have arrived; helpers get a moment to write them."""
    time.sleep(0.5)
    found = [path.stat().st_size for path in folder.glob("core.*")]
    for path in folder.glob("core.*"):
        path.unlink()
    return found


@pytest.mark.slow
def test_core_dumps_do_not_leave_the_box(any_box, cores):
    seen_here = subprocess.run(["/bin/sh", "-c", "ulimit -c unlimited; kill -SEGV $$"], check=False)
    assert seen_here.returncode == -signal.SIGSEGV
    assert dumps(cores)[0] > 1 << 14
    got = answer(any_box, CRASH)
    assert got[:3] == ["l", 11, 11]
    # Without confinement a program may lower its limit to 0, which does not stop a pipe.
    assert dumps(cores) == [] or any_box.kind.level == "none"


@pytest.mark.slow
def test_what_judges_programs_dumps_no_memory_either(level, fenced):
    close_pool()
    before = descendants(os.getpid())
    verifier = get_verifier("code", level=level, highest=level)
    assert verifier.verify(fenced("def f(): return 1"), tests=[{"function": "f", "expected": 1}]).score == 1
    started = descendants(os.getpid()) - before
    assert started
    for pid in started:
        limits = Path(f"/proc/{pid}/limits").read_text()
        assert re.search(r"^Max core file size +1 +1 ", limits, re.MULTILINE), Path(f"/proc/{pid}/cmdline").read_bytes()


def test_a_core_dump_that_no_limit_stops_holds_no_memory():
    """Where a limit of 1 counts for nothing, as with dumps to a socket."""
    code = "from grpo_verifiers.sandbox.inside.stage import Stage; import subprocess; Stage({'level': 'none', 'uid': None, 'tmp': ''}); print(subprocess.run(['cat', '/proc/self/coredump_filter', '/proc/self/limits'], capture_output=True, text=True).stdout)"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert int(said.split()[0], 16) == 0
    assert re.search(r"^Max core file size +1 +1 ", said, re.MULTILINE)


def test_a_chain_of_forks_ends_with_its_program_and_threads_are_bounded(box):
    source = "def f():\n    if os.fork() == 0:\n        os.setsid()\n        while True:\n            if tried(os.fork) not in (0, 'denied'): os._exit(0)\n    return 1"
    before = descendants(box.pid)
    for _ in range(5):
        assert answer(box, source, limits=Limits(wall=5)) == 1
    assert descendants(box.pid) == before
    source = """
import threading
def f():
    made = 0
    try:
        for _ in range(500):
            threading.Thread(target=time.sleep, args=(60,), daemon=True).start(); made += 1
    except RuntimeError:
        pass
    return made
"""
    alone = box.kind.level == "full" or os.geteuid() == 0
    assert 0 < answer(box, source, limits=Limits(wall=5, processes=24)) <= (24 if alone else 40)


@pytest.mark.slow
def test_a_fork_bomb_ends_with_its_program(box):
    source = """
def f():
    made = 0
    for _ in range(500):
        try:
            if os.fork() == 0:
                os.setsid(); time.sleep(60); os._exit(0)
            made += 1
        except OSError:
            break
    return made
"""
    started = time.monotonic()
    got = answer(box, source, limits=Limits(wall=5, processes=24))
    # Where the trainer is no root and there is no namespace, its own processes count too: then the parent does it.
    assert got == "processes" or 0 < got <= (24 if box.kind.level == "full" or os.geteuid() == 0 else 40)
    ended = answer(box, "while True: tried(os.fork)", limits=Limits(wall=1, processes=24))
    assert ended in {"timeout", "processes", "killed"}
    assert time.monotonic() - started < 100
    assert answer(box, "def f(): return 1") == 1
    assert len(descendants(box.pid)) <= 2


@pytest.mark.sample(1)
def test_memory_is_bounded_for_one_and_for_all_together(memory_box):
    box = memory_box
    small = Limits(wall=10, memory=200 << 20, processes=24)
    one = "def f():\n    try: return len(bytearray(400 << 20))\n    except MemoryError: return 'denied'"
    assert answer(box, one, limits=small) == "denied"
    together = """
def f():
    for _ in range(8):
        if os.fork() == 0:
            held = bytearray(b"x") * (120 << 20)
            time.sleep(60)
    time.sleep(8)
    return "held"
"""
    assert answer(box, together, limits=small) == "memory"
    pages = "held = __import__('mmap').mmap(-1, 120 << 20); held[::4096] = bytes(120 << 8)"
    shared = together.replace('held = bytearray(b"x") * (120 << 20)', pages)
    assert pages in shared
    assert answer(box, shared, limits=small) == "memory"
    work, thread = "def work():" + together.partition("def f():")[2], "threading.Thread(target=work, daemon=True)"
    by_thread = f"import threading\n{work}\ndef f():\n    t = {thread}; t.start(); t.join(9); return 'held'"
    assert (answer(box, by_thread, limits=small), answer(box, "def f(): return 1", limits=small)) == ("memory", 1)
    assert UsageMonitor(box, Limits()).overuse() == ""


OUT_OF_PAGE_TABLES = """
import mmap
def f(processes, seconds):
    for _ in range(processes):
        if os.fork() == 0:
            held = mmap.mmap(-1, 80 << 20)
            for at in range(0, 80 << 20, 4 << 20):
                held[at : at + (4 << 20)] = b"x" * (4 << 20)
                held.madvise(mmap.MADV_DONTNEED, at, 4 << 20)
            time.sleep(60)
    time.sleep(seconds)
    return "held"
"""
RESERVES = """
import mmap, threading
def f():
    shared = [mmap.mmap(-1, 50 << 20) for _ in range(3)]
    threading.stack_size(40 << 20)
    for _ in range(4):
        threading.Thread(target=time.sleep, args=(2,), daemon=True).start()
        if os.fork() == 0: time.sleep(2); os._exit(0)
    time.sleep(1)
    return "held"
"""
FORKS = """
def f():
    for _ in range(25):
        if os.fork() == 0: time.sleep(1); os._exit(0)
    time.sleep(0.5)
    return "held"
"""
SOCKETS = """
def fill():
    held, sent = [], 0
    while True:
        try: held.append(socket.socketpair())
        except OSError: break
    for each in (end for pair in held for end in pair):
        each.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 30)
        each.setblocking(False)
        try:
            while True: sent += each.send(b"x" * 32000)
        except OSError: pass
    return held, sent
def f(processes):
    for _ in range(processes):
        if os.fork() == 0:
            held = fill()
            time.sleep(60)
    held, sent = fill()
    time.sleep(2)
    return sent < len(held) * 2 * 300_000
"""


HELD = {
    "what forks share with their zygote is not theirs": (FORKS, (), 100, "held"),
    "shared memory in no page table counts": (OUT_OF_PAGE_TABLES, (6, 8), 200, "memory"),
    "little of that is held": (OUT_OF_PAGE_TABLES, (1, 1), 200, "held"),
    "reserving addresses is not holding memory": (RESERVES, (), 700, "held"),
    "bytes that wait in sockets count": (SOCKETS, (30,), 60, "memory"),
    "those of one process have a bound": (SOCKETS, (0,), 60, True),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", HELD)
def test_what_counts_as_memory_that_is_held(memory_box, case):
    source, arguments, memory, wanted = HELD[case]
    if wanted is True and memory_box.kind.level == "none":
        return  # the buffers of sockets may grow there
    assert answer(memory_box, source, *arguments, limits=Limits(wall=10, memory=memory << 20)) == wanted


@pytest.mark.slow
def test_a_folder_full_of_files_is_not_looked_through_at_every_turn(tmp_path, monkeypatch):
    looks = []

    def looked(folder, limit):
        looks.append(folder)
        return disk_used(folder, limit)

    for at in range(2000):
        (tmp_path / str(at)).touch()
    with opened("none") as box, monkeypatch.context() as patch:
        patch.setattr("grpo_verifiers.sandbox.watch.disk_used", looked)
        patch.setattr(box, "folder", str(tmp_path))
        watch = UsageMonitor(box, Limits())
        assert {watch.overuse() for _ in range(20)} == {""}
        assert 1 <= len(looks) < 10
        assert UsageMonitor(box, Limits(disk=16 << 20)).overuse() == "disk"


@pytest.mark.slow
def test_open_files_without_a_name_count(level):
    source = """
def f():
    for at in range(40):
        file = os.open("x", os.O_CREAT | os.O_RDWR)
        os.unlink("x")
        os.write(file, b"x" * (1 << 20))
    time.sleep(3)
    return "held"
"""
    with opened(level) as box:
        with tempfile.TemporaryFile(dir=box.folder or "/tmp") as unnamed:
            unnamed.write(b"x" * (1 << 20))
            unnamed.flush()
            holder = subprocess.Popen(["sleep", "600"], pass_fds=[unnamed.fileno()])
        assert deleted_bytes({holder.pid}, box.folder or "/tmp") == 1 << 20
        holder.kill()
        holder.wait()
        if level == "process" and os.geteuid() != 0:
            return  # what a program has open is hidden from us
        got = answer(box, source, limits=Limits(wall=10, disk=8 << 20))
        assert got == "disk" if level == "process" else got[0] == "raised"


@pytest.mark.slow
def test_disk_is_bounded_in_bytes_and_in_files(any_box):
    box = any_box
    small = Limits(wall=20, disk=8 << 20)
    many = """
def f():
    for at in range(100_000):
        try:
            with open(f"f{at}", "wb") as file: file.write(b"x" * (1 << 20))
        except OSError:
            return "denied"
        time.sleep(0.005)
"""
    assert answer(box, many, limits=small) in {"denied", "disk"}
    empty = "def f():\n    for at in range(100_000):\n        try:\n            os.mkdir(f'd{at}'); os.chmod(f'd{at}', 0)\n        except OSError:\n            return 'denied'\n        time.sleep(0.0001)"
    assert answer(box, empty, limits=small) in {"denied", "disk"}
    big = "def f():\n    try:\n        with open('x', 'wb') as file: return file.write(b'x' * (9 << 20)) and 'wrote'\n    except OSError:\n        return 'denied'"
    assert answer(box, big, limits=small) in {"denied", "disk"}
    deep = "def f():\n    for at in range(400):\n        os.mkdir('d'); os.chdir('d')\n    return 'deep'"
    assert answer(box, deep, limits=small) in {"deep", "disk"}
    assert not box.folder or disk_used(box.folder, 1 << 30) < 1 << 20


HIDDEN = """
def f(levels, rights):
    for at in range(levels):
        os.mkdir("d", rights)
        os.chdir("d")
    for at in range(30):
        with open(f"f{at}", "wb") as file:
            file.write(b"x" * (1 << 20))
        time.sleep(0.02)
    time.sleep(2)
    return "held"
"""


@pytest.mark.slow
@pytest.mark.parametrize(("levels", "rights"), [(1, 0o300), (2500, 0o700), (600, 0o700), (3, 0o700)])
def test_no_folder_is_too_deep_or_too_closed_for_the_bound_on_disk(level, levels, rights):
    with opened(level) as box:
        got = answer(box, HIDDEN, levels, rights, limits=Limits(wall=15, disk=16 << 20))
        assert got == "disk" if level == "process" else got[0] == "raised"


def test_at_every_level_output_is_bounded_and_processes_and_files_end_with_their_program(any_box):
    messages = [{"mode": "main", "source": "while True: print('x' * 100_000)"}]
    with ProgramRun(any_box, Limits(wall=10, output=1 << 16), messages, capture=True) as program:
        program.wait()
    assert program.end == "output"
    assert len(program.output) < 1 << 20
    forged = "def f():\n    os.write(3, (1 << 31).to_bytes(4, 'big') + b'x' * 100)\n    time.sleep(60)"
    assert answer(any_box, forged) == "protocol"
    messages, asked = [{"mode": "calls", "source": "def f(): return 'x' * 3000"}], {"name": "f", "args": ["l"]}
    with ProgramRun(any_box, Limits(sent=-20480), messages, questions=[asked | {"kwargs": ["d"]}] * 9) as program:
        program.wait()  # ended at 16 KiB, with answers of 3 KB there: as many are read however late one comes
        assert ([bool(program.receive()) for _ in range(8)], program.end) == ([True] * 6 + [False] * 2, "sent")
    source = "def f():\n    open('left', 'w').write('x'); os.mkdir('sub')\n    if os.fork() == 0:\n        os.setsid()\n        if os.fork(): os._exit(0)\n        time.sleep(60)\n    return os.listdir('.') and os.getcwd()"
    before = descendants(any_box.pid)
    folder = answer(any_box, source)
    assert descendants(any_box.pid) == before
    assert not Path(folder).exists() or any_box.kind.level == "full"
    assert answer(any_box, "def f(): return os.listdir('.')") == ["l"]


def test_nothing_stays_for_the_next_program_on_disk_or_on_standard_error(box):
    leave = """
import builtins, math
def f():
    open("left", "w").write("x"); os.mkdir("sub"); builtins.sum = lambda *a: 7; math.sqrt = None
    os.environ["LEFT"] = "x"; sys.modules["left"] = sys; sys.path.insert(0, ".")
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            while True: time.sleep(1)
        os._exit(0)
    return [libc.shmget(4242, 4096, 0o1666), libc.semget(4242, 1, 0o1666), libc.msgget(4242, 0o1666)]
"""
    look = """
import math
def f():
    return [os.listdir("."), sum([1, 2]), math.sqrt(1), os.environ.get("LEFT"), "left" in sys.modules, libc.shmget(4242, 1, 0)]
"""
    before = descendants(box.pid)
    assert (answer(box, leave), answer(box, look)) == (["l", -1, -1, -1], ["l", ["l"], 3, 1.0, None, False, -1])
    assert descendants(box.pid) == before
    write = "def f():\n    import fcntl\n    os.write(2, b'state'); fcntl.flock(0, fcntl.LOCK_EX); fcntl.fcntl(2, fcntl.F_SETFL, os.O_APPEND)"
    read = "def f():\n    import fcntl\n    other = os.open('/dev/null', os.O_RDWR)\n    return [tried(lambda: os.pread(2, 9, 0)), tried(lambda: fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)), fcntl.fcntl(2, fcntl.F_GETFL) & os.O_APPEND]"
    assert answer(box, write) is None
    assert answer(box, read) == ["l", ["b", ""], None, 0]


def test_a_program_holds_no_descriptor_but_its_own_and_no_secret(box, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    with closing(Box(box.kind)) as fresh:
        fds = "def f():\n    found = []\n    for fd in range(5000):\n        try: os.fstat(fd); found.append(fd)\n        except OSError: pass\n    return found"
        assert answer(fresh, fds) == ["l", 0, 1, 2, 3]
        secrets = "def f(): return sorted(k for k in os.environ if 'TOKEN' in k or 'GRPO' in k or 'KEY' in k)"
        assert answer(fresh, secrets) == ["l"]


@pytest.mark.slow
def test_without_confinement_programs_may_do_what_the_table_says_where_that_is_chosen(tmp_path, fenced):
    target = os.fork()
    if target == 0:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # whatever this process does at it
        time.sleep(30)
        os._exit(0)
    server = socket.create_server(("127.0.0.1", 0))
    secret = tmp_path / "secret"
    secret.write_text("open")
    source = """
def f(path, port, pid):
    read = open(path).read()
    os.chmod(path, 0o600)
    open(path + "2", "w").write("x")
    socket.create_connection(("127.0.0.1", port)).close()
    segment = libc.shmget(0, 4096, 0o1600)
    libc.shmctl(segment, 0, None)
    os.kill(pid, signal.SIGTERM)
    return [read, segment >= 0, os.stat(path).st_size]
"""
    with opened("none") as box, server:
        assert answer(box, source, str(secret), server.getsockname()[1], target) == ["l", "open", True, 4]
        assert (tmp_path / "secret2").read_text() == "x"
        assert os.waitstatus_to_exitcode(os.waitpid(target, 0)[1]) == -signal.SIGTERM
    (tmp_path / "file").write_text("x")
    tests = [{"function": "f", "expected": "x"}]
    source = f"def f(): return open({str(tmp_path / 'file')!r}).read()"
    assert get_verifier("code").verify(fenced(source), tests=tests).score == 0
    assert get_verifier("code", level="none").verify(fenced(source), tests=tests).score == 0
    assert get_verifier("code", level="none", highest="none").verify(fenced(source), tests=tests).score == 1


CONFINED = """
import os, sys
from grpo_verifiers import get_verifier
from grpo_verifiers.sandbox.inside.proc import descendants
from grpo_verifiers.code import probe
from grpo_verifiers.code.pool import close_pool

verifier = get_verifier("code", time_limit=2.0, highest="process")
fork = "import os, time\\nfor _ in range(100):\\n    if os.fork() == 0:\\n        os.setsid(); time.sleep(60)"
scores = [
    verifier.verify(f"```python\\n{source}\\n```", tests=[test]).score
    for source in ("def f(): return 2", "def f(): return True", "def f(): return open('/etc/hostname').read()", fork)
    for test in ({"function": "f", "expected": 2}, {"code": "assert f() == 2"})
]
close_pool()
print(os.getuid(), probe("process").level, scores, len(descendants(os.getpid())))
"""


@pytest.mark.slow
@pytest.mark.needs("setpriv")
def test_the_box_holds_inside_a_process_that_is_confined_itself(tmp_path):
    if os.geteuid() != 0:
        pytest.skip("needs root, to take rights away from a process")
    tmp_path.chmod(0o777)
    rights = "dac_read_search"  # to read this interpreter, wherever it is installed
    taken = ["--reuid=4242", "--regid=4242", "--clear-groups", "--no-new-privs", f"--inh-caps=+{rights}"]
    taken += [f"--ambient-caps=+{rights}", f"--bounding-set=-all,+{rights}"]
    command = ["setpriv", *taken, sys.executable, "-c", CONFINED]
    own = {**os.environ, "TMPDIR": str(tmp_path), "HOME": str(tmp_path)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, env=own, check=False)
    assert done.stdout == f"4242 process {[1.0, 1.0] + [0.0] * 6} 0\n", done.stderr
    assert not list(tmp_path.iterdir())


def test_a_program_that_cannot_be_boxed_is_told_why_and_the_zygote_goes_with_its_box(level):
    with opened(level) as fresh:
        started = time.monotonic()
        with pytest.raises(BoxError, match="could not be boxed: TypeError"):
            answer(fresh, "def f(): return 1", limits=Limits(wall=100, files="many"))
        assert time.monotonic() - started < 60
        assert answer(fresh, "def f(): return 1") == 1
    box = Box(BoxKind(level))
    pids = descendants(box.pid) | {box.pid}
    box.close()
    assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]


@pytest.mark.slow
def test_the_time_of_a_program_ends(any_box):
    box = any_box
    for source in (
        "while True: pass",
        "import re\nre.match('(a+)+$', 'a' * 60 + 'b')",
        "signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))\ntime.sleep(10_000)",
    ):
        assert answer(box, source, limits=Limits(wall=0.5)) == "timeout"
    assert answer(box, "while True: pass", limits=Limits(wall=20, cpu=1)) == "timeout"
