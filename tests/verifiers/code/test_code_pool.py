"""Many programs in a row, boxes that break, machines that offer too little."""

import contextlib
import os
import queue
import random
import resource
import signal
import sys
import sysconfig
import threading
import time
from contextlib import closing
from unittest.mock import Mock

import pytest

from grpo_verifiers import Status, get_verifier
from grpo_verifiers.code import _code, levels, probe
from grpo_verifiers.code.pool import Pool, close_pool
from grpo_verifiers.code.run import ProgramRun
from grpo_verifiers.errors import KeywordError, VerifierFailedError
from grpo_verifiers.exec.runner import worker_count
from grpo_verifiers.sandbox.box import Box, BoxError, BoxKind, Limits
from grpo_verifiers.sandbox.inside.proc import descendants
from tests.waiting import comes

from .programs import ONE

HOSTILE = [
    "import os\nos._exit(0)",
    "import os\nfor fd in range(3, 100):\n    try: os.write(fd, b'[\"value\",1]')\n    except OSError: pass\ndef f(x): return None",
    "import os\nif os.fork() == 0:\n    os.setsid()\n    while True: pass\ndef f(x): return None",
    "def f(x): return 'x' * (1 << 27)",
    "def f(x): return [[]] * 10**7",
    "import os, signal\nfor s in (9, 15):\n    os.kill(os.getppid(), s)\ndef f(x): return None",
    "import ctypes\nctypes.string_at(0)\ndef f(x): return None",
]


