"""Several machines, as the README says: the same run as on one, and a clear end where a rank or machine dies."""

import json
import re
import shutil
import signal
import subprocess
import sys

import pytest
import torch
import yaml
from safetensors.torch import load_file

from tests.engines.two_machines import EXAMPLES, TwoMachines
from tests.two_steps import TRAINING, write_data
from tests.waiting import comes

pytestmark = pytest.mark.nightly

REWARDS = """
import os, signal, time

calls = 0

def digits(completions, **_):
    global calls
    calls += 1
    if os.environ.get("DIES") and calls == 2 and os.environ["RANK"] == os.environ["WHO"]:
        if os.environ["DIES"] == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if os.environ["DIES"] == "raise":
            raise ValueError("this batch is bad")
    return [sum(c.isdigit() for c in str(text)) / 8 for text in completions]
"""
CHANGES = {"advantage": "zscore", "max_steps": 4, "per_device_train_batch_size": 4}
CHANGES |= {"save_strategy": "steps", "save_steps": 2}
LIMIT = 300  # a busy machine takes its time; nothing waits that long otherwise


@pytest.fixture(scope="module")
def machines(port, clean_environment, end_tree):
    found = TwoMachines(port, clean_environment, end_tree)
    yield found
    found.close()


@pytest.fixture
def place(tmp_path, tiny_model, machines):
    write_data(tmp_path, REWARDS)
    values = yaml.safe_load(TRAINING.format(model=tiny_model, folder=tmp_path)) | CHANGES
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(values))
    (tmp_path / "out").mkdir()
    yield tmp_path
    machines.clear()


@pytest.fixture
def logs(place):
    return [place / f"log{number}" for number in range(2)]


@pytest.fixture
def one_machine(place, clean_environment, end_tree):
    processes = []

    def one_machine(*flags, seconds=LIMIT, environment=(), launcher=()):
        launch = ["--accelerate_config", EXAMPLES / "accelerate" / "ddp_cpu.yaml", "--main_process_port", "0"]
        words = [sys.executable, *launcher, "-m", "grpo_plus.cli", "train", place / "config.yaml"]
        words += [*(() if launcher else launch), *flags]
        variables = {**clean_environment, "CUDA_VISIBLE_DEVICES": "", **dict(environment)}
        with (place / "log").open("w") as log:
            streams = {"stdout": log, "stderr": subprocess.STDOUT, "start_new_session": True}
            process = subprocess.Popen([str(word) for word in words], cwd=place, env=variables, **streams)
        processes.append(process)
        return process.wait(seconds), (place / "log").read_text()

    yield one_machine
    for process in processes:
        end_tree(process)


def losses(folder):
    history = json.loads((folder / "trainer_state.json").read_text())["log_history"]
    return [(row["step"], row["loss"], row["grad_norm"], row["reward"]) for row in history if "loss" in row]


def same_weights(one, two):
    one, two = load_file(one / "model.safetensors"), load_file(two / "model.safetensors")
    return one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one)


def last_lines(text, count=3):
    return "\n".join(text.strip().splitlines()[-count:])


def test_two_machines_train_and_resume_as_two_ranks_of_one_machine_do(place, logs, machines, one_machine):
    config = place / "config.yaml"
    codes, texts = machines.run(config, logs=logs)
    assert codes == [0, 0], texts
    assert [text.count("The model is in") for text in texts] == [1, 0]
    code, text = one_machine("--output_dir", place / "alone")
    assert code == 0, text
    assert len(losses(place / "alone" / "checkpoint-4")) == 4
    assert losses(place / "out" / "checkpoint-4") == losses(place / "alone" / "checkpoint-4")
    assert same_weights(place / "out", place / "alone")

    # Killed after the second step: the same command goes on, on both machines, and ends as the unbroken run.
    shutil.move(place / "out" / "checkpoint-4", place / "unbroken")
    codes, texts = machines.run(config, "--resume_from_checkpoint", "auto", logs=logs)
    assert codes == [0, 0], texts
    assert "Resuming from" in texts[0]
    assert "checkpoint-2" in texts[0]
    assert losses(place / "out" / "checkpoint-4") == losses(place / "unbroken")
    assert same_weights(place / "out" / "checkpoint-4", place / "unbroken")


def test_machines_with_other_settings_or_other_data_end_with_what_differs(place, logs, machines):
    config = place / "config.yaml"
    codes, texts = machines.run(config, logs=logs, each=(("--beta", "0.1"), ("--max_steps", "5")))
    assert codes == [2, 2]
    for text in texts:
        last = last_lines(text)
        assert "were not started alike" in last
        for name, first, second in (("max_steps", "4", "5"), ("beta", "0.1", "0.0")):
            assert re.search(rf"(?m)^  {name}: {first} on rank 0 \(.+\), {second} on rank 1 \(.+\)$", last)
        assert "Traceback" not in text
    rows = (place / "data.jsonl").read_text().splitlines()
    (place / "other.jsonl").write_text("\n".join([rows[0].replace("0+1=", "other"), *rows[1:]]) + "\n")
    codes, texts = machines.run(config, logs=logs, each=((), ("--dataset_name", "./other.jsonl")))
    assert codes == [2, 2]
    assert all(re.search(r"^  data\.digest: ", last_lines(text), re.MULTILINE) for text in texts), texts


