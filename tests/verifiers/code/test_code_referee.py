"""The process that judges: what the trainer is spared, what ends with it, and what it may answer."""

import os
import signal
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_verifiers import get_verifier
from grpo_verifiers.code._results import KINDS, PASSED, unpack_results
from grpo_verifiers.code.pool import close_pool
from grpo_verifiers.sandbox.inside.proc import descendants
from tests.waiting import no_hang

from .programs import TALKER

HEAVY = """
say(["loaded"])
while True:
    number = hear()["id"].encode()
    say(b'["' + number + b'",["value",["l",' + b'["l"],' * 150_000 + b'["l"]]]]')
"""
CALLS = [{"function": "f", "expected": 1}] * 400
LOOP = [{"code": "for _ in range(1000):\n    try: f()\n    except Exception: pass"}]


@pytest.mark.slow
@pytest.mark.parametrize("tests", [CALLS, LOOP], ids=["calls", "apart"])
def test_what_a_program_sends_costs_the_trainer_nothing_to_read(level, fenced, tests):
    verifier = get_verifier("code", level=level, highest=level, time_limit=3.0)
    verifier.verify(fenced("def f(): return 1"), tests=tests)
    with no_hang(3):  # reading and checking one of these answers takes 0.025 s, so all of them 10 s
        verdict = verifier.verify(fenced(TALKER + HEAVY), tests=tests)
    assert verdict.score == 0


@pytest.mark.slow
def test_all_answers_together_have_a_bound_and_expected_values_none(judge):
    """16 MiB and 4 KiB a question: of answers of 900 KB the first 18 are read, and no more."""
    source = "n = 0\ndef f():\n    global n\n    n += 1\n    return n if n < 3 else 'x' * 900_000"
    tests = [{"function": "f", "expected": at} for at in range(1, 41)]
    verdict = judge(source, tests, time_limit=30.0, scoring="share")
    assert verdict.score == 2 / 40
    assert verdict.detail.partition("[")[2].startswith("++" + "-" * 18 + "l" + "?" * 19)
    tests = [{"code": "for _ in range(40):\n    f()"}]  # which does not go on either
    detail = judge("def f(): return 'x' * 900_000", tests, time_limit=30.0).detail
    assert detail.partition("test 1: ")[2] == f"sent more than {(16 << 20) + 4096 * 19} bytes"
    tests = [{"function": "f", "args": [at], "expected": str(at) * 500_000} for at in range(10, 40)]
    assert judge("def f(n): return str(n) * 500_000", tests, time_limit=30.0).score == 1


@pytest.mark.slow
def test_no_secret_of_the_trainer_is_in_its_environment(monkeypatch, fenced):
    close_pool()
    before = descendants(os.getpid())
    monkeypatch.setenv("HF_TOKEN", "hf_secret_of_the_trainer")
    assert get_verifier("code").verify(fenced("print(1)"), tests=[{"stdin": "", "stdout": "1"}]).score == 1
    started = descendants(os.getpid()) - before
    assert {b"hf_secret_of_the_trainer" in Path(f"/proc/{pid}/environ").read_bytes() for pid in started} == {False}
    close_pool()


@pytest.mark.slow
def test_a_referee_that_dies_is_replaced_and_boxes_are_made_where_temporary_files_are(fenced):
    verifier = get_verifier("code")
    tests = [{"stdin": "", "stdout": "1"}]
    assert verifier.verify(fenced("print(1)"), tests=tests).score == 1
    below = {pid: Path(f"/proc/{pid}/cmdline").read_bytes() for pid in descendants(os.getpid())}
    referees = [pid for pid, command in below.items() if b"_referee_process" in command]
    assert referees
    for pid in referees:  # what is below each ends with it
        os.kill(pid, signal.SIGKILL)
    assert verifier.verify(fenced("print(1)"), tests=tests).score == 1
    close_pool()
    verifier = get_verifier("code", level="none", highest="none")
    before = set(Path(tempfile.gettempdir()).iterdir())
    assert verifier.verify(fenced("print(1)"), tests=[{"stdin": "", "stdout": "1"}]).score == 1
    assert set(Path(tempfile.gettempdir()).iterdir()) - before
    close_pool()
    assert set(Path(tempfile.gettempdir()).iterdir()) == before


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.sampled_from(["pass", "wrong", "unseen", "x", ""]),
    lambda inner: st.lists(inner, max_size=4),
    max_leaves=12,
)


@pytest.mark.slow
@settings(max_examples=500, deadline=None)
@given(JSON, st.integers(1, 4))
def test_an_answer_of_a_referee_is_checked(packed, tests):
    try:
        results = unpack_results(packed, tests)
    except ValueError:
        return
    assert len(results) == len(packed) == tests
    for at, (kind, _) in enumerate(packed):
        assert kind in KINDS
        assert (results[at] == PASSED) is (kind == "pass")


@pytest.mark.slow
def test_all_runs_of_a_program_have_a_bound_together(judge):
    tests = [{"stdin": str(at), "stdout": str(at)} for at in range(200)]
    source = "import time\nprint(input())\ntime.sleep(0.3)"
    verdict = judge(source, tests, scoring="share", time_limit=2.0, total_limit=1.5)
    passed = int(verdict.detail.split()[0])
    assert 1 <= passed <= 5
    assert verdict.score == passed / 200
    assert verdict.detail.partition("[")[2].startswith("+" * passed + "?" * (199 - passed))
    assert "all runs together took 1.5 s (total_limit)" in verdict.detail
    assert judge(source, tests, total_limit=1.5).score == 0
