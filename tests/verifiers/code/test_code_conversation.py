"""The judge's half of a conversation against scripted programs, over real sockets: thousands of ways to say nothing."""

import contextlib
import json
import os
import socket
import threading
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_verifiers.code._grade import grade
from grpo_verifiers.code._results import PASSED
from grpo_verifiers.code.guest.values import dump
from grpo_verifiers.code.question import GradingTask
from grpo_verifiers.code.tests import CallTest, CodeTest
from grpo_verifiers.exec.wire import read_exactly
from grpo_verifiers.sandbox.box import BoxKind, Limits

pytestmark = pytest.mark.slow


class ScriptedBox:
    """Stands for a box: its program is a function of a channel, in a thread."""

    def __init__(self, script):
        self.pid = self.zygote = os.getpid()
        self.cgroup, self.folder = SimpleNamespace(has_overflowed=lambda: False, counts_processes=True), ""
        self.script = script
        self.control, self.far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)

    def start(self, limits, roles):
        self.channel = socket.socket(fileno=os.dup(roles["channel"]))
        self.thread = threading.Thread(target=self._run)
        self.thread.start()
        return 1

    def _run(self):
        with contextlib.suppress(OSError, ValueError):
            self.script(self.channel)
        self.channel.close()
        self.far.send(json.dumps({"run": 1, "end": "exit"}).encode())

    def stop(self, run):
        with contextlib.suppress(OSError):
            self.channel.shutdown(socket.SHUT_RDWR)

    def hear(self, timeout):
        return json.loads(self.control.recv(1 << 16))

    def close(self):
        self.thread.join()
        self.control.close()
        self.far.close()


def _hear(channel):
    """The next message; an error where the other half is closed."""
    return json.loads(read_exactly(channel, int.from_bytes(read_exactly(channel, 4) or b"", "big")) or "")


# What a program does next: read a question, answer a question that it has read (rightly or not), say anything, a piece
# of a frame, close one half.
STEPS = st.one_of(
    st.just(("hear",)),
    st.tuples(st.just("answer"), st.integers(0, 4), st.booleans()),
    st.tuples(st.just("answer"), st.integers(0, 4), st.just(True)),
    st.tuples(
        st.just("say"),
        st.sampled_from([["loaded"], ["value", 1], ["pass"], [], None, ["x", ["value", 1]], ["test", 0, "pass", ""]]),
    ),
    st.tuples(st.just("raw"), st.binary(max_size=8)),
    st.just(("deaf",)),
    st.just(("mute",)),
)
HONEST = st.integers(0, 5).map(
    lambda count: [("say", ["loaded"]), *(step for at in range(count) for step in (("hear",), ("answer", at, True)))]
)


def _script(steps, right):
    """The script of these steps, and a list that tells, after it ran, which questions it answered rightly in turn."""
    answered = []

    def run(channel):
        asked = []
        _hear(channel)  # what to load
        for what, *more in steps:
            if what == "hear":
                asked.append(_hear(channel))
            elif what == "answer":
                at, rightly = more
                if at < len(asked):
                    channel.sendall(dump([asked[at]["id"], right(asked[at]) if rightly else ["value", -1]]))
                    answered.append((at, rightly))
            elif what == "say":
                channel.sendall(dump(more[0]))
            elif what == "raw":
                channel.sendall(more[0])
            else:
                channel.shutdown(socket.SHUT_RD if what == "deaf" else socket.SHUT_WR)

    return run, answered


def _judge(steps, tests, right, in_process=False):
    script, answered = _script(steps, right)
    box = ScriptedBox(script)
    question = GradingTask([""], False, tests, BoxKind("none"), Limits(), 0.0, in_process, True, 60.0)
    try:
        return grade(question, SimpleNamespace(box=lambda *_: box)), answered
    finally:
        box.close()


def _seen(results, answered):
    passed = {at for at, result in enumerate(results) if result == PASSED}
    assert passed <= {at for at, rightly in answered if rightly}
    # In turn: after the first question without an answer nothing passes, and nothing is seen.
    unseen = [result.kind == "unseen" for result in results]
    assert unseen == sorted(unseen)
    return passed


@settings(max_examples=2000, deadline=None)
@given(HONEST, st.lists(STEPS, max_size=8))
def test_a_call_passes_only_if_the_program_read_it_and_answered_it(start, more):
    tests = [CallTest("f", ["l", at], ["d"], at) for at in range(5)]
    results, answered = _judge([*start, *more], tests, lambda question: ["value", question["args"][1]])
    honest = sum(step[0] == "answer" for step in start)
    assert _seen(results, answered) >= set(range(honest))


@settings(max_examples=1000, deadline=None)
@given(HONEST, st.lists(STEPS, max_size=8))
def test_a_test_inside_the_program_passes_only_if_it_was_read_and_answered(start, more):
    tests = [CodeTest(f"assert f({at})") for at in range(5)]
    results, answered = _judge([*start, *more], tests, lambda _: ["pass"], in_process=True)
    honest = sum(step[0] == "answer" for step in start)
    assert _seen(results, answered) >= set(range(honest))
