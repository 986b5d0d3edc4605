"""Labelled cases: those in tests/cases, and those that are no part of the repository and are skipped where absent."""

import json
import os
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

_OURS = Path(__file__).resolve().parents[1] / "cases"
_BESIDE = Path(__file__).resolve().parents[3] / "shared" / "cases"
_VARIABLE = "GRPO_PLUS_CASES"


def _text(value):
    """The text of a field: itself, or its parts; a long text repeats a part, or numbers it from a start to a stop."""
    if isinstance(value, str):
        return value
    return "".join(_part(*part) if isinstance(part, list) else part for part in value)


def _part(text, *numbers):
    if len(numbers) == 1:
        return text * numbers[0]
    return "".join(text.replace("#", str(number)) for number in range(*numbers))


def _rows(path):
    with path.open(encoding="utf-8") as file:
        rows = [json.loads(line) for line in file]
    return [{name: _text(value) if isinstance(value, list) else value for name, value in row.items()} for row in rows]


@pytest.fixture(scope="session")
def cases():
    """Rows of a file in tests/cases."""
    return lambda name: _rows(_OURS / name)


@pytest.fixture(scope="session")
def outside_cases():
    """Rows of a file that is not ours to ship: in the folder GRPO_PLUS_CASES names, else in ../shared/cases."""
    folder = Path(os.environ.get(_VARIABLE) or _BESIDE)

    def rows(name):
        path = folder / name
        if path.is_file():
            return _rows(path)
        if os.environ.get(_VARIABLE):
            pytest.fail(f"{_VARIABLE} names {folder}, which has no {name}", pytrace=False)
        pytest.skip(f"{name} is no part of the repository: set {_VARIABLE} to a folder that has it")

    return rows


@pytest.fixture(scope="session")
def python():
    """Runs a program in an interpreter of its own: a text, a file by its path, or what comes to "-" as ``input``."""

    def python(program, *arguments, **options):
        given = [program] if isinstance(program, Path) or program == "-" else ["-c", program]
        command = [sys.executable, *given, *map(str, arguments)]
        options = {"capture_output": True, "text": True, "timeout": 90, **options}
        return subprocess.run(command, check=False, **options)

    return python


@pytest.fixture
def script(tmp_path, python):
    """Runs a program from a file, as a script of somebody."""

    def script(program, name="script.py", **options):
        (tmp_path / name).write_text(program)
        return python(tmp_path / name, cwd=tmp_path, **options)

    return script


class Server:
    """An endpoint whose answers a test scripts: a callable from request number and body to status, headers, body."""

    def __init__(self, script=None):
        self.script = script
        self.requests, self.headers, self.paths = [], [], []
        self.now = self.most = 0
        self.lock = threading.Lock()
        self.over = threading.Event()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                raw = self.rfile.read(int(self.headers.get("Content-Length", 0))) or b"null"
                with outer.lock:
                    outer.requests.append(json.loads(raw.decode("utf-8")))
                    outer.headers.append(dict(self.headers))
                    outer.paths.append(self.path)
                    number = len(outer.requests)
                    outer.now += 1
                    outer.most = max(outer.most, outer.now)
                try:
                    answer = outer.script(number, outer.requests[number - 1])
                    if callable(answer):
                        answer(self)
                        return
                    status, headers, body = answer
                    self.send_response(status)
                    for name, value in headers.items():
                        self.send_header(name, value)
                    self.send_header("Content-Length", str(len(body)))
                    self.end_headers()
                    self.wfile.write(body)
                except OSError:  # the client hung up, as it should
                    self.close_connection = True
                finally:
                    with outer.lock:
                        outer.now -= 1

            do_GET = do_POST

            def log_message(self, *_):
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.http.server_port}/v1"
        threading.Thread(target=self.http.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()


@pytest.fixture
def endpoint(monkeypatch):
    """Starts servers on this machine."""
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    servers = []

    def start(script):
        servers.append(Server(script))
        return servers[-1]

    yield start
    for server in servers:
        server.over.set()
        server.http.shutdown()
        server.http.server_close()
