"""What ranks of one machine tell their launcher, and whose message it prints last."""

import errno
import io
import json
import os
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import psutil
import pytest

from grpo_plus.cli import UserError, _ranks, _watch
from grpo_plus.cli._launch import _check_machines
from grpo_plus.cli._machines import Machines
from grpo_plus.cli._ranks import Fault, Own, cause, report
from grpo_plus.cli._watch import Watch
from grpo_plus.training.agreement import Agreement
from tests.waiting import comes

RANK = """
import sys, time
from grpo_plus.cli import _ranks
own = _ranks.own()
if "fault" in sys.argv:
    own.failed("it broke", 3)
if "done" in sys.argv:
    own.done()
print("up", flush=True)
if "farewell" in sys.argv:
    time.sleep(8)  # longer than others are given
    sys.exit(3)
time.sleep(600)
"""


@pytest.fixture(autouse=True)
def as_before():
    """A rank that has told why it failed no longer hears SIGTERM; this process goes on."""
    handler = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, handler)


@pytest.fixture
def rank(tmp_path):
    started = []

    def rank(number, *words):
        environment = {**os.environ, _ranks.FOLDER: str(tmp_path), "RANK": str(number), "WORLD_SIZE": "3"}
        process = subprocess.Popen([sys.executable, "-c", RANK, *words], env=environment, stdout=subprocess.PIPE)
        started.append(process)
        assert process.stdout.readline() == b"up\n"
        return process

    yield rank
    for process in started:
        process.kill()
        process.wait()
        process.stdout.close()


def test_a_killed_rank_is_dead_and_one_that_said_so_is_done(rank, tmp_path):
    processes = [rank(0), rank(1), rank(2, "done")]
    assert _ranks.dead(tmp_path) == []
    assert _ranks.started(tmp_path) == {number: process.pid for number, process in enumerate(processes)}
    processes[1].kill()
    processes[2].kill()
    for process in processes[1:]:
        process.wait()
    assert _ranks.dead(tmp_path) == [1]
    own = Own(tmp_path, rank=1, ranks=3)
    assert own.dead() == []  # the others
    assert Own(tmp_path, rank=0, ranks=3).dead() == [1]


def test_a_killed_rank_is_dead_before_its_launcher_has_looked_after_it(rank, tmp_path):
    killed = rank(1)
    killed.kill()
    os.waitid(os.P_PID, killed.pid, os.WEXITED | os.WNOWAIT)  # it has ended, and is still in the table of processes
    assert _ranks.dead(tmp_path) == [1]


def test_another_process_with_the_number_of_a_dead_rank_is_not_taken_for_it(rank, tmp_path):
    alive = rank(0)
    told = tmp_path / "1.alive"
    told.write_text(json.dumps({"pid": alive.pid, "born": 1.0, "who": "rank 1"}))  # long before
    assert _ranks.dead(tmp_path) == [1]


def test_a_rank_lives_on_when_the_clock_is_set(rank, tmp_path, monkeypatch):
    rank(0)
    start, create = psutil.boot_time, psutil.Process.create_time
    monkeypatch.setattr(psutil, "boot_time", lambda: start() + 3600)
    monkeypatch.setattr(psutil.Process, "create_time", lambda self: create(self) + 3600)
    assert _ranks.dead(tmp_path) == []


