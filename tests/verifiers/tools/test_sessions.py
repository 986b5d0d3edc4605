"""Tools and environments run apart: what one does costs its own completion, and nothing of it stays."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from grpo_verifiers.errors import VerifierFailedError
from grpo_verifiers.tools.part import Method, ToolPart
from grpo_verifiers.tools.sessions import open_sessions
from tests.waiting import comes

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the processes are looked up in /proc")

FILE = Path(__file__).with_name("hostile_tools.py")
NAMES = [
    *("add", "echo", "later", "raises", "leaves", "hangs", "exits", "crashes", "forks", "bombs", "bombs_apart"),
    *("bombs_by_shell", "comes_back", "prints", "returns_much", "eats", "closes", "kills_parent", "kills_grandparent"),
    *("leaves_thread", "writes_protocol", "spiteful", "blocks", "half"),
]
SECONDS = 60
GIVES = ("rewards", "turn_rewards", "states")


def methods(*names):
    return tuple(Method(name, {}) for name in names)


def function(name, timeout=30.0):
    return ToolPart(name, f"{FILE}:{name}", methods=methods(name), timeout=timeout)


PARTS = [
    *(function(name, 1.0 if name in {"hangs", "forks"} else 30.0) for name in NAMES),
    ToolPart("counter", f"{FILE}:Counter", {"start": 5}, methods("counter"), "class", 30.0),
    ToolPart("Game", f"{FILE}:Game", {}, methods("step", "end"), "environment", 30.0, **dict.fromkeys(GIVES, True)),
]
KILLERS = ("kills_parent", "kills_grandparent")
PYTHON = ToolPart("python", "grpo_verifiers.tools.python:python", {"output": 1000}, methods("python"), timeout=5.0)


def started_with(mark):
    """The processes that run with ``GRPO_TEST`` set so: other tests have theirs at the same time."""
    found = []
    for each in psutil.process_iter():
        try:
            has = Path(f"/proc/{each.pid}/environ").read_bytes().split(b"\0")
            if f"GRPO_TEST={mark}".encode() in has and each.status() != "zombie":
                found.append(each)
        except (OSError, psutil.NoSuchProcess):
            continue
    return found


@pytest.fixture(scope="module")
def mark():
    return f"sessions of {os.getpid()}"


@pytest.fixture(scope="module")
def sessions(mark):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GRPO_TEST", mark)
        with open_sessions(PARTS, memory=1 << 30, workers=3) as opened:
            yield opened


@pytest.fixture
def session(sessions):
    opened = sessions.open()
    yield opened
    opened.close()


def told(future):
    reply = future.result(SECONDS)
    return reply.status, reply.text


def test_results_are_their_text_prints_go_nowhere_and_resets_take_json(session, capfd):
    for name, arguments, status, text in [
        ("add", {"a": 1, "b": 2}, "ok", "3"), ("later", {"a": None}, "ok", "None"), ("half", {}, "ok", "a?b"),
        ("raises", {}, "error", "seven is no colour"), ("leaves", {}, "error", "3"), ("spiteful", {}, "error", "no text"),
        ("add", {"a": 1}, "error", "add() missing 1 required positional argument: 'b'"), ("prints", {}, "ok", "printed"),
    ]:  # fmt: skip
        assert told(session.call(name, arguments)) == (status, text)
    assert capfd.readouterr() == ("", "")
    status, text = told(session.call("blocks", {}))
    assert (status, "only text can be returned" in text) == ("error", True)
    assert told(session.call("absent", {}))[0] == "unknown"
    assert told(session.reset({"x": None, "more": [1, {"a": 0.5}]})) == ("ok", "")
    assert told(session.reset({"x": "bad"})) == ("error", "no such board")
    status, text = told(session.reset({"x": 1, "picture": [b"png"]}))
    assert (status, [word for word in ("'picture'", "bytes") if word not in text]) == ("error", [])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "status", "words"),
    [
        *((name, "late", "longer than 1 s") for name in ("hangs", "forks")),
        *((name, "died", "more than 128 processes") for name in ("bombs", "bombs_apart", "bombs_by_shell")),
        *((name, "died", "its process ended") for name in ("exits", "crashes", "closes", *KILLERS)),
        *(("eats", "died", "out of memory"), ("writes_protocol", "died", "broke the protocol")),
        *(("comes_back", "ok", "one answer"), ("leaves_thread", "ok", "left")),
        ("returns_much", "ok", "[cut: 268435456 characters, at most 65536 are shown]"),
    ],
)
def test_a_tool_that_misbehaves_costs_its_own_call_alone(sessions, mark, name, status, words):
    bad, good = sessions.open(), sessions.open()
    try:
        answers = [bad.call(name, {})] + [good.call("add", {"a": i, "b": 1}) for i in range(5)]
        found, text = told(answers[0])
        assert (found, words in text, len(text) < 70_000) == (status, True, True), text[:200]
        if name != "kills_grandparent":  # it takes along what the others run at that moment
            assert [told(each) for each in answers[1:]] == [("ok", str(i + 1)) for i in range(5)]
        assert told(bad.call("add", {"a": 1, "b": 1})) == ("ok", "2")
        assert not [each for each in started_with(mark) if each.name() == "sleep"]
    finally:
        bad.close()
        good.close()


def test_a_class_is_made_once_a_completion_and_a_fork_leaves_it_alone(sessions):
    one, other = sessions.open(), sessions.open()
    assert [told(one.call("counter", {"by": 2})) for _ in range(2)] == [("ok", "7"), ("ok", "9")]
    assert told(other.call("counter", {"by": 1})) == ("ok", "6")
    one.close()
    child = os.fork()
    if child == 0:
        dead = other.call("counter", {"by": 1}).result(SECONDS).status
        sessions.close()
        os._exit(0 if dead == "died" else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert told(other.call("counter", {"by": 1})) == ("ok", "7")
    other.close()


def test_an_environment_keeps_its_state_and_tools_that_cannot_be_imported_are_errors(session, tmp_path):
    assert told(session.reset({"x": 3})) == ("ok", "x is 3")
    assert (told(session.call("step", {"by": 4})), told(session.state())) == (("ok", "7"), ("ok", "(7,)"))
    assert session.reward().result(SECONDS).number == 3.5
    assert session.turn_reward().result(SECONDS).number is None
    assert (told(session.call("step", {"by": 4})), told(session.turn_reward())[0]) == (("ok", "11"), "error")
    assert told(session.call("end", {})) == ("died", "its process ended. The environment has ended.")
    assert told(session.call("step", {"by": 1})) == ("error", "The environment has ended: its process ended.")
    lost = session.reward().result(SECONDS)
    assert (lost.status, lost.number, told(session.call("counter", {"by": 1}))) == ("error", None, ("ok", "6"))
    (tmp_path / "bad.py").write_text("raise RuntimeError('not here')")
    with pytest.raises(VerifierFailedError, match="not here"):
        open_sessions([ToolPart("bad", f"{tmp_path}/bad.py:f", methods=methods("f"))])


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=10,
)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(value=JSON)
def test_arguments_arrive_as_they_were(session, value):
    expected = repr(value).encode("utf-8", "replace").decode()
    assert told(session.call("echo", {"value": value})) == ("ok", expected)


@pytest.mark.slow
def test_close_ends_calls_under_way_and_many_answer_as_one_by_one(sessions):
    def play(session, x):
        return [session.reset({"x": x}), session.call("step", {"by": 2}), session.call("counter", {"by": x})]

    alone = []
    for x in range(64):
        one = sessions.open()
        alone.append([told(each) for each in play(one, x)])
        one.close()
    opened = [sessions.open() for _ in range(64)]
    together = [play(session, x) for x, session in enumerate(opened)]
    assert [[told(each) for each in row] for row in together] == alone
    for session in opened:
        session.close()
    opened = open_sessions([function("hangs"), PARTS[-1], PYTHON])
    one, other, third = opened.open(), opened.open(), opened.open()
    under_way = [one.call("hangs", {}), one.call("hangs", {})]
    box = third.call("python", {"code": "while True: pass"})
    assert told(other.call("step", {"by": 1})) == ("ok", "1")
    time.sleep(0.5)
    top = psutil.Process(opened._nursery._process.pid)
    below = [top, *top.children(recursive=True)]
    started = time.monotonic()
    opened.close()
    assert [told(each)[0] for each in [*under_way, box]] == ["died"] * 3
    assert time.monotonic() - started < 100
    assert told(one.call("hangs", {}))[0] == "died"
    assert not psutil.wait_procs(below, 10)[1]


@pytest.mark.slow
def test_python_remembers_and_shows_what_an_interpreter_shows():
    with open_sessions([PYTHON]) as opened:
        one, other = opened.open(), opened.open()

        def run(code, session=one):
            return told(session.call("python", {"code": code}))

        assert run("import math\nx = 3\nprint('hi')\nx") == ("ok", "hi\n3\n")
        assert run("x + math.floor(2.5)") == ("ok", "5\n")
        assert run("x", other)[1].endswith("NameError: name 'x' is not defined\n")
        status, text = run("def f():\n    return 1 / 0\nf()")
        frames = [("<python>", "3", "<module>"), ("<python>", "2", "f")]
        assert (status, re.findall(r'File "(.+)", line (\d+), in (.+)', text)) == ("ok", frames)
        assert text.endswith("\nZeroDivisionError: division by zero\n")
        assert "SyntaxError" in run("def f(:")[1]
        assert run("print('a' * 10**6)") == ("ok", "a" * 1000 + "\n[cut: at most 1000 characters are shown]")
        assert run("print('a\\ud800')")[0] == "ok"
        assert "Error" in run("open('/etc/passwd').read()")[1]
        assert "Error" in run("import socket; socket.create_connection(('127.0.0.1', 22))")[1]
        assert run("import sys; sys.exit(2)")[1].endswith("SystemExit: 2\n")
        assert (run("x"), run("import os; os._exit(0)")[0]) == (("ok", "3\n"), "died")
        assert "NameError" in run("x")[1]
        assert run("while True: pass") == ("late", "it took longer than 5 s and was ended. Its variables are lost.")
        assert run("1 + 1") == ("ok", "2\n")


TRAINER = """
import sys, time
sys.path.insert(0, {root!r})
from tests.verifiers.tools.test_sessions import PARTS, PYTHON, open_sessions
if __name__ == "__main__":
    opened = open_sessions([*PARTS, PYTHON])
    one, other = opened.open(), opened.open()
    other.call("step", {{"by": 1}}).result(60)
    other.call("python", {{"code": "x = 1"}}).result(60)
    one.call("forks", {{}})
    other.call("python", {{"code": "while True: pass"}})
    time.sleep(0.5)
    {end}
"""


@pytest.mark.parametrize("end", ["time.sleep(1000)", "sys.exit(0)", "raise KeyboardInterrupt"])
@pytest.mark.slow
def test_nothing_stays_of_a_trainer_that_ends_or_is_killed(tmp_path, end):
    script = tmp_path / "trainer.py"
    script.write_text(TRAINER.format(root=str(Path(__file__).parents[3]), end=end))
    env = {**os.environ, "GRPO_TEST": str(tmp_path)}
    trainer = subprocess.Popen([sys.executable, str(script)], env=env, stderr=subprocess.DEVNULL)
    if end.startswith("time"):
        assert comes(lambda: any(each.name() == "sleep" for each in started_with(tmp_path)), SECONDS)
        os.kill(trainer.pid, signal.SIGKILL)
    trainer.wait(SECONDS)
    assert comes(lambda: not started_with(tmp_path), SECONDS)
