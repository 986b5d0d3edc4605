import ast
import os
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest

import grpo_plus
from grpo_plus.cli import UserError
from grpo_plus.cli._folder import LOCK, claimed
from grpo_plus.evaluation.store import SampleStore, StoreError
from grpo_plus.record.files import RunError, append_line, read_lines
from grpo_plus.report.write import write_report
from grpo_verifiers.files import MOST_BYTES, open_own, read_text, write_atomic


@pytest.fixture
def victim(tmp_path):
    file = tmp_path / "elsewhere" / "settings"
    file.parent.mkdir()
    file.write_text("mine\n")
    return file


@pytest.fixture(params=["pipe", "device", "socket"])
def odd(request, tmp_path):
    """What is no file, in the place of one."""
    path = tmp_path / "odd"
    if request.param == "pipe":
        os.mkfifo(path)
    elif request.param == "device":
        path.symlink_to("/dev/zero")
    else:
        with socket.socket(socket.AF_UNIX) as held:
            held.bind(str(path))
    return path


class TestOddities:
    """Each of these would wait, or read, for ever."""

    def test_nothing_is_read_from_or_added_to_what_is_no_file(self, odd):
        with pytest.raises(OSError, match=r"Not a file|No such device"):
            read_text(odd)
        with pytest.raises(OSError, match=r"Not a file|No such device|Too many levels"):
            append_line(odd, {})

    @pytest.mark.parametrize("name", ["run.json", "sweep.json"])
    def test_a_report_says_so(self, odd, name, tmp_path):
        folder = tmp_path / "run" / "grpo_plus"
        folder.mkdir(parents=True)
        (folder / "metrics.jsonl").touch()
        (folder / "run.json").write_text('{"schema": 1}')
        odd.replace(folder / name)
        with pytest.raises(RunError, match=rf"cannot be read: .*{name}"):
            write_report(tmp_path / "run")

    @pytest.mark.slow
    def test_a_text_that_is_too_large_is_not_read(self, tmp_path):
        with (tmp_path / "large").open("wb") as file:
            file.truncate(MOST_BYTES + 1)
        with pytest.raises(OSError, match="too large"):
            read_text(tmp_path / "large")


@pytest.fixture
def device(tmp_path):
    """A device like /dev/null, which root could replace."""
    path = tmp_path / "null"
    try:
        os.mknod(path, 0o666 | stat.S_IFCHR, os.makedev(1, 3))
        path.write_text("")
    except PermissionError:
        pytest.skip("devices cannot be made here")
    return path


class TestNamed:
    """What a user says is written to: a device stays a device."""

    @pytest.fixture
    def run(self, tmp_path):
        folder = tmp_path / "run" / "grpo_plus"
        folder.mkdir(parents=True)
        append_line(folder / "metrics.jsonl", {"kind": "train", "step": 1, "values": {"reward": 1.0}})
        return folder.parent

    def test_a_device_is_written_to_and_stays(self, run, device):
        write_report(run, device)
        assert device.is_char_device()
        with pytest.raises(OSError, match="not replaced"):
            write_atomic(device, "x")
        assert device.is_char_device()

    def test_the_names_of_devices_count_as_devices(self, tmp_path):
        from grpo_verifiers.files import _is_device

        # Looked at, not written to: a failing test must not replace them.
        assert all(map(_is_device, map(Path, ("/dev/null", "/dev/stdout", "/tmp/../dev/stdout"))))
        (tmp_path / "link").symlink_to("/dev/zero")
        assert not _is_device(tmp_path / "link"), "somebody's link is replaced"

    def test_a_pipe_gets_the_page(self, run, tmp_path):
        os.mkfifo(tmp_path / "pipe")
        reader = subprocess.Popen(["cat", str(tmp_path / "pipe")], stdout=subprocess.PIPE)
        write_report(run, tmp_path / "pipe")
        assert b"</html>" in reader.communicate(timeout=60)[0]
        assert (tmp_path / "pipe").is_fifo()

    @pytest.mark.parametrize("name", ["a" * 300 + ".html", "~nobody-of-this-name/x.html"])
    def test_a_name_that_no_file_can_have_is_an_error(self, run, name):
        with pytest.raises(RunError, match="cannot be"):
            write_report(run, name)
        with pytest.raises(RunError):
            write_report(name)


class TestWhole:
    def test_a_link_is_replaced_and_its_target_stays(self, tmp_path, victim):
        (tmp_path / "run.json").symlink_to(victim)
        write_atomic(tmp_path / "run.json", "new")
        assert (victim.read_text(), (tmp_path / "run.json").read_text()) == ("mine\n", "new")
        assert not (tmp_path / "run.json").is_symlink()

    def test_no_name_that_was_used_once_is_used_again(self, tmp_path):
        program = (
            "import sys, pathlib; from grpo_verifiers.files import write_atomic\n"
            "sys.addaudithook(lambda e, a: e == 'open' and '.tmp' in str(a[0]) and print(a[0]))\n"
            "for _ in range(50): write_atomic(pathlib.Path(sys.argv[1]) / 'x', 'y')"
        )
        done = subprocess.run([sys.executable, "-c", program, tmp_path], capture_output=True, text=True, check=True)
        names = done.stdout.split()
        assert len(names) == len(set(names)) == 50
        assert [path.name for path in tmp_path.iterdir()] == ["x"]

    def test_a_draft_that_fails_leaves_nothing(self, tmp_path):
        (tmp_path / "taken" / "by").mkdir(parents=True)
        with pytest.raises(OSError, match="taken"):
            write_atomic(tmp_path / "taken", "text")
        assert [path.name for path in tmp_path.iterdir()] == ["taken"]

    def test_its_rights_follow_the_umask_and_its_name_may_be_as_long_as_names_get(self, tmp_path):
        old = os.umask(0o027)
        try:
            write_atomic(tmp_path / ("n" * 255), b"\x00\xff")
        finally:
            os.umask(old)
        assert (tmp_path / ("n" * 255)).read_bytes() == b"\x00\xff"
        assert (tmp_path / ("n" * 255)).stat().st_mode & 0o777 == 0o640