def test_machines_that_share_no_folder_never_start_anew_without_a_word(place, logs, machines):
    if not machines.apart:
        pytest.skip("needs namespaces, which this user may not make")
    config, out = place / "config.yaml", place / "out"
    owns = [place / "own0", place / "own1"]
    for own in owns:
        own.mkdir()
    private = [(own, out) for own in owns]
    codes, texts = machines.run(config, "--max_steps", "2", logs=logs, private=private)
    assert codes == [0, 0], texts
    assert (owns[0] / "checkpoint-2" / "model.safetensors").is_file()
    assert not (owns[1] / "checkpoint-2" / "model.safetensors").exists()
    assert not list(out.iterdir())

    resume = ("--resume_from_checkpoint", "auto", "--max_steps", "3")
    codes, texts = machines.run(config, *resume, logs=logs, private=private)
    assert codes == [2, 2]
    for text in texts:
        assert "checkpoint-2 is not whole on every machine" in last_lines(text)
        assert "rank 1 (" in last_lines(text)
        assert "Copy the checkpoint of machine 0 to the same path there" in last_lines(text)
    shutil.copytree(owns[0] / "checkpoint-2", owns[1] / "checkpoint-2", dirs_exist_ok=True)
    codes, texts = machines.run(config, *resume, logs=logs, private=private)
    assert codes == [0, 0], texts
    assert "Resuming from" in texts[0]
    assert [step for step, *_ in losses(owns[0] / "checkpoint-3")] == [1, 2, 3]


def test_a_machine_that_never_comes_is_named_and_one_that_waits_ends_with_a_signal(place, logs, machines):
    process = machines.start(0, place / "config.yaml", "--rdzv_conf", "timeout=5", log=logs[0], port=machines._port())
    assert process.wait(LIMIT) == 1  # a cluster may start it again, unlike a config that is wrong
    text = logs[0].read_text()
    assert "grpo-plus train: Timed out" in text
    assert "Traceback" not in text
    processes = [
        machines.start(number, place / "config.yaml", log=logs[number], port=machines._port()) for number in range(2)
    ]
    assert not comes(lambda: any(process.poll() is not None for process in processes), 20)
    for process, number in zip(processes, (signal.SIGINT, signal.SIGTERM), strict=True):
        process.send_signal(number)
    assert [process.wait(LIMIT) for process in processes] == [130, 143]
    assert not any("Traceback" in log.read_text() for log in logs)


def test_a_rank_that_fails_ends_the_other_with_its_exit_code(one_machine):
    code, text = one_machine(environment={"DIES": "raise", "WHO": "1"})
    assert code == 2
    assert "ValueError: this batch is bad" in text
    assert "ChildFailedError" not in text


def test_under_torchs_own_launcher_a_rank_that_fails_ends_the_other_too(place, one_machine, port):
    bad = "if os.environ.get('RANK') == '1':\n    raise ValueError('this file is bad')\n"
    (place / "rewards.py").write_text(REWARDS + bad)
    launcher = ("-m", "torch.distributed.run", "--nproc_per_node", "2", "--master_port", str(port()))
    code, text = one_machine(launcher=launcher, environment={"ACCELERATE_USE_CPU": "true"})
    assert code == 1
    assert "rewards.py cannot be imported: ValueError: this file is bad" in text
    assert text.index("this file is bad") < text.index("ChildFailedError")


def test_a_rank_that_waits_for_a_dead_one_is_ended(place, one_machine):
    """Rank 0 hangs where no signal is heard, as in a collective of a backend that does not notice."""
    (place / "rewards.py").write_text(
        REWARDS.replace("    return [sum", "    if os.environ['RANK'] == '0' and calls == 2: hang()\n    return [sum")
        + "\ndef hang():\n    import ctypes\n    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])\n"
        "    ctypes.CDLL(None).sleep(600)\n"
    )
    code, text = one_machine(environment={"DIES": "kill", "WHO": "1"}, seconds=LIMIT)
    assert code == 1
    assert "of the ranks, 0 was killed by SIGKILL, 1 was killed by SIGKILL. Resume" in last_lines(text)
    assert last_lines(text, 1).endswith("--resume_from_checkpoint last")
    assert "ChildFailedError" not in text


def test_a_rank_that_is_killed_ends_both_machines(place, logs, machines):
    codes, texts = machines.run(place / "config.yaml", logs=logs, environment={"DIES": "kill", "WHO": "1"})
    assert codes == [1, 1]
    assert "of the ranks, 1 was killed by SIGKILL. Resume" in last_lines(texts[1])
    assert "of the ranks, 0 ended with exit code 1. Resume" in last_lines(texts[0])
    for number, text in enumerate(texts):
        assert f"--machine_rank {number}" in last_lines(text, 1)
