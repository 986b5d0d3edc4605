"""Folders whose owner was killed are removed when the next one makes a folder there."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from grpo_verifiers.files import temporary_folder
from grpo_verifiers.sandbox.inside.wipe import wipe
from grpo_verifiers.sandbox.leftovers import OwnFolder, sweep

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the processes are looked up in /proc")


def killed(place):
    """The folder of a process that was killed."""
    code = "import os, sys; from grpo_verifiers.sandbox.leftovers import OwnFolder; own = OwnFolder(sys.argv[1], 'grpo-box.'); open(own.path + '/left', 'w').close(); print(own.path, flush=True); os.kill(os.getpid(), 9)"
    return Path(
        subprocess.run(
            [sys.executable, "-c", code, str(place)], check=False, stdout=subprocess.PIPE, text=True
        ).stdout.strip()
    )


def test_a_folder_of_a_killed_process_goes_when_the_next_one_is_made(tmp_path):
    first = killed(tmp_path)
    assert (first / "left").exists()
    second = killed(tmp_path)
    assert not first.exists()
    own = OwnFolder(str(tmp_path), "grpo-box.")
    assert not second.exists()
    third = killed(tmp_path)
    assert Path(own.path).exists(), "its owner lives"
    assert third.exists()
    wipe(own.path)
    own.release()
    own.release()


def test_a_temporary_folder_goes_with_its_block(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with temporary_folder() as folder:
        Path(folder, "x").write_text("x")
    assert list(tmp_path.iterdir()) == []


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
    assert not dead.exists()
    sweep(str(place))
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
            sweep(str(tmp_path))

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
