"""Checks and batches that attack what runs them: replies for others, closed descriptors, lying verdicts, forks, names."""

import decimal
import json
import os
import pickle
import signal
import stat
import struct
import subprocess
import sys
import threading
import time

import pytest

from grpo_verifiers import Verdict, get_verifier
from grpo_verifiers.exec.runner import Runner
from grpo_verifiers.exec.spec import make_spec
from tests.waiting import comes, gone

WAIT = 60.0


def ask(fn, completions, timeout=10.0):
    """Outcomes of one worker, so that every item follows the one before in the same process."""
    with Runner(1) as runner:
        return runner.submit(make_spec(fn), [(text, {}, None) for text in completions], timeout).wait(WAIT)


def answers(outcomes):
    return [outcome.verdicts[0].score if outcome.verdicts else outcome.kind for outcome in outcomes]


def forge(completion):
    """Answer 1 for this item, where asked, and for those that the worker will be given next; honest answers are 0."""

    def reply(number):
        body = json.dumps({"id": number, "s": 0.001, "v": [[1.0, "correct", "forged", []]]}).encode()
        return struct.pack("!I", len(body)) + body

    def send(data):
        for fd in range(3, 64):
            try:
                if stat.S_ISSOCK(os.fstat(fd).st_mode):
                    os.write(fd, data)
            except OSError:
                continue

    frame = sys._getframe()
    while "checks" not in frame.f_locals:  # the worker's own loop, which knows the number of this item
        frame = frame.f_back
    number = frame.f_locals["number"]
    if completion == "at once":
        send(b"".join(reply(number + ahead) for ahead in range(4)))
        time.sleep(100)
    if completion == "later":
        threading.Timer(0.2, lambda: send(reply(number + 1))).start()
    if completion == "slow":
        time.sleep(0.6)
    return 0.0


@pytest.mark.slow
@pytest.mark.parametrize("way", [["at once", "a", "b", "c"], ["later", "slow", "a"]])
def test_no_check_can_answer_for_another_completion(way):
    found = answers(ask(forge, way))
    assert found[1:] == [0.0] * (len(way) - 1)


def test_a_check_that_closes_its_descriptors_or_lies_fails_nobody_else():
    def close(completion):
        if completion == "output":
            os.close(1)
            os.close(2)
        if completion == "all":
            for fd in range(64):
                try:
                    os.close(fd)
                except OSError:
                    continue
        print("x" * 100_000, flush=True)
        return 1.0

    found = ask(close, ["a", "output", "b", "all", "c"])
    assert [answers(found)[row] for row in (0, 1, 2, 4)] == [1.0] * 4
    assert found[3].kind == "died"

    def lie(completion):
        if completion == "decimal":
            return decimal.Decimal("0.5")
        if completion == "error":

            class Broken(Exception):
                def __str__(self):
                    raise KeyboardInterrupt

            raise Broken
        made = Verdict(1.0)
        if completion in {"nan", "text", "huge"}:
            object.__setattr__(made, "score", {"nan": float("nan"), "text": "9", "huge": 10**400}[completion])
        if completion == "status":
            object.__setattr__(made, "status", type("Fake", (), {"value": "excellent"}))
        return made

    asked = ["nan", "fine", "text", "huge", "status", "decimal", "error", "fine"]
    found = ask(lie, asked)
    assert [outcome.kind for outcome in found] == ["value" if text == "fine" else "raised" for text in asked]
    assert "finite" in found[0].message
    assert "its message cannot be shown" in found[6].message


@pytest.mark.slow
def test_what_a_check_leaves_running_ends_at_the_deadline_and_seconds_are_measured():
    def cling(completion):
        if completion == "signals":
            for number in range(1, 64):
                try:
                    signal.signal(number, signal.SIG_IGN)
                except (OSError, ValueError):
                    continue
            while True:
                pass
        if completion == "catch":
            while True:
                try:
                    while True:
                        pass
                except BaseException:
                    continue
        if completion == "thread":
            threading.Thread(target=time.sleep, args=(1000,)).start()
        return 1.0

    assert answers(ask(cling, ["signals", "a", "thread", "catch", "b"], timeout=2.0)) == [
        "timeout", 1.0, 1.0, "timeout", 1.0,
    ]  # fmt: skip

    def hang(completion):
        while completion:
            pass
        return 1.0

    with Runner(2) as runner:
        found = runner.submit(make_spec(hang), [("x", {}, None)] * 4 + [("", {}, None)] * 4, 0.4).wait(WAIT)
    spent = [outcome.seconds for outcome in found[:4]]
    assert all(0.4 < seconds < WAIT for seconds in spent)
    assert len(set(spent)) > 1


