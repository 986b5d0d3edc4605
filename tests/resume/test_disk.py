"""Checkpoints as files, without a training: failed writes, what goes and what stays, what is synced."""

import contextlib
import errno
import os
from pathlib import Path

import pytest
import torch

from grpo_plus.checkpoints import choice, folder, manifest, structure


@pytest.fixture
def made(tmp_path):
    """Makes a checkpoint: of this release, whole or not; or of an older one, last changed at a time."""

    def made(step, *, whole=True, version=2, at=None):
        path = tmp_path / f"checkpoint-{step}"
        path.mkdir(exist_ok=True)
        (path / folder.STATE_FILE).write_text(f'{{"version": {version}}}')
        (path / structure.TRAINER_STATE).write_text(f'{{"global_step": {step}}}')
        if whole and at is None:
            folder.finish(path, int(step))
        for name in (structure.TRAINER_STATE, "."):
            if at is not None:
                os.utime(path / name, (at, at))
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
    assert structure.weights_only(tmp_path) is alone


def whole(path):
    torch.save({"weight": torch.zeros(2)}, path)


@pytest.mark.parametrize(("files", "expected"), [
    ({structure.TRAINER_STATE: None}, f"{structure.TRAINER_STATE} is missing"),
    ({structure.TRAINER_STATE: ...}, f"{structure.TRAINER_STATE} is no file"),
    *(({structure.TRAINER_STATE: text}, f"{structure.TRAINER_STATE} is broken") for text in ("", "{", "[" * 10**5)),
    *(({structure.TRAINER_STATE: text}, f"{structure.TRAINER_STATE} has no global_step") for text in ("[]", "3", "{}", '{"global_step": "4"}')),
    ({"pytorch_model.bin": None}, "it holds no weights"),
    ({structure.TRAINER_STATE: '{"global_step": true}'}, f"{structure.TRAINER_STATE} has no global_step"),
    ({"model.safetensors": os.mkfifo}, "model.safetensors cannot be read: "),  # which would be waited for
    ({"model.safetensors": "x"}, "model.safetensors is not complete (Error while deserializing header:"),
    *(({name: "{"}, f"{name} is broken") for name in structure._JSON),
    *(({name: "[]"}, f"{name} has no weight_map") for name in structure._INDEX),
    *(({name: '{"weight_map": {"b": "y", "a": "x"}}'}, "x is missing") for name in structure._INDEX),
    *(({name: '{"weight_map": {"a": "pytorch_model.bin"}}'}, None) for name in structure._INDEX),
    *(({name: "x"}, f"{name} is not complete") for name in ("training_args.bin", "pytorch_model.bin", "scaler.pt")),
    *(({name: "x"}, f"{name} is not complete") for name in ("optimizer.pt", "adapter_model.bin", "rng_state_7.pth")),
    *(({f"sub/{name}": "x"}, expected) for name, expected in (("a.safetensors", "sub/a.safetensors is not "),)),
    ({"global_step4/a.pt": "x", "latest": ""}, "global_step4/a.pt is not complete"),
    ({"global_step4/a.pt": whole}, "latest is missing"),
    ({"optimizer_0/x": ""}, "optimizer_0/.metadata is missing"),
    ({"pytorch_model_fsdp_0/x": ""}, "pytorch_model_fsdp_0/.metadata is missing"),
    ({"pytorch_model_fsdp_0": whole}, None),
    ({"pytorch_model_fsdp_0/.metadata": "", "optimizer_0/.metadata": "", "scheduler.pt": whole, "rng_state_0.pth": whole}, None),
    ({"pytorch_model_fsdp.bin": whole, "optimizer.bin": whole, "scheduler.pt": whole, "rng_state_0.pth": whole}, None),
    ({"global_step4/a.pt": whole, "latest": "", "rng_state_0.pth": whole}, None),  # its schedule is within
    ({"global_step4/a.pt": whole, "latest": ""}, "rng_state.pth is missing"),
    ({"optimizer.pt": ...}, "optimizer.pt cannot be read: "),
    ({"scheduler.pt": whole}, "optimizer.pt is missing"),
    ({"scheduler.pt": whole, "optimizer.pt": whole}, "rng_state.pth is missing"),
    ({"scheduler.pt": whole, "optimizer.pt": whole, "rng_state.pth": whole}, None),
    ({"scheduler.pt": whole, "optimizer.pt": whole, "rng_state_x.pth": whole}, None),
    ({"scheduler.pt": whole, "optimizer.pt": whole, "rng_state_1.pth": whole}, "rng_state_0.pth is missing"),
])  # fmt: skip
def test_the_first_file_that_is_missing_or_cut_off_is_named(tmp_path, files, expected):
    for name, content in ({structure.TRAINER_STATE: '{"global_step": 4}', "pytorch_model.bin": whole} | files).items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        if content is ...:
            (tmp_path / name).mkdir()
        elif callable(content):
            content(tmp_path / name)
        elif content is not None:
            (tmp_path / name).write_text(content)
    found = structure.problem(tmp_path)
    assert found == expected or (found is not None and expected is not None and found.startswith(expected))


def test_what_a_run_goes_on_from_and_what_it_says_where_there_is_nothing(made, tmp_path):
    with pytest.raises(choice.CheckpointError) as caught:
        choice.resume_choice("last", tmp_path)
    assert "resume_from_checkpoint is 'last', but there is nothing to resume" in str(caught.value)
    with pytest.raises(choice.CheckpointError, match=r"there is no folder .*checkpoint-9.*holds no whole checkpoint"):
        choice.resume_choice(str(tmp_path / "checkpoint-9"), tmp_path)
    made(1)
    path = made(2)
    assert choice.resume_choice("last", tmp_path) == choice.resume_choice(True, tmp_path)
    assert choice.resume_choice(True, tmp_path) == folder.Choice(path, ())
    assert choice.resume_choice(str(path), tmp_path) == folder.Choice(path, ())
    state = path / folder.STATE_FILE
    state.write_bytes(state.read_bytes()[:-1] + b" ")  # of the same size
    assert choice.others(tmp_path) == f"The newest whole one in {tmp_path} is checkpoint-2."  # a look at sizes
    assert [folder.is_whole(path), folder.is_whole(path, hashes=False)] == [False, True]
    assert choice.resume_choice(True, tmp_path).checkpoint.name == "checkpoint-1"
    assert folder.last_checkpoint(tmp_path).name == "checkpoint-1"
    assert folder.last_checkpoint(tmp_path, hashes=False).name == "checkpoint-2"