@pytest.mark.parametrize("mode", ["a", "w", "a+b", "wb"])
def test_nothing_is_opened_through_a_link(tmp_path, victim, mode):
    for target in (victim, tmp_path / "elsewhere" / "missing"):
        (tmp_path / "link").symlink_to(target)
        with pytest.raises(OSError, match="symbolic links"):
            open_own(tmp_path / "link", mode)
        (tmp_path / "link").unlink()
    assert (victim.read_text(), [path.name for path in victim.parent.iterdir()]) == ("mine\n", ["settings"])


def test_what_stands_behind_planted_links_stays(tmp_path, victim):
    (tmp_path / "metrics.jsonl").symlink_to(victim)
    with pytest.raises(OSError, match="symbolic links"):
        append_line(tmp_path / "metrics.jsonl", {"step": 1})
    (tmp_path / "out").mkdir(parents=True)
    (tmp_path / "out" / LOCK).symlink_to(victim)
    with pytest.raises(UserError):
        claimed(tmp_path / "out").__enter__()
    for name in ("s.jsonl", "s.json"):
        (tmp_path / name).symlink_to(victim)
    with pytest.raises(StoreError):
        SampleStore(tmp_path / "s.jsonl", {})
    SampleStore(tmp_path / "s.jsonl", {}, overwrite=True).close()
    run, here = tmp_path / "run", os.getpid()
    (run / "grpo_plus").mkdir(parents=True)
    append_line(run / "grpo_plus" / "metrics.jsonl", {"kind": "train", "step": 1, "values": {"reward": 1.0}})
    for name in ("report.html", *(f".report.html.{pid}.tmp" for pid in range(here - 5, here + 5))):
        (run / name).symlink_to(victim)
    assert write_report([run]) == run / "report.html"
    assert victim.read_text() == "mine\n"


@pytest.mark.slow
def test_every_writer_of_the_package_goes_through_these_two():
    allowed = {
        ("files.py", "open"),
        ("__init__.py", "write_text"),  # in a folder with a random name that was made a moment before
        ("tools.py", "write_text"),  # the same
        ("reward_model.py", "write_text"),  # the same
        ("store.py", "write_text"),  # the same
        ("plan.py", "write_text"),  # in a temporary folder
        ("verify.py", "open"),  # with a name that the user gave; without one, `open_own`
    }
    found = set()
    for path in Path(grpo_plus.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call):
                continue
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            words = [one.value for one in ast.walk(node) if isinstance(one, ast.Constant)]
            writes = any(word in {"w", "a", "x", "wb", "ab", "a+", "w+", "a+b", "xb"} for word in words)
            if name in {"write_text", "write_bytes", "mkstemp", "touch"} or (name in {"open", ""} and writes):
                found.add((path.name, name or "open"))
            if isinstance(node.func, ast.Name) and name == "open" and any(k.arg == "opener" for k in node.keywords):
                found.add((path.name, name))
    assert found <= allowed


def test_a_line_cut_anywhere_by_a_kill_leaves_the_lines_before_and_room_for_more(tmp_path):
    path = tmp_path / "metrics.jsonl"
    for step in (1, 2):
        append_line(path, {"step": step, "text": "é" * 40_000 * (step == 2)})
    whole = path.read_bytes()
    first = whole.index(b"\n") + 1
    for cut in [*range(first, first + 60), *range(len(whole) - 60, len(whole) + 1)]:
        path.write_bytes(whole[:cut])
        before = [line["step"] for line in read_lines(path) if line is not None]
        assert before == ([1, 2] if cut >= len(whole) - 1 else [1])
        append_line(path, {"step": 3})
        assert [line["step"] for line in read_lines(path) if line is not None] == [*before, 3]


def test_a_line_that_a_full_disk_does_not_take_is_left_out_whole(small_disk):
    disk = small_disk(64 * 1024)
    path = disk / "metrics.jsonl"
    append_line(path, {"step": 1})
    (disk / "other").write_bytes(bytes(40_000))
    before = path.read_bytes()
    with pytest.raises(OSError, match="No space left"):
        append_line(path, {"step": 2, "text": "x" * 100_000})
    assert path.read_bytes() == before
    (disk / "other").unlink()
    append_line(path, {"step": 3})
    assert [line and line["step"] for line in read_lines(path)] == [1, 3]
