"""Programs of the tool ``python`` that reach for what is not theirs: each costs its own completion at most."""

import socket
import time
from dataclasses import replace

import pytest

from grpo_verifiers.tools.sessions import open_sessions

from .test_sessions import PYTHON, told

pytestmark = [pytest.mark.slow, pytest.mark.needs("bwrap")]

REFUSED = {
    "reads the sources": ("print(open({file!r}).read())", "FileNotFoundError"),
    "writes beside them": ("open({file!r} + '.new', 'w').write('x')", "FileNotFoundError"),
    "connects": ("import socket; socket.create_connection(('127.0.0.1', {port}))", "Error"),
    "sends": ("import socket; socket.socket(type=socket.SOCK_DGRAM).sendto(b'x', ('127.0.0.1', {port}))", "Error"),
    "looks at processes": ("import os; print(os.listdir('/proc'), open('/proc/1/cmdline').read())", "Error"),
    "ends all": ("import os; os.kill(-1, 9)", "Error"),
    "takes memory": ("x = bytearray(4 << 30)", "MemoryError"),
    "fills the disk": ("open('big', 'wb').write(b'x' * (6 << 30))", "Error"),
    "raises what nobody catches": ("raise BaseException('mine')", "mine"),
    "has an error without a text": (
        "class E(Exception):\n    def __str__(self): raise KeyboardInterrupt\nraise E",
        "E: <exception str() failed>",
    ),
    "has no source": ("\x00", "null bytes"),
}
LOST = {
    "closes what it has": "import os; os.closerange(0, 256)",
    "answers for the box": 'import os\nfor fd in range(64):\n    try: os.write(fd, b\'{"status": "ok", "text": "won"}\\n\')\n'
    "    except OSError: pass",
    "crashes": "import ctypes; ctypes.string_at(0)",
    "prints without end": "import sys\nwhile True: sys.stdout.write('x' * 65536)",
    "hears no signal": "import signal\nfor s in range(1, 32):\n    try: signal.signal(s, signal.SIG_IGN)\n"
    "    except OSError: pass\nwhile True: pass",
    "counts on in C": "10 ** 10 ** 9",
    "calls itself": "import sys; sys.setrecursionlimit(10 ** 9)\ndef f(): return f()\nf()",
    "traces the box": "import sys; sys.settrace(lambda *a: 1 / 0)",
}
KEPT = {
    "leaves a thread": "import threading, time\ndef f():\n    while True: time.sleep(0.01); print('more')\n"
    "threading.Thread(target=f, daemon=True).start()",
    "leaves a child": "import os, time\nif os.fork() == 0:\n    os.setsid()\n    time.sleep(1000)\n    os._exit(0)",
    "kills its parent": "import os; os.kill(os.getppid(), 9)",
    "stops itself": "import os, signal; os.kill(os.getpid(), signal.SIGSTOP)",
    "shows things its own way": "import sys; sys.displayhook = lambda value: 1 / 0",
    "forgets its modules": "import sys; sys.modules.clear()",
    "leaves a wish": "import atexit, os\natexit.register(lambda: os.system('sleep 1000'))",
}


@pytest.fixture(scope="module")
def opened():
    with open_sessions([replace(PYTHON, timeout=3.0)]) as opened:
        yield opened


@pytest.fixture
def play(opened):
    """Runs a program in a completion's second turn, with a third behind it; another completion goes on meanwhile."""
    bystander, session = opened.open(), opened.open()

    def run(code, session=session):
        return told(session.call("python", {"code": code}))

    def play(code):
        assert run("mine = 7", bystander) == run("x = 1") == ("ok", "")
        found = run(code)
        later = run("x")
        assert run("mine", bystander) == ("ok", "7\n")
        return found, later

    yield play
    session.close()
    bystander.close()


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_the_programs_is_refused_and_its_variables_stay(play, tmp_path, name):
    file = tmp_path / "secret"
    file.write_text("the answer is plover")
    code, said = REFUSED[name]
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        (status, text), later = play(code.format(file=str(file), port=server.getsockname()[1]))
        with pytest.raises(BlockingIOError):
            server.accept()
    assert status == "ok"
    assert said in text
    assert "plover" not in text
    assert (later, [path.name for path in tmp_path.iterdir()]) == (("ok", "1\n"), ["secret"])


@pytest.mark.sample(0, 4)
@pytest.mark.parametrize("name", LOST)
def test_who_breaks_the_program_loses_its_variables_alone(play, name):
    (status, text), (after, later) = play(LOST[name])
    assert status in ("died", "late")
    assert text.endswith("Its variables are lost.")
    assert "won" not in text
    assert (after, later.splitlines()[-1]) == ("ok", "NameError: name 'x' is not defined")


@pytest.mark.parametrize("name", KEPT)
def test_what_a_program_leaves_behind_reaches_no_later_turn(play, name):
    (status, _), later = play(KEPT[name])
    assert (status, later) == ("ok", ("ok", "1\n"))


def test_between_two_calls_nothing_of_a_program_runs(opened):
    session = opened.open()
    source = """
import os, threading, time
seen = []
def go():
    while True: seen.append(time.monotonic()); time.sleep(0.001)
threading.Thread(target=go, daemon=True).start()
if os.fork() == 0:
    while True: open("other", "w").write(str(time.process_time()))
while len(seen) < 2 or not os.path.exists("other"): time.sleep(0.001)
"""
    assert told(session.call("python", {"code": source})) == ("ok", "")
    time.sleep(0.6)
    gap = "(time.sleep(0.05), max(b - a for a, b in zip(seen, seen[1:])), float(open('other').read() or 0) < 0.3)[1:]"
    status, text = told(session.call("python", {"code": gap}))
    longest, computed_little = eval(text)
    assert (status, longest > 0.5, computed_little) == ("ok", True, True)
    session.close()
