"""A disk that fills while something is saved, a folder that is closed: one message, whatever was being written."""

import errno
import re
import resource
import signal
import subprocess
import sys

import pytest
import torch
from safetensors.torch import save_file

from grpo_plus.checkpoints.disk import failed_write
from tests import started

pytestmark = pytest.mark.slow

FILLING = """
seen = []

def filling(completions, **_):
    seen.append(1)
    if len(seen) == {call}:
        {act}
    return [float(len(str(c)) % 3) for c in completions]
"""
FILL = """
                with open({path!r}, "wb", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(4096))
            except OSError:
                pass
            file.truncate(file.tell() - {left})
"""
FREE = """
    if len(seen) == {call}:
        import os
        os.unlink({path!r})"""
UNSAVED = 74
EVERY = {"reward_funcs": ["./filling.py:filling"], "save_strategy": "steps", "save_steps": 1, "max_steps": 3}
AT_THE_END = {"save_strategy": "no", "max_steps": 2, "report": False}


@pytest.fixture
def disk(small_disk):
    return small_disk(4 * 1024 * 1024)


@pytest.fixture
def fill(disk):
    """Fills the disk but for so many bytes, in the text of a reward function."""
    return lambda left: FILL.format(path=str(disk / "other"), left=left)


@pytest.fixture
def run_filling(cli, config, folder, caplog):
    """Trains with a reward function that does something at one of its calls; gives messages."""

    def run_filling(act, call, ends=UNSAVED, **changes):
        (folder / "filling.py").write_text(FILLING.format(call=call, act=act.strip()))
        code, _, err = cli("train", config(**EVERY | changes))
        assert code == ends, err
        assert "Traceback" not in err
        return err + caplog.text

    return run_filling


PLACES = {"nothing": 0, "the card": 16_384, "the weights": 65_536, "the optimizer": 150_000, "its end": 270_000}
ADAPTERS = {"use_peft": True, "lora_r": 64, "lora_target_modules": ["all-linear"]}


@pytest.mark.sample(0, 6)
@pytest.mark.parametrize("record", [True, False])
@pytest.mark.parametrize("kind", [{}, ADAPTERS], ids=["whole", "adapters"])
@pytest.mark.parametrize("left", PLACES.values(), ids=PLACES)
def test_a_disk_that_fills_anywhere_in_a_checkpoint(cli, run_filling, disk, folder, fill, left, kind, record):  # noqa: PLR0917 - its cases
    out = str(disk / "run")
    err = run_filling(fill(left), 2, output_dir=out, report=record, **kind)
    assert f"checkpoint-2 was not written: no space left on the disk of output_dir {out} (" in err
    said = (
        "The last whole checkpoint is checkpoint-1. Free some space: training continues, and the next save tries again."
    )
    assert said in err
    assert "checkpoint-3 was not written: no space left" in err
    assert [folder.name for folder in (disk / "run").glob("checkpoint-*")] == ["checkpoint-1"]
    (disk / "other").unlink()
    cli.done("train", folder / "config.yaml", "--resume_from_checkpoint", "last", "--max_steps", "2")


def test_a_run_goes_on_while_the_disk_is_full_and_leaves_everything_once_it_is_not(run_filling, disk, fill):
    act = fill(16_384) + FREE.format(call=4, path=str(disk / "other"))
    run_filling(act, 2, output_dir=str(disk / "run"), max_steps=4, ends=0)
    assert sorted(folder.name for folder in (disk / "run").glob("checkpoint-*")) == ["checkpoint-1", "checkpoint-4"]
    assert (disk / "run" / "model.safetensors").exists()


def test_a_model_is_lost_where_it_cannot_be_saved(run_filling, disk, fill):
    out = disk / "run"
    err = run_filling(fill(32_768), 2, output_dir=str(out), **AT_THE_END)
    assert f"trained to step 2, but the model could not be written to {out}: no space left on the disk" in err
    assert "There is no complete checkpoint to resume from. Free some space and start again; save_strategy" in err
    assert not list(out.glob("*.safetensors"))