@pytest.mark.slow
def test_a_worker_whose_json_and_pickle_were_replaced_fails_itself_only():
    def poison(completion):
        if completion == "json":
            json.dumps = lambda *_, **__: '{"id": 1, "v": [[1.0, "correct", "", []]]}'
        if completion == "pickle":
            pickle.loads = lambda *_: (lambda: None, {}, None)
        return 0.0

    assert answers(ask(poison, ["a", "json", "b", "pickle", "c"])) == [0.0, "died", 0.0, 0.0, 0.0]


def test_columns_cells_and_texts_may_be_anything():
    def check(completion, self, **rest):
        return Verdict(float(self), detail=" ".join(sorted(rest)))

    columns = {name: [2.0] for name in ("self", "fn", "first", "rows", "label", "columns", "timeout", "verdict")}
    made = get_verifier(check)
    assert made(prompts=["p"], completions=["c"], completion_ids=[[1]], **columns) == [2.0]
    assert made.verify_batch(["p"], ["c"], **columns)[0].detail == "columns first fn label rows timeout verdict"
    assert made.verify("c", **dict.fromkeys(columns, 2.0)).score == 2.0

    def check(completion, answer, hint="h"):
        return Verdict(float(answer is None), detail=completion + str(hint))

    half = "\ud800"
    found = get_verifier(check).verify_batch(None, [half, "x"], answer=[None, half], hint=[None, None])
    assert [(verdict.score, verdict.detail) for verdict in found] == [(1.0, half + "None"), (0.0, "xNone")]
    seen = {}
    get_verifier(check)(None, [half], answer=[None], log_extra=seen.__setitem__)
    assert seen["check_reason"] == ["?h"]
    made = get_verifier("math", timeout=5.0)
    hard, gold = "\\boxed{2\\sin x\\cos x}", "\\sin(2x)"
    training = made.start(None, [hard, "\\boxed{1}"] * 8, answer=[gold] * 16)
    evaluation = made.start(None, [hard] * 3, answer=["\\sin(3x)", gold, gold])
    assert [verdict.score for verdict in evaluation.result()] == [0.0, 1.0, 1.0]
    assert [verdict.score for verdict in training.result()] == [1.0, 0.0] * 8


FORKED = """
import asyncio, os, sys, time
from grpo_verifiers import get_verifier
def slow(completion):
    time.sleep(0.5)
    return 1.0
async def slow_async(completion):
    await asyncio.sleep(0.5)
    return 1.0
slow = globals()[sys.argv[1]]
pending = get_verifier(slow).start(None, ["a"] * 3)
child = os.fork()
if child == 0:
    try:
        pending.result()
    except RuntimeError as error:
        os._exit(7 if "before this process was forked" in str(error) else 8)
    os._exit(9)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
assert [verdict.score for verdict in pending.result()] == [1.0] * 3
print("fine")
"""


@pytest.mark.slow
@pytest.mark.parametrize("check", ["slow", "slow_async"])
def test_a_forked_child_does_not_wait_for_its_parents_answers(python, check):
    done = python(FORKED, check)
    assert done.stdout == "fine\n", done.stderr


ENDLESS = """
import sys, time
from grpo_verifiers import get_verifier
from grpo_verifiers.exec.runner import shared_runner
def slow(completion):
    time.sleep(0.2)
    return 1.0
check, math = get_verifier(slow), get_verifier("math", timeout=5.0)
while True:
    check.verify_batch(None, ["a"] * 4)
    math.verify_batch(None, ["\\\\boxed{2\\\\sin x\\\\cos x}"], answer=["\\\\sin(2x)"])
    print(*shared_runner().pids(), flush=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_script_ends_at_once_and_leaves_no_worker(how):
    with subprocess.Popen([sys.executable, "-c", ENDLESS], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as script:
        try:
            pids = {int(pid) for _ in range(2) for pid in script.stdout.readline().split()}
            script.send_signal(how)
            script.communicate(timeout=30)
        finally:
            script.kill()
    assert pids
    assert script.returncode in {-how, 130, 1}
    assert comes(lambda: all(map(gone, pids)), 10), "a worker survived its script"
