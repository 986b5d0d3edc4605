"""The client of the Piston API against a real HTTP server that speaks it over the local sandbox."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from grpo_verifiers import Status, get_verifier
from grpo_verifiers.code import _piston
from grpo_verifiers.code.run import ProgramRun
from grpo_verifiers.errors import KeywordError, VerifierFailedError
from grpo_verifiers.sandbox.box import Box, BoxKind
from grpo_verifiers.sandbox.limits import Limits

pytestmark = pytest.mark.slow

CALLS = [{"function": "add", "args": [1, 2], "expected": 3}, {"function": "add", "args": [10, 5], "expected": 15}]
RUNS = [{"stdin": f"{n}\n", "stdout": f"{2 * n}\n{3 * n}"} for n in (3, 7)]


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.box = Box(BoxKind("process"))
        self.lock = threading.Lock()
        self.answers = []  # (status, headers) to give before serving
        self.broken_by = "\0"
        self.requests = 0
        self.status = None
        self.url = f"http://127.0.0.1:{self.server_address[1]}/api/v2"


class _Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        server = self.server
        server.requests += 1
        assert self.path == "/api/v2/execute"
        if server.answers or server.broken_by in body["files"][0]["content"] or server.broken_by in body["stdin"]:
            status, headers = server.answers.pop(0) if server.answers else (500, {})
            return self.reply(status, {"message": "not now"}, headers)
        limits = Limits(wall=body["run_timeout"] / 1000)
        messages = [{"mode": "main", "source": body["files"][0]["content"]}]
        with (
            server.lock,
            ProgramRun(server.box, limits, messages, stdin=body["stdin"].encode(), capture=True) as program,
        ):
            program.wait()
        late = program.end != "exit"
        run = {
            "stdout": program.output.decode("utf-8", "replace"),
            "stderr": "",
            "output": "",
            "code": None if late else 0,
            "signal": "SIGKILL" if late else None,
            "status": server.status,
        }
        return self.reply(200, {"language": body["language"], "version": "3.11", "run": run}, {})

    def reply(self, status, value, headers):
        data = json.dumps(value).encode()
        self.send_response(status)
        for name, text in {"Content-Length": str(len(data)), **headers}.items():
            self.send_header(name, text)
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *args):
        pass


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setattr(_piston.Server, "__init__", _quick(_piston.Server.__init__))
    made = _Server()
    thread = threading.Thread(target=made.serve_forever, daemon=True)
    thread.start()
    yield made
    made.shutdown()
    thread.join(10)
    made.server_close()
    made.box.close()


def _quick(init):
    def quicker(self, url, timeout=10.0, retries=2, backoff=0.01):
        init(self, url, timeout, retries, backoff)

    return quicker


def test_every_row_is_judged_right_over_the_wire(cases, fenced, server):
    rows = cases("hacks_code.jsonl")
    verdicts = get_verifier("code", piston=server.url, time_limit=1.0, concurrency=4).verify_batch(
        None,
        [fenced(row["code"]) for row in rows],
        None,
        tests=[CALLS if row["kind"] == "func" else RUNS for row in rows],
    )
    scores = {row["id"]: verdict.score for row, verdict in zip(rows, verdicts, strict=True)}
    assert scores == {row["id"]: float(row["expected_reward"]) for row in rows}


def test_values_cross_exactly_and_prints_do_not_matter(fenced, server):
    verifier = get_verifier("code", piston=server.url, time_limit=1.0)
    tests = [{"function": "f", "args_repr": "({1, 2},)", "expected_repr": "(1, {2})"}]
    assert verifier.verify(fenced("print('[]')\ndef f(s):\n    print(s)\n    return (1, {2})"), tests=tests).score == 1
    assert verifier.verify(fenced("def f(s): return (1, {3})"), tests=tests).score == 0
    assert verifier.verify(fenced("def g(s): return 1"), tests=tests).score == 0
    assert verifier.verify(fenced("while True: pass"), tests=tests).score == 0


def test_a_busy_server_is_asked_again(fenced, server):
    server.answers = [(429, {"Retry-After": "0"}), (503, {})]
    assert get_verifier("code", piston=server.url).verify(fenced("def add(a, b): return a + b"), tests=CALLS).score == 1
    assert server.requests == 3


def test_a_program_that_breaks_the_server_scores_zero_and_a_dead_server_stops_the_run(fenced, server):
    server.broken_by = "breaker"
    verifier = get_verifier("code", piston=server.url)
    verdict = verifier.verify(fenced("breaker = 1\ndef add(a, b): return a + b"), tests=CALLS)
    assert (verdict.score, verdict.status) == (0, Status.ERROR)
    server.broken_by = ""
    with pytest.raises(VerifierFailedError, match=r"does not work.*HTTP 500"):
        verifier.verify(fenced("def add(a, b): return a + b"), tests=CALLS)
    server.answers = [(400, {}), (400, {})]
    with pytest.raises(VerifierFailedError, match=r"does not work.*HTTP 400"):
        verifier.verify(fenced("def add(a, b): return a + b"), tests=CALLS)
    server.answers, server.broken_by, before = [(413, {})], "\0", server.requests
    assert verifier.verify(fenced("def add(a, b): return a + b"), tests=CALLS).score == 0
    assert server.requests == before + 2


def test_what_the_api_cannot_do_is_refused(fenced, server):
    verdict = get_verifier("code", piston=server.url).verify(fenced("f = 1"), tests=[{"code": "assert f() == 1"}])
    assert verdict.score is None
    assert "needs the local sandbox" in verdict.detail
    with pytest.raises(KeywordError, match="piston is 'localhost:2000'"):
        get_verifier("code", piston="localhost:2000")


def test_a_status_of_another_kind_is_the_servers_fault(fenced, server):
    server.status = {"code": "TO"}
    with pytest.raises(VerifierFailedError, match=r"does not work.*a run\.status that is no text"):
        get_verifier("code", piston=server.url).verify(fenced("def add(a, b): return a + b"), tests=CALLS)