def test_a_checkpoint_of_the_last_step_holds_the_model(cli, run_filling, disk, fill, folder):
    out = disk / "run"
    # a checkpoint fits, the model beside it does not
    err = run_filling(fill(420_000), 2, output_dir=str(out), max_steps=2, report=False)
    assert "The last complete checkpoint is checkpoint-2. Free some space, and resume with:\n" in err
    (disk / "other").unlink()
    done = cli.done("train", folder / "config.yaml", "--resume_from_checkpoint", "last")
    assert f"the model in {out} is not: it is saved now." in done
    assert (out / "model.safetensors").exists()


ENDINGS = {2: (0, "checkpoint-2 was not written"), 3: (UNSAVED, "A longer run resumes from checkpoint-2.")}


@pytest.mark.parametrize("step", ENDINGS)
def test_a_file_where_a_checkpoint_belongs(run_filling, folder, step):
    out, (ends, said) = folder / "out", ENDINGS[step]
    err = run_filling(f"open({str(out / f'checkpoint-{step}')!r}, 'w').close()", 1, ends=ends)
    assert f"output_dir {out} cannot" in err
    assert "Remove the file in its place: training continues, and the next save tries again." in err
    assert said in err
    assert (out / "model.safetensors").exists()


def test_a_folder_that_is_gone_in_the_middle_is_made_again(run_filling, folder):
    out = folder / "out"
    run_filling(f"import shutil; shutil.rmtree({str(out)!r})", 2, ends=0)
    assert sorted(path.name for path in out.glob("checkpoint-*")) == ["checkpoint-2", "checkpoint-3"]
    assert (out / "model.safetensors").exists()


def test_a_file_in_the_place_of_the_folder(run_filling, folder):
    out = folder / "out"
    act = f"import shutil; shutil.rmtree({str(out)!r}); open({str(out)!r}, 'w').close()"
    err = run_filling(act, 2)
    assert f"checkpoint-2 was not written: output_dir {out} cannot be written (" in err
    assert "There is no whole checkpoint yet. Remove the file in its place: training continues" in err


@pytest.mark.parametrize("strategy", ["steps", "no"])
def test_a_folder_that_is_closed_in_the_middle(run_filling, folder, strategy):
    out = folder / "out"
    try:
        act = f"import subprocess; subprocess.run(['chattr', '+i', {str(out)!r}], check=True)"
        out.mkdir()
        done = subprocess.run(["chattr", "+i", out], capture_output=True, check=False)
        if done.returncode:
            pytest.skip("this file system or user cannot make a folder immutable")
        subprocess.run(["chattr", "-i", out], check=True)
        err = run_filling(act, 2, save_strategy=strategy)
        assert f"output_dir {out} cannot be written (Operation not permitted" in err
        assert ("The last whole checkpoint is checkpoint-1." in err) == (strategy == "steps")
    finally:
        subprocess.run(["chattr", "-i", out], check=False)


def test_a_signal_while_the_disk_is_full_stops_and_says_what_is_lost(run_filling, disk, fill):
    act = fill(16_384) + "\n        import os, signal\n        os.kill(os.getpid(), signal.SIGTERM)"
    err = run_filling(act, 2, output_dir=str(disk / "run"))
    assert "stopped after step 2 of 3, whose checkpoint could not be written: no space left on the disk" in err
    assert "The last complete checkpoint is checkpoint-1. Free some space, and resume with:\n" in err
    assert "--resume_from_checkpoint last" in err


def test_measurements_on_a_full_disk_are_taken_all_the_same(run_filling, disk, fill):
    further = {"measure": {"split": "train", "limit": 4}, "verifiers": ["exact"]}
    err = run_filling(fill(0), 2, output_dir=str(disk / "run"), **further)
    assert "the samples of measure were not stored, the run continues: " in err
    assert "trained to step 3, but the model could not be written to" in err


LATE = """
import os
import time
from accelerate import Accelerator
wait = Accelerator.wait_for_everyone
def late(self):
    wait(self)
    if len(seen) >= 3 and os.environ["RANK"] == {rank!r}:
        time.sleep(3)
Accelerator.wait_for_everyone = late
"""


