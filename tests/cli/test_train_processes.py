"""The train command as a process of its own: signals, an output folder in use, a terminal, a tracker's store."""

import json
import os
import pty
import re
import select
import signal
import sqlite3
import subprocess
import sys
import termios
import threading

import pytest

from grpo_plus.record import open_run
from tests import started

pytestmark = pytest.mark.slow

SLOW = """
import time

def slow(completions, **_):
    time.sleep(0.2)
    return [sum(c.isdigit() for c in str(text)) / 8 for text in completions]

calls = 0

def told(completions, **_):
    global calls
    calls += 1
    print("scoring", calls, flush=True)
    time.sleep(1)
    return [0.0 for _ in completions]

def endless(completions, **_):
    print("scoring begins", flush=True)
    time.sleep(600)
    return [0.0 for _ in completions]
"""


@pytest.fixture
def process(folder, clean_environment, end_tree):
    """Starts the command in a process of its own, in a session of its own; ends whatever is left of it."""
    running = []

    def process(*arguments, environment=(), **keywords):
        command = [sys.executable, "-u", "-m", "grpo_plus.cli", "train", *map(str, arguments)]
        variables = {**clean_environment, **dict(environment)}
        options = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, **keywords}
        running.append(started.Popen(command, cwd=folder, env=variables, start_new_session=True, **options))
        return running[-1]

    yield process
    end_tree(*running)


def saved_at(folder, step):
    saved = folder / "out" / f"checkpoint-{step}"
    assert json.loads((saved / "trainer_state.json").read_text())["global_step"] == step
    assert {"model.safetensors", "optimizer.pt", "scheduler.pt"} <= {file.name for file in saved.iterdir()}
    return saved


def lines_until(process, word, seconds=90):
    found = []
    watch = threading.Timer(seconds, process.kill)
    watch.start()
    for line in process.stdout:
        found.append(line)
        if word in line:
            break
    watch.cancel()
    assert any(word in line for line in found), "".join(found)
    return "".join(found)


def test_ctrl_c_saves_and_the_printed_command_goes_on_from_there(process, cli, config, folder):
    (folder / "slow.py").write_text(SLOW)
    path = config(max_steps=400, disable_tqdm=False, reward_funcs=["./slow.py:slow"])
    running = process(path, "--seed", "3")
    begun = lines_until(running, "step 2/400")

    err = cli.refused("train", path)  # while the first one writes there
    assert f"is in use: another run writes there (process {running.pid} on " in err

    running.send_signal(signal.SIGINT)
    out, _ = running.communicate(timeout=60)
    assert running.returncode == 130, out
    assert "Stopping: this step is finished first" in out
    assert "Traceback" not in out
    assert "FutureWarning" not in begun + out
    stopped = int(re.search(r"Stopped after step (\d+) of 400", out)[1])
    assert 2 <= stopped < 400
    saved = saved_at(folder, stopped)
    assert not (folder / "out" / "model.safetensors").exists()  # that would look like the end of a run
    assert not (folder / "out" / "_grpo_plus.lock").exists()
    command = re.search(r"^  grpo-plus train (.+)$", out, re.MULTILINE)[1].split()
    assert command == [path, "--seed", "3", "--resume_from_checkpoint", "last"]

    err = cli.refused("train", path)
    assert f"holds 1 checkpoint of an earlier run. Either:\n  resume checkpoint-{stopped}" in err
    out = cli.done("train", *command, "--max_steps", str(stopped + 2))
    assert f"Resuming from {saved}" in out
    steps = [int(step) for step in re.findall(r"^step (\d+)/", out, re.MULTILINE)]
    assert steps == [stopped + 1, stopped + 2]
    assert (folder / "out" / "model.safetensors").exists()


def test_a_long_evaluation_is_left_and_the_step_before_it_saved(process, cli, config, folder):
    (folder / "slow.py").write_text(SLOW)
    settings = {"eval_strategy": "steps", "eval_steps": 1, "per_device_eval_batch_size": 4, "report": True}
    path = config(max_steps=3, dataset_test_split="train", reward_funcs=["./slow.py:told"], **settings)
    running = process(path)
    lines_until(running, "scoring 3")  # a step, and the first of sixteen batches of its evaluation
    running.send_signal(signal.SIGTERM)
    out, _ = running.communicate(timeout=90)
    assert running.returncode == 143, out
    assert "Traceback" not in out
    assert out.count("scoring") <= 2
    assert "Stopped after step 1 of 3. Resume with:" in out
    saved_at(folder, 1)
    assert open_run(folder / "out").status == "interrupted"
    cli.done(
        "train",
        path,
        "--resume_from_checkpoint",
        "last",
        "--max_steps",
        "2",
        "--eval_strategy",
        "no",
        "--allow_changes",
    )
    assert (folder / "out" / "model.safetensors").exists()


