"""Programs run by a server that speaks the Piston API, for those who have a cluster: the same tests, judged here.

The server is sent inputs only. Test code needs a conversation with the program, which the API has not: it runs locally.
"""

import json
import random
import re
import secrets
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grpo_verifiers.code._compare import same_output
from grpo_verifiers.code._grade import each_input, grade_value
from grpo_verifiers.code._results import Failed, Passed, Result, Results, quote
from grpo_verifiers.code.guest import names, records, values
from grpo_verifiers.code.languages import Language
from grpo_verifiers.code.question import Question, TimeBudget
from grpo_verifiers.code.tests import BadTestsError, CallTest, CodeTest, StdioTest
from grpo_verifiers.errors.messages import show
from grpo_verifiers.exec.http import exchange, retry_after
from grpo_verifiers.exec.loop import wait_http
from grpo_verifiers.sandbox.box import Limits

_AGAIN = frozenset({408, 425, 429})
_LATE = frozenset({"TO", "timeout"})
_BROKEN = frozenset({"OL", "EL", "SG", "XX"})
_jitter = random.SystemRandom()

_DRIVER = """

import sys, types
asked = json.loads(sys.stdin.read())
module = types.ModuleType("program")
sys.modules["program"] = module
answers = []
def told(error):
    try:
        return f"{type(error).__name__}: {error}"[:300]
    except BaseException:
        return "an exception that cannot be shown"
try:
    exec(compile(asked["source"], "<program>", "exec", dont_inherit=True), module.__dict__)
    for name, args, kwargs in asked["calls"]:
        args, kwargs = decode(args), decode(kwargs)
        try:
            answers.append(["value", encode(find(module.__dict__, name)(*args, **kwargs))])
        except MissingError:
            answers.append(["missing"])
        except NoValueError as error:
            answers.append(["refused", str(error)])
        except BaseException as error:
            answers.append(["raised", told(error)])
except BaseException as error:
    answers = [["raised", told(error)] for _ in asked["calls"]]
sys.__stdout__.write("\\n" + asked["mark"] + json.dumps(answers) + "\\n")
sys.__stdout__.flush()
"""


@dataclass(frozen=True)
class Server:
    """The server that programs are sent to, by its address before ``/execute``.

    A request may take ``timeout`` seconds beyond the program's own time; ``backoff`` doubles with each retry.
    """

    url: str
    timeout: float = 10.0
    retries: int = 4
    backoff: float = 0.5


class ServerError(Exception):
    """The server did not run a program."""


def grade_remote(question: Question, server: Server) -> list[Result]:
    """The outcome of each test, in order; BadTestsError for tests that cannot be run this way, or ServerError."""
    if any(isinstance(test, CodeTest) for test in question.tests):
        raise BadTestsError("test code needs the local sandbox: leave piston out, or write tests as calls")
    calls = [(at, test) for at, test in enumerate(question.tests) if isinstance(test, CallTest)]
    if calls and question.language.commands:
        raise BadTestsError("programs of this language are tested with stdin and stdout only")
    results = Results(len(question.tests))
    if calls:
        _calls(question, server, results, calls)
    budget = TimeBudget(question.total)
    each_input(question, results, budget, lambda at, test, limits: _stdio(question, server, at, test, limits))
    return results.results(budget.why if budget.over() else "")


def _stdio(question: Question, server: Server, at: int, test: StdioTest, limits: Limits) -> Result:
    output, failed = execute(server, question.language, question.source, test.stdin, limits)
    if failed is not None:
        return failed
    if same_output(test.stdout, output, question.tolerance):
        return Passed(at)
    return Failed("wrong", f"printed {quote(output)}, expected {quote(test.stdout)}")


def _calls(question: Question, server: Server, results: Results, tests: list[tuple[int, CallTest]]) -> None:
    mark = secrets.token_hex(16)
    asked = {"mark": mark, "source": question.source, "calls": [[t.function, t.args, t.kwargs] for _, t in tests]}
    parts = (Path(str(part.__file__)).read_text(encoding="utf-8") for part in (names, records, values))
    driver = re.sub(r"^from \.\w+ import .*", "", "".join(parts), flags=re.MULTILINE) + _DRIVER
    output, failed = execute(server, question.language, driver, json.dumps(asked), question.limits)
    # The program can write this line too: then that is its answer, and compared like any other.
    line = next((line for line in reversed(output.split("\n")) if line.startswith(mark)), "")
    try:
        replies = json.loads(line[len(mark) :])
    except (ValueError, RecursionError):
        replies = None
    if failed is None and (not isinstance(replies, list) or len(replies) != len(tests)):
        failed = Failed("ended", "ended before it answered")
    if failed is not None:
        results.note(tests[0][0], failed)
        return
    for (at, test), reply in zip(tests, replies, strict=True):
        results.note(at, grade_value(at, test, reply, question.tolerance))


def execute(server: Server, language: Language, source: str, stdin: str, limits: Limits) -> tuple[str, Failed | None]:
    """A program's output, and its failure if any; ServerError where the server refuses, or fails at each attempt."""
    body = {
        "language": language.piston,
        "version": "*",
        "files": [{"name": language.file, "content": source}],
        "stdin": stdin,
        "run_timeout": int(limits.wall * 1000),
        "run_memory_limit": limits.memory,
    }
    reply = _asked(server, json.dumps(body).encode(), limits.wall)
    run = reply.get("run")
    if not isinstance(run, dict) or not isinstance(run.get("stdout"), str):
        raise ServerError(f"an answer without run.stdout: {show(reply, 200)}")
    status, output = run.get("status"), run["stdout"]
    if not isinstance(status, str | None):
        raise ServerError(f"a run.status that is no text: {show(status, 200)}")
    if status in _LATE or (status is None and run.get("signal") == "SIGKILL"):
        return output, Failed("timeout", "out of time, or killed by its limits")
    if status in _BROKEN or run.get("signal") is not None:
        return output, Failed("limit", f"ended by {show(run.get('message') or run.get('signal') or status)}")
    if len(output) > limits.output:
        return "", Failed("limit", "printed too much")
    return output, None


def _asked(server: Server, data: bytes, wall: float) -> dict[str, Any]:
    url = f"{server.url.rstrip('/')}/execute"
    headers = {"Content-Type": "application/json", "Accept": "application/json", "User-Agent": "grpo-verifiers"}
    problem = ""
    for attempt in range(server.retries + 1):
        wait = 0.0
        try:
            status, reply_headers, reply = wait_http(exchange(url, data, headers, server.timeout + wall))
            if status == 200:
                found = json.loads(reply)
                if isinstance(found, dict):
                    return found
                problem = f"an answer that is no object: {show(reply[:200].decode('utf-8', 'replace'))}"
            else:
                problem = f"HTTP {status}: {show(reply[:400].decode('utf-8', 'replace'), 200)}"
                if status < 500 and status not in _AGAIN:
                    raise ServerError(f"{url}: {problem}")
                wait = min(60.0, retry_after(reply_headers))
        except (OSError, ValueError, RecursionError) as error:
            problem = f"{type(error).__name__}: {error}"
        if attempt < server.retries:
            time.sleep(max(wait, min(30.0, server.backoff * 2.0**attempt) * _jitter.uniform(0.5, 1.0)))
    raise ServerError(f"{url}: {problem} (after {server.retries + 1} attempts)")
