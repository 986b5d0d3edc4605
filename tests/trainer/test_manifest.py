"""The manifest of a checkpoint: what it holds, and what it notices."""

import hashlib
import json
import os
import time

import pytest

from grpo_plus.checkpoints import manifest
from grpo_plus.checkpoints.folder import STATE_FILE, checkpoints, choose, finish, in_order, is_whole, problem, rotate

FILES = {
    STATE_FILE: b'{"version": 2, "parts": {}}',
    "optimizer.pt": bytes(range(256)) * 16,
    "ref/adapter.bin": b"x" * 9,
}


@pytest.fixture
def sealed(tmp_path):
    def sealed(step, files=FILES, finished=True):
        folder = tmp_path / "out" / f"checkpoint-{step}"
        for name, data in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(data)
        if finished:
            finish(folder, step)
        return folder

    return sealed


def flip(path, at):
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def names(paths):
    return [path.name for path in paths]


def test_a_manifest_can_be_verified_by_hand(sealed):
    before = time.time()
    content = json.loads((sealed(4) / manifest.FILE).read_text())
    assert content["step"] == 4
    assert before <= content["time"] <= time.time()
    assert content["files"] == {
        name: {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()} for name, data in FILES.items()
    }
    assert list(content["files"]) == sorted(FILES)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda path: path.write_bytes(b""), "has 0 of {size:,} bytes"),
        (lambda path: os.truncate(path, path.stat().st_size - 1), "has {less:,} of {size:,} bytes"),
        (lambda path: path.write_bytes(path.read_bytes() + b"x"), "has {more:,} of {size:,} bytes"),
        (lambda path: path.unlink(), "is missing"),
        (lambda path: (path.unlink(), path.mkdir()), "is no file"),
        (lambda path: (path.unlink(), os.mkfifo(path)), "is no file"),
        (lambda path: (path.unlink(), path.symlink_to("nowhere")), "is missing"),
        (lambda path: flip(path, path.stat().st_size // 2), "holds other bytes than were written"),
    ],
)
def test_a_file_that_changed_is_named(sealed, name, change, words):
    folder = sealed(4)
    assert problem(folder) is None
    change(folder / name)
    size = len(FILES[name])
    assert problem(folder) == f"{name} " + words.format(size=size, less=size - 1, more=size + 1)
    assert (problem(folder, hashes=False) is None) is ("other bytes" in words)  # sizes tell no flipped bytes


def test_a_manifest_with_any_byte_changed_or_cut_off_is_none(sealed):
    path = sealed(4) / manifest.FILE
    data = path.read_bytes()
    for at in range(len(data)):
        path.write_bytes(data[:at])
        assert not is_whole(path.parent), at
        path.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        found = problem(path.parent, hashes=False)
        assert found is not None, at
        assert manifest.FILE in found, at
    path.write_bytes(data)
    assert is_whole(path.parent)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "it was never finished: grpo_plus_manifest.json is missing"),
        ("[]", "is broken"),
        ("[" * 10**5, "is broken"),
        ('{"version": 2, "sha256": "", "step": 1, "time": 1, "files": {}}', "is of version 2, and this release reads"),
        ('{"version": 1, "sha256": "", "step": 1, "time": 1, "files": {"../x": {}}}', "is broken"),
        ('{"version": 1, "sha256": "", "step": 1, "time": 1e999, "files": {}}', "holds other bytes"),
    ],
)
def test_a_manifest_that_is_none(sealed, content, words):
    folder = sealed(4, finished=False)
    if content is not None:
        (folder / manifest.FILE).write_text(content)
    assert words in problem(folder)


