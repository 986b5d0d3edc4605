"""Folders whose owner was killed are removed by a process that outlives it, or by the next one's."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from grpo_verifiers.sandbox import cleaner as _cleaner
from grpo_verifiers.sandbox import leftovers as _leftovers
from grpo_verifiers.sandbox.inside.wipe import wipe
from grpo_verifiers.sandbox.leftovers import OwnFolder
from tests.waiting import comes

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the processes are looked up in /proc")

OWNER = """
import os, sys, time
from pathlib import Path
from grpo_verifiers.sandbox import leftovers as _leftovers
own = _leftovers.OwnFolder(sys.argv[1], "grpo-box.")
(Path(own.path) / "left").write_text("x")
print(own.path, _leftovers._waiting._process.pid, flush=True)
time.sleep(60)
"""


def owner(place):
    """A process that has made a folder, the folder, and its cleaner's process id."""
    started = subprocess.Popen([sys.executable, "-c", OWNER, str(place)], stdout=subprocess.PIPE, text=True)
    path, cleaner = started.stdout.readline().split()
    return started, Path(path), int(cleaner)


@pytest.mark.slow
def test_a_cleaner_ends_while_folders_of_others_are_left(tmp_path):
    started, path, cleaner = owner(tmp_path)
    other, second, others_cleaner = owner(tmp_path)
    started.kill()
    started.communicate()
    assert comes(lambda: not Path(f"/proc/{cleaner}").exists(), 30)
    assert not path.exists()
    assert second.exists()
    assert Path(f"/proc/{others_cleaner}").exists()
    other.kill()
    other.communicate()


PAUSES = """
import os, sys, time
from grpo_verifiers.sandbox import cleaner
from grpo_verifiers.sandbox.inside.wipe import wipe
cleaner.time.sleep = lambda seconds: print(seconds)
cleaner.main(-1, int(sys.argv[1]), wipe)
"""


@pytest.mark.parametrize("own", [False, True])
def test_a_cleaner_looks_again_only_while_folders_of_its_owner_are_left(tmp_path, python, own):
    folder = OwnFolder(str(tmp_path), "grpo-box.")  # we hold its lock, so it stays
    pid = os.getpid() if own else os.getpid() + 1
    done = python(PAUSES, pid, input=f"{tmp_path}\0")
    looks = [float(pause) for pause in done.stdout.split()]
    assert looks == [*_cleaner._PAUSES] if own else looks == [0.0]
    assert Path(folder.path).exists()
    wipe(folder.path)
    folder.release()


def test_folders_go_with_their_block_process_or_cleaner(tmp_path, python):
    code = "import os, pathlib; from grpo_verifiers.files import temporary_folder as t\nwith t() as first: pathlib.Path(first, 'x').write_text('x')\nwith t() as second: print(int(os.path.exists(first)), second, flush=True); os.kill(os.getpid(), 9)"
    done = python(code, env={**os.environ, "TMPDIR": str(tmp_path)})
    assert done.returncode == -signal.SIGKILL
    first, second = done.stdout.split()
    assert (first, Path(second).parent) == ("0", tmp_path)
    assert comes(lambda: not list(tmp_path.iterdir()), 30)
    first, second = OwnFolder(str(tmp_path), "grpo-box."), OwnFolder(str(tmp_path), "grpo-verifiers.")
    cleaner = Path(f"/proc/{_leftovers._waiting._process.pid}")
    others = _leftovers._waiting._count - 2
    wipe(first.path)
    first.release()
    assert cleaner.exists()
    wipe(second.path)
    second.release()
    second.release()
    assert (_leftovers._waiting._count, cleaner.exists()) == (others, bool(others))


def test_a_folder_whose_cleaner_was_killed_too_goes_when_the_next_one_is_made(tmp_path):
    started, path, cleaner = owner(tmp_path)
    os.kill(cleaner, signal.SIGKILL)
    started.kill()
    started.communicate()
    assert path.exists()
    other, second, _ = owner(tmp_path)
    assert comes(lambda: not path.exists(), 30)
    assert second.exists(), "its owner lives"
    other.kill()
    other.communicate()
    assert comes(lambda: not second.exists(), 30)


def test_only_unlocked_folders_of_ours_are_swept(tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").write_text("x")
    place = tmp_path / "place"
    place.mkdir()
    ours = "grpo-box.99999.0123456789a"
    (place / f"{ours}b").symlink_to(outside)
    (place / f"{ours}c").write_text("x")
    (place / f"{ours}d").mkdir()  # without the mark
    for user in ("another", "grpo-plus.git", "grpo-plus.12.3", f"{ours}e.bak", f"{ours}E", f"x{ours}e"):
        (place / user / "of a user").mkdir(parents=True)
        (place / user).chmod(0o1777)
    kept = {path.name for path in place.iterdir()}
    dead = place / f"{ours}f"
    dead.mkdir(0o1700)
    (dead / "link").symlink_to(outside)
    (dead / "cgroup.procs").write_text(f"{os.getpid()}\n")  # which it is not, so nothing that it names is ended
    own = OwnFolder(str(place), "grpo-box.")
    assert comes(lambda: not dead.exists(), 30)
    assert _cleaner.sweep(str(place), wipe) == [Path(own.path).name]
    assert {path.name for path in place.iterdir()} == {*kept, Path(own.path).name}
    assert (outside / "kept").exists()
    wipe(own.path)
    own.release()


def test_a_folder_that_is_swept_before_it_is_locked_is_made_anew(tmp_path, monkeypatch):
    made = []

    def overtaken(path, mode):
        os_mkdir(path, mode)
        made.append(path)
        if len(made) == 1:
            _cleaner.sweep(str(tmp_path), wipe)

    os_mkdir = os.mkdir
    monkeypatch.setattr(os, "mkdir", overtaken)
    own = OwnFolder(str(tmp_path), "grpo-box.")
    assert [str(path) for path in tmp_path.iterdir()] == [own.path] == made[1:]
    wipe(own.path)
    own.release()


def fill(root):
    """Put into a folder what is hard to remove."""
    root.mkdir()
    for mode in (0o000, 0o500, 0o700):
        inner = root / f"mode{mode}"
        (inner / "a" / "b").mkdir(parents=True)
        (inner / "file").write_text("x")
        (inner / "to outside").symlink_to("../../outside")
        (inner / "to nowhere").symlink_to("nowhere")
        (inner / "a").chmod(mode)
        inner.chmod(mode)
    start, outside = os.open(".", os.O_RDONLY), Path.cwd() / "outside"
    os.chdir(root)
    for _ in range(300):  # longer than a path may be
        Path("d" * 50).mkdir()
        os.chdir("d" * 50)
    Path("link").symlink_to(outside)
    os.fchdir(start)


def test_a_folder_is_wiped_whatever_is_in_it(tmp_path, monkeypatch):
    outside = tmp_path / "outside"
    outside.mkdir(mode=0o755)
    (outside / "kept").write_text("x")
    tmp_path.chmod(0o777)
    monkeypatch.chdir(tmp_path)
    pid = os.fork()
    if pid == 0:
        if os.geteuid() == 0:  # whom no mode binds
            os.setresuid(4242, 4242, 4242)
        fill(Path("root"))
        wipe("root")
        os._exit(0 if not os.path.lexists("root") else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert (outside / "kept").exists()
    assert outside.stat().st_mode & 0o777 == 0o755