@pytest.mark.parametrize("late", ["0", "1", None])
@pytest.mark.parametrize("interrupted", [False, True])
@pytest.mark.nightly
def test_two_ranks_end_with_one_code(config, folder, disk, fill, clean_environment, interrupted, late):  # noqa: PLR0917 - its cases
    act = fill(16_384).strip()
    if interrupted:  # Ctrl-C for their launcher, at the same moment
        act += "\n        import signal, time\n        os.kill(os.getppid(), signal.SIGINT)\n        time.sleep(1)"
    first = "import os\n    if os.environ['RANK'] == '0' and len(seen)"
    text = FILLING.format(call=2, act=act).replace("if len(seen)", first)
    if late is not None:  # torch ends the rank that is left once the other has ended with an error
        text += LATE.format(rank=late)
    (folder / "filling.py").write_text(text)
    path = config(**EVERY, output_dir=str(disk / "run"))
    command = [sys.executable, "-m", "grpo_plus.cli", "train", path, "--num_processes", "2"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=240, env=clean_environment)
    assert done.returncode == UNSAVED, done.stderr[-6000:]
    assert "Traceback" not in done.stderr
    assert done.stderr.count("checkpoint-2 was not written: no space left on the disk") == 1
    ends = [
        "trained to step 3, but the model could not be written",
        "stopped after step 2 of 3, whose checkpoint could",
    ]
    end = ends[interrupted]
    assert done.stderr.count(end) == 1


def test_a_log_on_the_full_disk_costs_its_lines_only(config, folder, disk, fill, clean_environment):
    act = fill(0).strip() + FREE.format(call=3, path=str(disk / "other"))
    (folder / "filling.py").write_text(FILLING.format(call=2, act=act))
    command = [sys.executable, "-m", "grpo_plus.cli", "train", config(**EVERY, output_dir=str(disk / "run"))]
    options = {"stderr": subprocess.PIPE, "timeout": 240, "env": clean_environment}
    with (disk / "log").open("w") as log:
        done = started.run(command, stdout=log, check=False, **options)
    assert done.returncode == 0, done.stderr
    assert b"Traceback" not in done.stderr
    assert sorted(folder.name for folder in (disk / "run").glob("checkpoint-*")) == ["checkpoint-1", "checkpoint-3"]
    assert "The model is in" in (disk / "log").read_text()


LIMITED = """
import resource, signal, sys
from grpo_plus.cli import main
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]), resource.RLIM_INFINITY))
sys.exit(main(["train", sys.argv[2]]))
"""


@pytest.mark.parametrize("limit", [30_000, 110_000])
def test_a_limit_on_files_is_told_like_a_full_disk(config, folder, limit):
    path = config(save_strategy="steps", save_steps=1, max_steps=2)
    words = [sys.executable, "-c", LIMITED, str(limit), path]
    done = started.run(words, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == UNSAVED, done.stderr
    assert "Traceback" not in done.stderr
    assert "no space left on the disk of output_dir" in done.stderr


def failed(write):
    before = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, before[0][1]))
    try:
        write()
    except Exception as error:
        return error
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before[0])
        signal.signal(signal.SIGXFSZ, before[1])
    raise AssertionError("it was written")


def test_every_way_of_writing_is_understood_and_other_errors_are_not_taken_for_it(tmp_path):
    tensor = torch.rand(100_000)
    for write in (
        lambda: torch.save(tensor, tmp_path / "a.pt"),
        lambda: torch.save(tensor, tmp_path / "a.pt", _use_new_zipfile_serialization=False),
        lambda: save_file({"a": tensor}, tmp_path / "a.safetensors"),
        lambda: (tmp_path / "a.json").write_text("x" * 10**6),
    ):
        assert str(failed_write(failed(write), tmp_path)).startswith("no space left on the disk of output_dir")
    kinds = {PermissionError: errno.EPERM, OSError: errno.EROFS, FileExistsError: errno.EEXIST}
    for error in (kind(number, "no", str(tmp_path / "checkpoint-1")) for kind, number in kinds.items()):
        assert re.match(r"output_dir .* cannot be written \(", str(failed_write(error, tmp_path)))
    for error in (
        RuntimeError("mat1 and mat2 shapes cannot be multiplied"),
        FileNotFoundError(errno.ENOENT, "no", "/somewhere/else/prompt.txt"),
        PermissionError(errno.EACCES, "no", "/dev/mem"),
        ConnectionError(errno.ECONNREFUSED, "no"),
    ):
        assert failed_write(error, tmp_path) is None