WAITS = """
import time
from grpo_plus.cli._signals import PassedOn
with PassedOn():
    print("up", flush=True)
    time.sleep(30)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_launcher_whose_output_nobody_reads_any_more(number):
    words = [sys.executable, "-c", WAITS]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "up\n"
        process.stdout.close()
        process.stderr.close()
        process.send_signal(number)
        assert process.wait(20) == 128 + number


class Full(io.StringIO):
    def write(self, _):
        raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.slow
def test_the_watch_goes_on_where_its_note_cannot_be_written(tmp_path, monkeypatch):
    looks = []
    others = SimpleNamespace(other=lambda: looks.append(1), gone=lambda: None, awaited=lambda: "waiting")
    monkeypatch.setattr(_watch, "PATIENCE", 0)
    monkeypatch.setattr(sys, "stderr", Full())
    with Watch(tmp_path, others):
        assert comes(lambda: len(looks) > 3, 20)


@pytest.mark.nightly
def test_ranks_that_have_told_why_they_failed_may_end_their_work_but_not_for_ever(rank, tmp_path):
    hangs, ends, stays = rank(0), rank(1, "fault", "farewell"), rank(2, "fault")
    with Watch(tmp_path):
        ends.send_signal(signal.SIGTERM)  # as torch does where another rank has ended
        assert hangs.wait(30) == -signal.SIGKILL
        assert ends.wait(30) == 3
        assert stays.wait(30) == -signal.SIGKILL


def test_a_rank_that_fails_after_another_was_killed_only_follows(rank, tmp_path):
    rank(1, "fault")
    (first,) = _ranks.faults(tmp_path)
    assert (first.text, first.code, first.follows) == ("it broke", 3, False)
    process = rank(0)
    process.kill()
    process.wait()
    rank(2, "fault")
    assert [fault.follows for fault in _ranks.faults(tmp_path)] == [False, True]


def test_errors_of_a_lost_connection_follow_others(tmp_path):
    for error, follows in (
        (RuntimeError("[gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:46818"), True),
        (RuntimeError("NCCL communicator was aborted on rank 0"), True),
        (ConnectionResetError("connection reset by peer"), True),
        (RuntimeError("size of tensor a must match"), False),
        (ValueError("gloo is a word in this message"), False),
    ):
        Own(tmp_path, rank=0, ranks=2).failed(str(error), 1, error)
        assert [fault.follows for fault in _ranks.faults(tmp_path)] == [follows]


def test_the_cause_is_what_follows_nothing_and_its_message_is_last():
    lost = Fault("rank 0", "RuntimeError: Connection closed by peer", follows=True)
    bad, killed = Fault("rank 1", "Traceback\nValueError: bad"), Fault("rank 2", "was killed", sudden=True)
    assert cause([lost, bad], [killed]) is bad
    assert cause([lost], [killed]) is killed
    assert cause([lost], []) is lost
    assert cause([], []) is None
    lost = Fault("rank 0", "Traceback\n  many lines\nRuntimeError: Connection closed by peer", follows=True)
    killed = Fault("rank 1", "the process was killed (SIGKILL).", sudden=True)
    others = "The others ended after it:\n  rank 0: RuntimeError: Connection closed by peer\n"
    told = others + "rank 1: the process was killed (SIGKILL).\nResume with:\n  this"
    assert report(killed, [lost], "Resume with:\n  this") == told
    mistake = [Fault(f"rank {number}", "grpo-plus train: a mistake", 2) for number in range(3)]
    assert report(mistake[0], mistake[1:], "Resume") == "grpo-plus train: a mistake"


def test_without_a_launcher_nothing_is_told(monkeypatch):
    monkeypatch.delenv(_ranks.FOLDER, raising=False)
    own = Own.announced()
    assert own.failed("text", 1) is False
    assert own.dead() == []
    own.done()


def test_machines_that_could_not_meet_are_refused_before_they_wait():
    uneven = {"num_processes": 5, "main_process_ip": "10.0.0.1"}
    for settings, named in (
        ({"num_processes": 4}, "main_process_ip is not set"),
        (uneven, "is 5, which 2 machines cannot"),
    ):
        with pytest.raises(UserError, match=named):
            _check_machines(settings.get, 2)


@pytest.mark.parametrize("given", ["soon", "-1", "9.9", "nan", "inf"])
def test_a_silence_that_is_no_time_is_refused_before_anything_starts(given, monkeypatch):
    monkeypatch.setenv("GRPO_PLUS_SILENCE", given)
    with pytest.raises(UserError, match=f"GRPO_PLUS_SILENCE is '{given}', expected a number of seconds, at least 10"):
        Machines("localhost", 1, 0, 2)


@pytest.mark.parametrize(("given", "seconds"), [("", 40), ("40", 40), (" 120.5 ", 120.5)])
def test_a_machine_counts_as_gone_after_the_silence_that_is_set(given, seconds, monkeypatch):
    monkeypatch.setenv("GRPO_PLUS_SILENCE", given)
    machines = Machines("localhost", 1, 0, 2)
    now = time.monotonic()
    machines._reached, machines._seen = now, {1: (b"7", now - seconds + 1)}
    assert machines.gone() is None
    machines._seen = {1: (b"7", now - seconds - 1)}
    assert machines.gone().line().startswith(f"machine 1 of 2: no sign of life for {seconds:g} seconds")


def test_checkpoints_on_each_machine_are_refused(monkeypatch, tmp_path):
    setup = SimpleNamespace(args=SimpleNamespace(save_on_each_node=True, world_size=16))
    assert Agreement(None).problems(setup) == []
    monkeypatch.setenv("WORLD_SIZE", "16")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "8")
    assert "save_on_each_node: true" in Agreement(None).problems(setup)[0]
    setup.args.save_on_each_node = False
    assert Agreement(None).problems(setup) == []
