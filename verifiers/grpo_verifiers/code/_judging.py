"""A program against its tests: what is sent into the box, and what the answers are worth."""

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from grpo_verifiers.code._box import Plan
from grpo_verifiers.code._compare import same_output, same_value
from grpo_verifiers.code._inside.values import check, dump
from grpo_verifiers.code._levels import SandboxError
from grpo_verifiers.code._limits import Limits
from grpo_verifiers.code._pool import Slot
from grpo_verifiers.code._program import Program
from grpo_verifiers.code._results import Result, said, spelled
from grpo_verifiers.code._tests import BadTestsError, CallTest, CodeTest, StdioTest, Test
from grpo_verifiers.code.languages import Language

_CALLS_IN_TESTS = 100_000
_HINT = "assert_mode='in_process' runs test code and program together, where the program can fool it"
_PRELOAD = "modules beyond the standard library are there where preload names them"


@dataclass(frozen=True)
class Question:
    """A program and how to judge it."""

    source: str
    tests: Sequence[Test]
    language: Language
    plan: Plan
    limits: Limits
    tolerance: float
    in_process: bool
    whole: bool
    """One test that fails decides: then the rest is for people, and not worth much time."""


def judge(question: Question, slot: Slot) -> list[Result]:
    """The outcome of each test, in order.

    Raises:
        BoxError: the box failed.
        BadTestsError: a test that cannot be run, whatever the program.
    """
    results: dict[int, Result] = {}
    calls = [(at, test) for at, test in enumerate(question.tests) if isinstance(test, CallTest)]
    codes = [(at, test) for at, test in enumerate(question.tests) if isinstance(test, CodeTest)]
    if (calls or codes) and question.language.commands:
        raise BadTestsError("programs of this language are tested with stdin and stdout only")
    results |= each_input(question, lambda test: _stdio(question, slot, test))
    results |= zip((at for at, _ in calls), _calls(question, slot, [test for _, test in calls]), strict=True)
    run = _in_process if question.in_process else _apart
    results |= zip((at for at, _ in codes), run(question, slot, [test.code for _, test in codes]), strict=True)
    return [results[at] for at in range(len(question.tests))]


def each_input(question: Question, run: Callable[[StdioTest], Result]) -> dict[int, Result]:
    """A run for each input, by the place of the test, until runs that fail have taken too long."""
    results: dict[int, Result] = {}
    last = Result("pass")
    patience = question.limits.wall * (1 if question.whole else 3)
    for at, test in enumerate(question.tests):
        if not isinstance(test, StdioTest):
            continue
        if patience <= 0:
            results[at] = Result(last.kind, "left out: runs before it failed, and took long")
            continue
        started = time.monotonic()
        last = results[at] = run(test)
        if last.kind == "timeout":
            patience -= question.limits.wall
        elif last.kind != "pass" and question.whole:
            patience -= time.monotonic() - started
    return results


def _stdio(question: Question, slot: Slot, test: StdioTest) -> Result:
    language, limits = question.language, question.limits
    message: dict[str, Any] = {"mode": "main", "source": question.source}
    if language.commands:
        found = [command for command in language.commands if os.access(command[0], os.X_OK)]
        if not found:
            raise SandboxError(f"code: {language.commands[0][0]} is not installed here; install it.")
        message = {"mode": "command", "source": question.source, "file": language.file, "argv": found[0]}
        limits = replace(limits, memory=limits.memory + language.memory)
    # Whatever is expected may be printed, and somewhat more: blanks, and digits within the tolerance.
    limits = replace(limits, output=max(limits.output, 2 * len(test.stdout.encode("utf-8", "surrogatepass"))))
    stdin = test.stdin.encode("utf-8", "surrogatepass")
    with Program(slot.box(question.plan), limits, [message], stdin=stdin, capture=True) as program:
        told = program.receive()  # its words about itself: for people
        program.wait()
    if program.end != "exit":
        return _ended(program)
    words = _words(told)
    note = f" ({said(words)})" if words else ""
    if words and told[0] == "syntax":
        return Result("syntax", f"does not compile{note}")
    output = program.output.decode("utf-8", "replace")
    # A program that ends in an error has printed nothing by mistake rather than because it should.
    if same_output(test.stdout, output, question.tolerance) and (output.strip() or not words):
        return Result("pass")
    return Result("wrong", f"printed {said(output)}, expected {said(test.stdout)}{note}")


def _words(reply: Any) -> str:
    """The last text in a program's reply, which may be anything."""
    if not isinstance(reply, list) or not reply or not isinstance(reply[-1], str):
        return ""
    return reply[-1] + (f"; {_PRELOAD}" if reply[-1].startswith("ModuleNotFoundError") else "")


def _load(program: Program) -> Result | None:
    """What became of loading a program to be called; the result of all its tests where that failed."""
    reply = program.receive()
    if reply == ["loaded"]:
        return None
    words = _words(reply)
    if not words:
        return _ended(program)
    if reply[0] == "syntax":
        return Result("syntax", f"does not compile ({said(words)})")
    return Result("raised", f"raised when it was loaded ({said(words)})")


def _calls(question: Question, slot: Slot, tests: Sequence[CallTest]) -> list[Result]:
    if not tests:
        return []
    results: list[Result] = []
    asked = [{"name": test.function, "args": test.args, "kwargs": test.kwargs} for test in tests]
    # All questions are sent at once: the program is not waited for between them, and ends after the last.
    room = max(question.limits.message, *(2 * len(dump(test.expected)) for test in tests))
    messages = [{"mode": "calls", "source": question.source, "room": room}, *asked]
    limits = replace(question.limits, message=room)
    with Program(slot.box(question.plan), limits, messages, last=True) as program:
        failed = _load(program)
        for test in tests:
            if failed is None:
                reply = program.receive()
                if reply is None:
                    failed = _ended(program)
                else:
                    results.append(judge_value(test, reply, question.tolerance))
            if failed is not None:
                results.append(failed)
    return results