@pytest.mark.slow
def test_hundreds_of_programs_each_get_their_own_verdict(fenced):
    draw = random.Random(7)
    verifier = get_verifier("code", time_limit=4.0)
    texts, tests, wanted = [], [], []
    for at in range(300):
        hostile, right = at % 20 == 0, draw.random() < 0.5
        source = HOSTILE[at // 20 % len(HOSTILE)] if hostile else f"def f(x):\n    return x + {at if right else at + 1}"
        texts.append(fenced(source))
        tests.append([{"function": "f", "args": [1], "expected": at + 1}])
        wanted.append(float(right and not hostile))
    verifier.verify(texts[1], tests=tests[1])
    close_pool()
    programs = descendants(os.getpid())
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    verdicts = verifier.verify_batch(None, texts, None, tests=tests)
    assert [verdict.score for verdict in verdicts] == wanted
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000
    assert len(descendants(os.getpid())) <= 6 * worker_count() + len(programs)
    close_pool()
    assert descendants(os.getpid()) <= programs


@pytest.mark.slow
def test_a_box_killed_under_a_program_is_replaced_and_the_program_run_again(level, fenced):
    close_pool()
    verifier = get_verifier("code", level=level, highest=level)
    slow = fenced("import time\ntime.sleep(0.7)\ndef f(): return 1")
    assert verifier.verify(slow, tests=ONE).score == 1
    killer = threading.Timer(0.3, _kill_boxes)
    killer.start()
    assert verifier.verify(slow, tests=ONE).score == 1
    killer.join()
    assert verifier.verify(slow, tests=ONE).score == 1


def _kill_boxes():
    """All at once: a zygote that outlived its program for a moment would report the program's end as its own doing."""
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for pid in descendants(os.getpid()):
            with contextlib.suppress(OSError):
                os.kill(pid, number)


@pytest.mark.slow
def test_a_program_that_breaks_two_boxes_scores_zero_and_others_go_on(fenced, monkeypatch):
    real = _code.ask_referee

    def breaking(question, slot):
        if "breaker" in question.blocks[-1]:
            raise BoxError("the zygote died")
        return real(question, slot)

    monkeypatch.setattr(_code, "ask_referee", breaking)
    for options in ({}, {"level": "none", "highest": "none"}):
        verdict = get_verifier("code", **options).verify(fenced("breaker = 1\ndef f(): return 1"), tests=ONE)
        assert (verdict.score, verdict.status, "twice" in verdict.detail) == (0, Status.ERROR, True)
    assert get_verifier("code").verify(fenced("def f(): return 1"), tests=ONE).score == 1


@pytest.mark.slow
def test_a_machine_that_offers_too_little_is_refused_with_what_to_install(monkeypatch, fenced):
    close_pool()
    monkeypatch.setenv("PATH", "/nowhere")
    probe.cache_clear()
    try:
        assert probe("full").level == "process"
        with pytest.raises(KeywordError, match=r"(?s)level is 'full'.*bubblewrap is not installed.*apt install"):
            get_verifier("code", level="full")
        ready = get_verifier("code")
        assert ready.verify(fenced("def f(): return 1"), tests=ONE).score == 1
        close_pool()
        monkeypatch.setattr(levels, "try_box", Mock(side_effect=BoxError("no process")))
        probe.cache_clear()
        with pytest.raises(VerifierFailedError, match=r"(?s)level is 'process'.*'none'.*no process.*Landlock"):
            ready.verify(fenced("def f(): return 1"), tests=ONE)
        with pytest.raises(KeywordError, match="level is 'process'"):
            get_verifier("code")
        assert get_verifier("code", level="none").verify(fenced("def f(): return 1"), tests=ONE).score == 1
    finally:
        close_pool()
        monkeypatch.undo()
        probe.cache_clear()


@pytest.mark.slow
def test_an_exit_with_work_left_is_quick_and_leaves_nothing(tmp_path, script):
    started = time.monotonic()
    done = script(
        "from grpo_verifiers import get_verifier\n"
        "v = get_verifier('code')\n"
        "t = [{'function': 'f', 'expected': 1}]\n"
        "print(v.verify('```python\\ndef f(): return 1\\n```', tests=t).score)\n"
        "v.start(None, ['```python\\nimport time\\ntime.sleep(4)\\n```'] * 50, None, tests=[t] * 50)\n",
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    assert (done.stdout, done.stderr) == ("1.0\n", "")
    assert time.monotonic() - started < 30
    assert comes(lambda: [path.name for path in tmp_path.iterdir()] == ["script.py"])


def test_a_forked_child_has_boxes_of_its_own(fenced):
    verifier = get_verifier("code")
    assert verifier.verify(fenced("def f(): return 1"), tests=ONE).score == 1
    pid = os.fork()
    if pid == 0:
        code = 0 if verifier.verify(fenced("def f(): return 1"), tests=ONE).score == 1 else 2
        close_pool()
        os._exit(code)
    assert (os.waitpid(pid, 0)[1], verifier.verify(fenced("def f(): return 1"), tests=ONE).score) == (0, 1)


@pytest.mark.slow
def test_preloaded_modules_are_there_and_others_are_not(level):
    pytest.importorskip("numpy")
    tests = [{"function": "f", "args": [3], "expected": 3}]
    text = "```python\nimport numpy as np\ndef f(x): return int(np.arange(x).sum())\n```"
    with_numpy = get_verifier("code", level=level, highest=level, preload=["numpy"])
    assert with_numpy.verify(text, tests=tests).score == 1
    assert get_verifier("code", level=level, highest=level).verify(text, tests=tests).score == 0
    missing = get_verifier("code", level=level, highest=level, preload=["nowhere_to_be_found"])
    with pytest.raises(VerifierFailedError, match="No module named 'nowhere_to_be_found'"):
        missing.verify(text, tests=tests)


def test_preloaded_modules_are_there_quiet_and_found_behind_a_link(level, tmp_path, monkeypatch):
    pytest.importorskip("numpy")
    link = tmp_path / "environment"
    link.symlink_to(sys.prefix)
    found = sysconfig.get_path
    monkeypatch.setattr(
        sysconfig, "get_path", lambda name, **more: found(name, **more).replace(sys.prefix, str(link), 1)
    )
    Box(BoxKind(level, ("numpy",))).close()
    messages = [{"mode": "main", "source": "print(1)"}]
    with closing(Box(BoxKind(level, ("this",)))) as box, ProgramRun(box, Limits(), messages, capture=True) as program:
        program.wait()
    assert program.output == b"1\n"


def test_a_job_taken_but_not_begun_holds_its_box_and_one_after_the_other_needs_one():
    """A thread has its job out of the queue, and runs no further yet, when the second job comes."""
    taken, go_on = threading.Event(), threading.Event()

    class SlowToBegin(queue.SimpleQueue):
        def get(self, *args, **kwargs):
            job = super().get(*args, **kwargs)
            taken.set()
            go_on.wait(60)
            return job

    pool = Pool(2)
    pool._jobs = SlowToBegin()
    together = threading.Barrier(2, timeout=20)
    try:
        first = pool.submit(lambda _: together.wait())
        assert taken.wait(60)
        second = pool.submit(lambda _: together.wait())
        go_on.set()
        assert {first.result(60), second.result(20)} == {0, 1}
    finally:
        go_on.set()
        pool.close()
    with closing(Pool(4)) as pool:
        boxes = {pool.submit(id).result(60) for _ in range(200)}
        assert len(boxes) == len(pool._referees) == 1


def test_a_cancelled_job_leaves_its_place():
    pool = Pool(1)
    begun, go_on = threading.Event(), threading.Event()
    try:
        running = pool.submit(lambda _: (begun.set(), go_on.wait(60))[1])
        assert begun.wait(60)
        waiting = pool.submit(id)
        assert waiting.cancel()
        go_on.set()
        assert running.result(60)
        assert (pool.submit(lambda _: 7).result(60), pool._open) == (7, 0)
    finally:
        go_on.set()
        pool.close()
