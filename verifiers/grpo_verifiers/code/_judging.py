"""A program against its tests: what is sent into the box, and what the answers are worth."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from grpo_verifiers.code._box import Plan
from grpo_verifiers.code._compare import same_output, same_value
from grpo_verifiers.code._inside.values import check
from grpo_verifiers.code._levels import SandboxError
from grpo_verifiers.code._limits import Limits
from grpo_verifiers.code._pool import Slot
from grpo_verifiers.code._program import Program
from grpo_verifiers.code._results import Result, said, spelled
from grpo_verifiers.code._tests import BadTestsError, CallTest, CodeTest, StdioTest, Test
from grpo_verifiers.code.languages import Language

_CALLS_IN_TESTS = 100_000


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
    patience: int
    """Runs of one program that may run out of time before the rest of its inputs is left out."""


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
    late = 0
    for at, test in enumerate(question.tests):
        if isinstance(test, StdioTest):
            enough = late >= question.patience
            results[at] = Result("timeout", "out of time before") if enough else _stdio(question, slot, test)
            late += results[at].kind == "timeout"
    results |= zip((at for at, _ in calls), _calls(question, slot, [test for _, test in calls]), strict=True)
    run = _in_process if question.in_process else _apart
    results |= zip((at for at, _ in codes), run(question, slot, [test.code for _, test in codes]), strict=True)
    return [results[at] for at in range(len(question.tests))]


def _stdio(question: Question, slot: Slot, test: StdioTest) -> Result:
    language, limits = question.language, question.limits
    message: dict[str, Any] = {"mode": "main", "source": question.source}
    if language.commands:
        found = [command for command in language.commands if os.access(command[0], os.X_OK)]
        if not found:
            raise SandboxError(f"code: {language.commands[0][0]} is not installed here; install it.")
        message = {"mode": "command", "source": question.source, "file": language.file, "argv": found[0]}
        limits = replace(limits, memory=limits.memory + language.memory)
    stdin = test.stdin.encode("utf-8", "surrogatepass")
    with Program(slot.box(question.plan), limits, [message], stdin=stdin, capture=True) as program:
        told = program.receive()  # its words about itself: for people
        program.wait()
    if program.end != "exit":
        return _ended(program)
    note = f" ({said(told[-1])})" if isinstance(told, list) and told else ""
    output = program.output.decode("utf-8", "replace")
    if same_output(test.stdout, output, question.tolerance):
        return Result("pass")
    if isinstance(told, list) and told[:1] == ["syntax"]:
        return Result("syntax", f"does not compile{note}")
    return Result("wrong", f"printed {said(output)}, expected {said(test.stdout)}{note}")


def _load(program: Program) -> Result | None:
    """What became of loading a program to be called; the result of all its tests where that failed."""
    reply = program.receive()
    if reply == ["loaded"]:
        return None
    if not isinstance(reply, list) or len(reply) < 2:
        return _ended(program)
    if reply[0] == "syntax":
        return Result("syntax", f"does not compile ({said(reply[1])})")
    return Result("raised", f"raised when it was loaded ({said(reply[-1])})")


def _calls(question: Question, slot: Slot, tests: Sequence[CallTest]) -> list[Result]:
    if not tests:
        return []
    results: list[Result] = []
    asked = [{"name": test.function, "args": test.args, "kwargs": test.kwargs} for test in tests]
    # All questions are sent at once: the program is not waited for between them, and ends after the last.
    messages = [{"mode": "calls", "source": question.source}, *asked]
    with Program(slot.box(question.plan), question.limits, messages, last=True) as program:
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
    value, problem = _value(reply)
    if problem:
        return Result("wrong", f"{test.function} {problem}")
    try:
        if same_value(test.expected, value, tolerance):
            return Result("pass")
    except Exception:  # noqa: BLE001 - a stranger's data must never become a failure of ours, which would score None
        return Result("wrong", f"{test.function} returned what cannot be compared")
    return Result("wrong", f"{test.function} returned {spelled(value)}, expected {spelled(test.expected)}")


def _value(reply: Any) -> tuple[Any, str]:
    """The tree in a program's reply, and what is wrong where there is none."""
    if isinstance(reply, list) and reply and isinstance(reply[0], str):
        kind, *rest = reply
        if kind == "value" and len(rest) == 1:
            try:
                check(rest[0])
            except Exception:  # noqa: BLE001 - as above
                return None, "answered with a malformed value"
            return rest[0], ""
        if kind == "missing":
            return None, "is not defined"
        if kind == "refused" and len(rest) == 1 and isinstance(rest[0], str):
            return None, f"returned {said(rest[0])}, expected an exact built-in value"
        if kind == "raised" and len(rest) == 2 and all(isinstance(item, str) for item in rest):
            return None, f"raised {said(rest[1])}"
    return None, "gave a malformed answer"


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
    loading = [{"mode": "calls", "source": question.source}]
    with Program(slot.box(question.plan), question.limits, loading) as program:
        failed = _load(program)
        if failed is not None:
            return [failed] * len(codes)
        with Program(slot.box(question.plan, "tests"), limits, [{"mode": "tests", "tests": list(codes)}]) as tests:
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
        _, name, args, kwargs = message
        reply = program.ask({"name": name, "args": args, "kwargs": kwargs})
        if reply is None:
            return _ended(program)
        value, problem = _value(reply)
        if not problem:
            tests.send(["value", value])
        elif reply[0] == "raised":
            tests.send(["raised", reply[1][:100], reply[2][:1000]])
        elif reply[0] == "missing":
            tests.send(["raised", "NameError", f"name {name!r} is not defined"])
        else:
            # Remembered here: whatever the test makes of it, what did not cross passes nothing.
            hint = "assert_mode 'in_process' runs tests and program together"
            refused = refused or Result("refused", f"{name} {problem} ({hint})")
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
    raise BadTestsError(f"test {at} is broken: {said(why)}")


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
                    results.append(
                        Result("wrong", f"failed ({said(reply[-1] if isinstance(reply, list) and reply else reply)})")
                    )
            if failed is not None:
                results.append(failed)
    return results