def judge_value(test: CallTest, reply: Any, tolerance: float) -> Result:
    """What a program's answer to a call is worth; the answer may be anything."""
    value, problem, _ = _value(reply)
    if problem:
        return Result("wrong", f"{test.function} {problem}")
    try:
        if same_value(test.expected, value, tolerance):
            return Result("pass")
    except Exception:  # noqa: BLE001 - a stranger's data must never become a failure of ours, which would score None
        return Result("wrong", f"{test.function} returned what cannot be compared")
    return Result("wrong", f"{test.function} returned {spelled(value)}, expected {spelled(test.expected)}")


def _value(reply: Any) -> tuple[Any, str, list[Any]]:
    """The tree in a program's reply; what is wrong where there is none; and the exception, for a test to handle."""
    if isinstance(reply, list) and reply and isinstance(reply[0], str):
        kind, *rest = reply
        if kind == "value" and len(rest) == 1:
            return (rest[0], "", []) if _is_tree(rest[0]) else (None, "answered with a malformed value", [])
        if kind == "missing" and not rest:
            return None, "is not defined", ["NameError", "the program does not define it", None]
        if kind == "refused" and len(rest) == 1 and isinstance(rest[0], str):
            return None, f"returned {said(rest[0])}, expected an exact built-in value", []
        if kind == "raised" and len(rest) in {2, 3} and all(isinstance(item, str) for item in rest[:2]):
            arguments = rest[2] if len(rest) == 3 and _is_tree(rest[2]) else None
            error = [rest[0][:100], rest[1][:1000], arguments]
            return None, f"raised {said(rest[1])}", error
    return None, "gave a malformed answer", []


def _is_tree(value: Any) -> bool:
    try:
        check(value)
    except Exception:  # noqa: BLE001 - as above
        return False
    return True


def _ended(program: Program) -> Result:
    if program.end == "timeout":
        return Result("timeout", program.why)
    return Result(
        "limit" if program.end in {"memory", "processes", "disk", "output", "killed"} else "ended", program.why
    )


def _apart(question: Question, slot: Slot, codes: Sequence[str]) -> list[Result]:
    """Run test code in a second box, where the program's functions are stubs; every call passes through here."""
    if not codes:
        return []
    results: list[Result] = []
    limits = replace(question.limits, wall=2 * question.limits.wall + 1, cpu=2 * question.limits.cpu + 1)
    beside = slot.box(question.plan, "tests")  # before the program's time begins: it may have to be started
    loading = [{"mode": "calls", "source": question.source}]
    with Program(slot.box(question.plan), question.limits, loading) as program:
        failed = _load(program)
        if failed is not None:
            return [failed] * len(codes)
        with Program(beside, limits, [{"mode": "tests", "tests": list(codes)}]) as tests:
            for at, _ in enumerate(codes, 1):
                results.append(_one_apart(at, tests, program))
                if tests.end or program.end:
                    break
    last = results[-1]
    return results + [last] * (len(codes) - len(results))


def _one_apart(at: int, tests: Program, program: Program) -> Result:
    refused: Result | None = None
    for _ in range(_CALLS_IN_TESTS):
        message = tests.receive()
        if message is None:
            # The tests only wait or compute on the program's values: whatever it is, the program had its part in it.
            return _ended(program) if program.end else Result(_ended(tests).kind, f"the test {tests.why}")
        if message[0] == "test":
            return refused or _outcome(at, message[1], message[2])
        name, args, kwargs = message[1:]
        reply = program.ask({"name": name, "args": args, "kwargs": kwargs})
        if reply is None:
            return _ended(program)
        value, problem, error = _value(reply)
        if not problem:
            tests.send(["value", value])
        elif error:
            tests.send(["raised", *error])
        else:
            # Remembered here: whatever the test makes of it, what did not cross passes nothing.
            refused = refused or Result("refused", f"{name} {problem} ({_HINT})")
            tests.send(["refused", problem])
    return Result("limit", f"more than {_CALLS_IN_TESTS} calls")


def _outcome(at: int, kind: str, why: str) -> Result:
    if kind == "pass":
        return Result("pass")
    if kind == "fail":
        return Result("wrong", f"failed ({said(why)})")
    if kind == "uncrossable":
        raise BadTestsError(
            f"test {at} {why}, which cannot cross to the program: rewrite it, or choose assert_mode='in_process', "
            "which trusts the program"
        )
    if kind == "idle":
        raise BadTestsError(f"test {at} never calls the program: anything would pass it")
    hint = f" ({_PRELOAD}; functions of the program need no import)" if why.startswith("ModuleNotFoundError") else ""
    raise BadTestsError(f"test {at} is broken: {said(why)}{hint}")


def _in_process(question: Question, slot: Slot, codes: Sequence[str]) -> list[Result]:
    """Run test code inside the program, and believe it."""
    if not codes:
        return []
    results: list[Result] = []
    messages = [{"mode": "calls", "source": question.source}, *({"code": code} for code in codes)]
    with Program(slot.box(question.plan), question.limits, messages, last=True) as program:
        failed = _load(program)
        for _ in codes:
            if failed is None:
                reply = program.receive()
                if reply is None:
                    failed = _ended(program)
                elif reply == ["pass"]:
                    results.append(Result("pass"))
                else:
                    results.append(Result("wrong", f"failed ({said(_words(reply))})"))
            if failed is not None:
                results.append(failed)
    return results