def test_odd_names_and_links_are_no_trouble(sealed, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "data").write_bytes(b"1")
    folder = sealed(4, {**FILES, "two words\n'é'": b"2"}, finished=False)
    (folder / os.fsdecode(b"\xff")).write_bytes(b"3")
    (folder / "linked").symlink_to(tmp_path / "elsewhere" / "data")
    (folder / "circle").symlink_to(folder)
    (folder / "nowhere").symlink_to("gone")
    os.mkfifo(folder / "pipe")
    finish(folder, 4)
    assert set(manifest.read(folder).files) == {*FILES, "two words\n'é'", os.fsdecode(b"\xff"), "linked"}
    (folder / "notes.txt").write_text("mine")  # later
    assert is_whole(folder)
    (tmp_path / "elsewhere" / "data").write_bytes(b"4")
    assert problem(folder) == "linked holds other bytes than were written"


def test_the_newest_is_the_one_written_last(sealed, tmp_path):
    for step in (2, 4, 10):
        sealed(step)
    out = tmp_path / "out"
    assert names(in_order(out)) == ["checkpoint-2", "checkpoint-4", "checkpoint-10"]
    finish(out / "checkpoint-4", 4)  # after going on from 2
    assert choose(out).checkpoint.name == "checkpoint-4"
    for path in checkpoints(out):  # a copy has times of its own
        os.utime(path / STATE_FILE, (5, 5))
    assert names(in_order(out)) == ["checkpoint-2", "checkpoint-10", "checkpoint-4"]


def test_a_clock_that_was_set_back_does_not_hide_what_is_new(sealed, tmp_path):
    future = time.time() + 1e6
    manifest.write(sealed(8, finished=False), 8, after=future)
    sealed(2)
    assert choose(tmp_path / "out").checkpoint.name == "checkpoint-2"


def test_torn_ones_that_are_newer_are_passed_over_by_name(sealed, tmp_path):
    for step in (2, 4, 6, 8):
        sealed(step, finished=step != 8)
    os.truncate(tmp_path / "out" / "checkpoint-2" / "optimizer.pt", 3)
    os.truncate(tmp_path / "out" / "checkpoint-6" / "optimizer.pt", 10)
    found = choose(tmp_path / "out")
    assert found.checkpoint.name == "checkpoint-4"
    assert found.passed_over == (
        "checkpoint-8 is passed over: it was never finished: grpo_plus_manifest.json is missing",
        "checkpoint-6 is passed over: optimizer.pt has 10 of 4,096 bytes",
    )


@pytest.mark.parametrize(
    ("kept", "torn", "left"),
    [
        ((None, None), (), [2, 4, 6, 8]),
        ((3, None), (), [4, 6, 8]),
        ((1, None), (), [8]),
        ((1, 4), (), [4, 8]),
        ((2, 4), (), [4, 8]),
        ((3, 2), (), [2, 6, 8]),
        ((2, None), (6,), [4, 8]),  # what is torn goes first
        ((2, 4), (4,), [4, 8]),
        ((2, None), (8,), [4, 6, 8]),  # it may be written just now
        ((1, None), (6, 8), [4, 6, 8]),
        ((1, None), (2, 4, 6, 8), [2, 4, 6, 8]),
    ],
)
def test_rotation_keeps_the_newest_whole_one_and_the_best(sealed, tmp_path, kept, torn, left):
    for step in (2, 4, 6, 8):
        sealed(step, finished=step not in torn)
    out = tmp_path / "out"
    killed = out / ".removing-checkpoint-0-ab"
    killed.mkdir()
    limit, best = kept
    assert rotate(out, limit, best and f"{out}/../out/checkpoint-{best}") == []
    assert names(checkpoints(out)) == [f"checkpoint-{step}" for step in left]
    assert len(list(out.iterdir())) == len(left)


def test_rotation_by_links_leaves_what_they_lead_to(sealed, tmp_path):
    sealed(2).rename(tmp_path / "elsewhere")
    (tmp_path / "out" / "checkpoint-2").symlink_to(tmp_path / "elsewhere")
    sealed(4)
    rotate(tmp_path / "out", 1)
    assert names((tmp_path / "out").iterdir()) == ["checkpoint-4"]
    assert is_whole(tmp_path / "elsewhere")
