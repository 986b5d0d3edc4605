"""The client of the Piston API against a real HTTP server that speaks it over the local sandbox."""

import json
import threading

import pytest

from grpo_verifiers import Status, get_verifier
from grpo_verifiers.code import _piston
from grpo_verifiers.code.run import ProgramRun
from grpo_verifiers.errors import KeywordError, VerifierFailedError
from grpo_verifiers.sandbox.box import Limits

from .conftest import opened
from .programs import CALLS, RUNS

pytestmark = pytest.mark.slow
ADD = "def add(a, b): return a + b"


@pytest.fixture
def server(endpoint, monkeypatch):
    """Answers what it is told to, then runs programs; it breaks at those with a certain text."""
    init, lock = _piston.Server.__init__, threading.Lock()
    quick = {"timeout": 10.0, "retries": 2, "backoff": 0.01}
    monkeypatch.setattr(_piston.Server, "__init__", lambda self, url, **_: init(self, url, **quick))

    def execute(_, body):
        source, given = body["files"][0]["content"], body["stdin"]
        if made.answers or made.broken_by in source or made.broken_by in given:
            status, headers = made.answers.pop(0) if made.answers else (500, {})
            return status, headers, b'{"message": "not now"}'
        limits, messages = Limits(wall=body["run_timeout"] / 1000), [{"mode": "main", "source": source}]
        with lock, ProgramRun(box, limits, messages, stdin=given.encode(), capture=True) as program:
            program.wait()
        ended = {"code": 0, "signal": None} if program.end == "exit" else {"code": None, "signal": "SIGKILL"}
        out = {"stdout": program.output.decode("utf-8", "replace"), "stderr": "", "output": "", "status": made.status}
        return 200, {}, json.dumps({"language": body["language"], "version": "3.11", "run": out | ended}).encode()

    with opened("process") as box:
        made = endpoint(execute)
        made.url = made.url.replace("/v1", "/api/v2")
        made.answers, made.broken_by, made.status = [], "\0", None
        yield made
        assert set(made.paths) <= {"/api/v2/execute"}


def test_every_row_is_judged_right_over_the_wire(cases, fenced, server):
    rows = cases("hacks_code.jsonl")
    verifier = get_verifier("code", piston=server.url, time_limit=1.0, concurrency=4)
    tests = [CALLS if row["kind"] == "func" else RUNS for row in rows]
    verdicts = verifier.verify_batch(None, [fenced(row["code"]) for row in rows], tests=tests)
    scores = {row["id"]: verdict.score for row, verdict in zip(rows, verdicts, strict=True)}
    assert scores == {row["id"]: float(row["expected_reward"]) for row in rows}


def test_values_cross_exactly_and_a_busy_server_is_asked_again(fenced, server):
    verifier = get_verifier("code", piston=server.url, time_limit=1.0)
    tests = [{"function": "f", "args_repr": "({1, 2},)", "expected_repr": "(1, {2})"}]
    assert verifier.verify(fenced("print('[]')\ndef f(s):\n    print(s)\n    return (1, {2})"), tests=tests).score == 1
    assert verifier.verify(fenced("def f(s): return (1, {3})"), tests=tests).score == 0
    assert verifier.verify(fenced("def g(s): return 1"), tests=tests).score == 0
    assert verifier.verify(fenced("while True: pass"), tests=tests).score == 0
    server.answers, before = [(429, {"Retry-After": "0"}), (503, {})], len(server.requests)
    assert get_verifier("code", piston=server.url).verify(fenced(ADD), tests=CALLS).score == 1
    assert len(server.requests) == before + 3


def test_a_program_that_breaks_the_server_scores_zero_and_a_dead_server_stops_the_run(fenced, server):
    server.broken_by = "breaker"
    verifier = get_verifier("code", piston=server.url)
    verdict = verifier.verify(fenced("breaker = 1\ndef add(a, b): return a + b"), tests=CALLS)
    assert (verdict.score, verdict.status) == (0, Status.ERROR)
    server.broken_by = ""
    with pytest.raises(VerifierFailedError, match=r"does not work.*HTTP 500"):
        verifier.verify(fenced(ADD), tests=CALLS)
    server.answers = [(400, {}), (400, {})]
    with pytest.raises(VerifierFailedError, match=r"does not work.*HTTP 400"):
        verifier.verify(fenced(ADD), tests=CALLS)
    server.answers, server.broken_by, before = [(413, {})], "\0", len(server.requests)
    assert (verifier.verify(fenced(ADD), tests=CALLS).score, len(server.requests)) == (0, before + 2)


def test_what_the_api_cannot_do_is_refused_and_an_odd_status_is_the_servers_fault(fenced, server):
    verdict = get_verifier("code", piston=server.url).verify(fenced("f = 1"), tests=[{"code": "assert f() == 1"}])
    assert verdict.score is None
    assert "needs the local sandbox" in verdict.detail
    with pytest.raises(KeywordError, match="piston is 'localhost:2000'"):
        get_verifier("code", piston="localhost:2000")
    server.status = {"code": "TO"}
    with pytest.raises(VerifierFailedError, match=r"does not work.*a run\.status that is no text"):
        get_verifier("code", piston=server.url).verify(fenced(ADD), tests=CALLS)
