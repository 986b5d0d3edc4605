"""Checkpoints as files, without a training: failed writes, what goes and what stays, what is synced."""

import contextlib
import errno
import os
from pathlib import Path

import pytest

from grpo_plus.checkpoints import folder, manifest


@pytest.fixture
def made(tmp_path):
    """Makes a whole checkpoint of a step."""

    def made(step):
        path = tmp_path / f"checkpoint-{step}"
        path.mkdir()
        (path / folder.STATE_FILE).write_text('{"version": 2}')
        folder.finish(path, step)
        return path

    return made


@pytest.mark.parametrize(
    ("state", "sealed"),
    [(None, False), ('{"version": 1}', True), ('{"version": 2}', True), ('{"version": "1"}', True), ("{", True)],
)
def test_a_state_file_says_whether_a_manifest_was_to_come(tmp_path, state, sealed):
    if state is not None:
        (tmp_path / folder.STATE_FILE).write_text(state)
    assert ("never finished" in folder.problem(tmp_path)) is sealed
    folder.finish(tmp_path, 1)
    assert folder.problem(tmp_path) is None


def opened():
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.mark.needs("/proc/self/fd")
def test_every_file_and_folder_is_synced_before_the_manifest_and_nothing_stays_open(tmp_path, monkeypatch):
    run, inner = tmp_path / "run", tmp_path / "run" / "a" / "b"
    inner.mkdir(parents=True)
    for path in (inner / "deep", run / "flat"):
        path.write_bytes(b"12")
    synced, before = [], opened()
    monkeypatch.setattr(os, "fsync", lambda number: synced.append(Path(f"/proc/self/fd/{number}").readlink()))
    manifest.write(run, 3)
    assert set(synced[:2]) == {inner / "deep", run / "flat"}
    assert set(synced[2:5]) == {inner, inner.parent, run}
    assert synced[5].name.endswith(".tmp")  # the manifest, before it has its name
    assert synced[6:] == [run, tmp_path]
    found = manifest.read(run)
    assert (found.step, found.files["a/b/deep"].size) == (3, 2)
    for number in (errno.EINVAL, errno.ENOTSUP, errno.EBADF, errno.EIO):

        def refused(_, number=number):
            raise OSError(number, "no sync")

        monkeypatch.setattr(os, "fsync", refused)
        with contextlib.nullcontext() if number != errno.EIO else pytest.raises(OSError, match="no sync"):
            manifest._sync_folder(tmp_path)  # some file systems sync no folders
    assert opened() == before


@pytest.mark.parametrize(("name", "alone"), [
    *((name, False) for name in ("optimizer.pt", "optimizer.bin", "rank0optimizer.pt", "optimizer_0/x")),
    *((name, False) for name in ("rng_state.pth", "rng_state_3.pth", "scheduler.pt", "global_step4/x")),
    *((name, True) for name in ("model.safetensors", "scaler.pt", "training_args.bin")),
])  # fmt: skip
def test_a_checkpoint_of_weights_alone_holds_nothing_else_to_go_on_with(tmp_path, name, alone):
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).touch()
    assert folder.weights_only(tmp_path) is alone


@pytest.mark.parametrize(("files", "expected"), [
    ({}, "trainer_state.json is missing or broken"),
    ({"trainer_state.json": ""}, "trainer_state.json is missing or broken"),
    ({"trainer_state.json": '{"log_history": []}'}, "trainer_state.json is missing or broken"),
    ({"trainer_state.json": '{"global_step": 4}', "model.safetensors": ""}, "it holds no weights"),
    *(({"trainer_state.json": '{"global_step": 4}', name: "x"}, None) for name in (
        "model.safetensors", "model-00001-of-00002.safetensors", "adapter_model.safetensors", "adapter_model.bin",
        "pytorch_model.bin", "pytorch_model_fsdp_0/x", "global_step4/x",
    )),
])  # fmt: skip
def test_a_checkpoint_of_trl_is_taken_if_it_has_a_state_and_weights(tmp_path, files, expected):
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(content)
    (tmp_path / "model-1.safetensors").symlink_to("nowhere")
    assert folder.problem(tmp_path) == expected


def test_what_a_run_goes_on_from_and_what_it_says_where_there_is_nothing(made, tmp_path):
    with pytest.raises(folder.CheckpointError) as caught:
        folder.resume_choice("last", tmp_path)
    assert "resume_from_checkpoint is 'last', but there is nothing to resume" in str(caught.value)
    with pytest.raises(
        folder.CheckpointError, match=r"there is no folder .*checkpoint-9.*holds no complete checkpoint"
    ):
        folder.resume_choice(str(tmp_path / "checkpoint-9"), tmp_path)
    made(1)
    path = made(2)
    assert folder.resume_choice("last", tmp_path) == folder.resume_choice(True, tmp_path)
    assert folder.resume_choice(True, tmp_path) == folder.Choice(path, ())
    assert folder.resume_choice(str(path), tmp_path) == folder.Choice(path, ())
    state = path / folder.STATE_FILE
    state.write_bytes(state.read_bytes()[:-1] + b" ")  # of the same size
    assert folder.newest_one(tmp_path) == f"The newest complete one in {tmp_path} is checkpoint-2."  # a look at sizes
    assert [folder.is_intact(path), folder.is_intact(path, hashes=False)] == [False, True]
    assert folder.resume_choice(True, tmp_path).checkpoint.name == "checkpoint-1"
    assert folder.last_checkpoint(tmp_path).name == "checkpoint-1"
    assert folder.last_checkpoint(tmp_path, hashes=False).name == "checkpoint-2"