def test_two_processes_are_two_ranks_and_stop_after_the_same_step(process, config, folder):
    """``accelerate launch --cpu --num_processes 2`` alone would start one, and train on half of the batch."""
    path = config(max_steps=500, disable_tqdm=False, per_device_train_batch_size=4)
    running = process(path, "--num_processes", "2", "--cpu")
    lines_until(running, "step 3/500")
    running.send_signal(signal.SIGINT)  # a terminal tells the launcher only: its ranks are in sessions of their own
    out, _ = running.communicate(timeout=90)
    assert running.returncode == 130, out
    assert "Traceback" not in out
    stopped = int(re.search(r"Stopped after step (\d+) of 500", out)[1])
    saved = saved_at(folder, stopped)
    assert {"rng_state_0.pth", "rng_state_1.pth"} <= {file.name for file in saved.iterdir()}
    first = json.loads((saved / "trainer_state.json").read_text())["log_history"][0]
    assert first["epoch"] == 2 / 16  # each rank drew one prompt
    assert f"grpo-plus train {path} --num_processes 2 --cpu --resume_from_checkpoint last" in out


@pytest.mark.nightly
def test_a_mistake_that_the_ranks_find_has_the_exit_code_of_a_mistake(process, config):
    path = config(resume_from_checkpoint="last", per_device_train_batch_size=4)
    running = process(path, "--num_processes", "2")
    out, _ = running.communicate(timeout=90)
    assert running.returncode == 2, out
    assert "there is nothing to resume" in out
    assert "Traceback" not in out


def test_a_second_ctrl_c_ends_at_once(process, config, folder):
    (folder / "slow.py").write_text(SLOW)
    running = process(config(max_steps=40, disable_tqdm=False, reward_funcs=["./slow.py:endless"]))
    lines_until(running, "scoring begins")
    running.send_signal(signal.SIGINT)
    lines_until(running, "Again: at once.")
    assert running.poll() is None
    running.send_signal(signal.SIGINT)
    assert running.wait(timeout=60) == 130


def test_a_terminal_shows_lines_and_a_bar_and_the_tracker_gets_every_metric(process, config, folder):
    pytest.importorskip("trackio")
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (40, 120))  # of none, the bar is empty
    given = {"disable_tqdm": False, "report_to": "trackio", "run_name": "shown", "project": "shown", "max_steps": 4}
    given |= {"eval_strategy": "steps", "eval_steps": 2, "per_device_eval_batch_size": 8, "num_generations_eval": 4}
    path = config(advantage="sign", eval_verifiers=[{"name": "exact", "label": "right"}], **given)
    (folder / "rows").mkdir()
    rows = (folder / "data.jsonl").read_text()
    (folder / "rows" / "train.jsonl").write_text(rows)
    (folder / "rows" / "test.jsonl").write_text("\n".join(rows.splitlines()[:8]) + "\n")
    flags = ["--dataset_name", folder / "rows", "--dataset_test_split", "test"]
    environment = {"TERM": "xterm-256color", "COLUMNS": "120", "LINES": "40", "NO_COLOR": "1"}
    environment["TRACKIO_DIR"] = str(folder / "trackio")
    running = process(path, *flags, stdout=theirs, stderr=theirs, text=False, environment=environment)
    os.close(theirs)
    shown = b""
    while running.poll() is None or select.select([ours], [], [], 0.2)[0]:
        if select.select([ours], [], [], 1)[0]:
            try:
                shown += os.read(ours, 65536)
            except OSError:  # the other end is closed
                break
    os.close(ours)
    text = shown.decode(errors="replace")
    assert running.wait(timeout=60) == 0, text
    assert re.search(r"rollout \d+%, scoring \d+%, update \d+%", text)
    for part in ("step 4/4", "dead groups", "right 0.", "| 4/4 ["):  # the last is of the bar
        assert part in text
    assert not re.search(r"\x1b\[[0-9;]*3[0-9]m", text)  # NO_COLOR

    with sqlite3.connect(folder / "trackio" / "shown.db") as store:
        logged = [json.loads(row[0]) for row in store.execute("SELECT metrics FROM metrics ORDER BY id")]
    keys = {key for row in logged for key in row}
    expected = {"reward", "time/rollout", "time/scoring", "time/update", "advantages/abs_mean", "engine/rows_skipped"}
    assert {f"train/{name}" for name in expected} | {"eval/rewards/right/mean", "eval/score"} <= keys
    assert len([row for row in logged if "train/time/update" in row]) == 4
