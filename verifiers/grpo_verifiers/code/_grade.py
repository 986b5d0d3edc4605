"""Grading: inputs go into the box, answers are compared outside."""

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from grpo_verifiers.code._compare import same_output, same_value
from grpo_verifiers.code._results import PASSED, UNSEEN, Result, pack_results, quote, spell
from grpo_verifiers.code.guest.values import check, dump
from grpo_verifiers.code.question import GradingTask, TimeBudget
from grpo_verifiers.code.referee import BoxSet
from grpo_verifiers.code.run import ProgramRun
from grpo_verifiers.code.tests import BadTestsError, CallTest, CodeTest, StdioTest
from grpo_verifiers.sandbox.box import BoxError, Limits

_CALLS_IN_TESTS = 100_000
_KINDS_OF_VALUES = {"value", "awaited", "part"}
"""As it was returned, by a coroutine, or the next members of an iterator."""
_HINT = "assert_mode='in_process' runs test code and program together, where the program can fool it"
_PRELOAD = "modules beyond the standard library are available if preload names them"


def grade_packed(question: GradingTask, boxes: BoxSet) -> list[list[str]]:
    """``grade``, with its outcomes in JSON form."""
    return pack_results(grade(question, boxes))


def grade(question: GradingTask, boxes: BoxSet) -> list[Result]:
    """The outcome of each test, in order; BadTestsError for one that no program can be run with, or BoxError."""
    results = [UNSEEN] * len(question.tests)
    calls = [(at, test) for at, test in enumerate(question.tests) if isinstance(test, CallTest)]
    codes = [(at, test) for at, test in enumerate(question.tests) if isinstance(test, CodeTest)]
    budget = TimeBudget(question.total)
    _each_input(question, boxes, results, budget)
    if calls and not budget.over():
        _calls(question, boxes, results, calls, budget.bounded(question.limits))
    if codes and not budget.over():
        run = _in_process if question.in_process else _apart
        run(question, boxes, results, codes, budget.bounded(question.limits))
    unseen = Result("unseen", budget.why if budget.over() else "")
    return [unseen if result == UNSEEN else result for result in results]


def _each_input(question: GradingTask, boxes: BoxSet, results: list[Result], budget: TimeBudget) -> None:
    """Run the program on each input, until failing runs, or all of them, use up their time."""
    patience = question.limits.wall * (1 if question.all_required else 3)
    for at, test in enumerate(question.tests):
        if not isinstance(test, StdioTest):
            continue
        if budget.over():
            return
        if patience <= 0:
            results[at] = Result("unseen", "runs before them failed, and took long")
            continue
        started = time.monotonic()
        result = _stdio(question, boxes, test, budget.bounded(question.limits))
        if result.kind == "timeout" and budget.over():
            result = Result("unseen", budget.why)
        results[at] = result
        if result.kind == "timeout":
            patience -= question.limits.wall
        elif result.kind != "pass" and question.all_required:
            patience -= time.monotonic() - started


def _stdio(question: GradingTask, boxes: BoxSet, test: StdioTest, limits: Limits) -> Result:
    message = {"mode": "main", **question.program}
    # The expected output has to fit, and somewhat more: blanks, and digits inside the tolerance.
    limits = replace(limits, output=max(limits.output, 2 * len(test.stdout.encode("utf-8", "surrogatepass"))))
    stdin = test.stdin.encode("utf-8", "surrogatepass")
    with ProgramRun(boxes.box(question.box_kind), limits, [message], stdin=stdin, capture=True) as program:
        reply = program.receive()  # its own report: for people
        program.wait()
    if program.end != "exit":
        return _failure_of(program)
    words = _words(reply)
    note = f" ({quote(words)})" if words else ""
    if words and reply[0] == "syntax":
        return Result("syntax", f"does not compile{note}")
    output = program.output.decode("utf-8", "replace")
    # A program that ends in an error has printed nothing by mistake rather than because it should.
    if same_output(test.stdout, output, question.tolerance) and (output.strip() or not words):
        return PASSED
    return Result("wrong", f"printed {quote(output)}, expected {quote(test.stdout)}{note}")


def _words(reply: Any) -> str:
    """The last text in a program's reply, which may have any form."""
    if not isinstance(reply, list) or not reply or not isinstance(reply[-1], str):
        return ""
    return reply[-1] + (f"; {_PRELOAD}" if reply[-1].startswith("ModuleNotFoundError") else "")


def _load(program: ProgramRun) -> Result | None:
    """Load a program; its failure, or None."""
    reply = program.receive()
    if reply == ["loaded"]:
        return None
    words = _words(reply)
    if not words:
        return _failure_of(program)
    if reply[0] == "syntax":
        return Result("syntax", f"does not compile ({quote(words)})")
    return Result("raised", f"raised an exception while loading ({quote(words)})")


def _calls(
    question: GradingTask, boxes: BoxSet, results: list[Result], tests: Sequence[tuple[int, CallTest]], limits: Limits
) -> None:
    questions = [{"name": test.function, "args": test.args, "kwargs": test.kwargs} for _, test in tests]
    # All questions are sent at once: the program is not waited for between them, and ends after the last.
    sizes = [2 * len(dump(test.expected)) for _, test in tests]
    room = max(limits.message, *sizes)
    loading = [{"mode": "calls", **question.program, "room": room}]
    limits = replace(limits, message=room, sent=limits.sent + sum(sizes))
    with ProgramRun(boxes.box(question.box_kind), limits, loading, questions=questions, last=True) as program:
        failed = _load(program)
        for at, test in tests:
            reply = None if failed else program.answer()
            if reply is None:
                results[at] = failed or _failure_of(program)
                return
            results[at] = grade_value(test, reply, question.tolerance)


def grade_value(test: CallTest, reply: Any, tolerance: float) -> Result:
    """The outcome of a call's test; the answer may be anything."""
    value, problem, _ = _value(reply)
    if problem:
        return Result("wrong", f"{test.function} {problem}")
    try:
        if same_value(test.expected, value, tolerance):
            return PASSED
    except Exception:  # noqa: BLE001 - untrusted data must never cause a verifier failure, which would score None
        return Result("wrong", f"{test.function} returned a value that cannot be compared")
    return Result("wrong", f"{test.function} returned {spell(value)}, expected {spell(test.expected)}")


def _value(reply: Any) -> tuple[Any, str, list[Any]]:
    """The tree in a program's reply; the problem if there is none; and the exception, for a test to handle."""
    if isinstance(reply, list) and reply and isinstance(reply[0], str):
        kind, *rest = reply
        numbered = all(type(at) is int for at in rest[1:])
        if kind in _KINDS_OF_VALUES and len(rest) in (1, 1 + (kind == "part")) and numbered:
            return (rest[0], "", []) if _is_tree(rest[0]) else (None, "answered with a malformed value", [])
        if kind == "missing" and not rest:
            return None, "is not defined", ["the program does not define it", "NameError", None, [], None]
        if kind == "refused" and len(rest) == 1 and isinstance(rest[0], str):
            return None, f"returned {quote(rest[0])}, expected an exact built-in value", []
        if kind == "raised" and (error := _error(*rest)):
            return None, f"raised {quote(error[0])}", error
    return None, "gave a malformed answer", []


def _error(
    message: Any = None, near: Any = "", args: Any = None, own: Any = (), fields: Any = None, *more: Any
) -> list[Any]:
    """The parts of a program's exception; empty if malformed."""
    if more or not isinstance(message, str) or not isinstance(near, str):
        return []
    names = [name for name in own if isinstance(name, str)][:20] if isinstance(own, list) else []
    crossing = fields if isinstance(fields, list) and fields[:1] == ["d"] and _is_tree(fields) else None
    return [message[:1000], near[:100], args if _is_tree(args) else None, names, crossing]


def _is_tree(value: Any) -> bool:
    try:
        check(value)
    except Exception:  # noqa: BLE001 - as above
        return False
    return True


def _failure_of(program: ProgramRun) -> Result:
    if program.end == "timeout":
        return Result("timeout", program.why)
    limits = {"memory", "processes", "disk", "output", "sent", "killed"}
    return Result("limit" if program.end in limits else "ended", program.why)


def _apart(
    question: GradingTask, boxes: BoxSet, results: list[Result], codes: Sequence[tuple[int, CodeTest]], limits: Limits
) -> None:
    """Run test code in a second box, where the program's functions are stubs; every call passes through here."""
    tests_box = boxes.box(question.box_kind, "tests")  # before the program's time begins: it may have to be started
    loading = [{"mode": "calls", **question.program}]
    with ProgramRun(boxes.box(question.box_kind), limits, loading) as program:
        failed = _load(program)
        if failed is not None:
            results[codes[0][0]] = failed
            return
        # Only the time of the tests is bounded, not their messages: no program writes there.
        longer = replace(limits, wall=2 * limits.wall + 1, cpu=2 * limits.cpu + 1, sent=1 << 62)
        left = list(codes)
        while left:
            message = {"mode": "tests", "tests": [[at, test.code] for at, test in left]}
            with ProgramRun(tests_box, longer, [message]) as tests:
                for done, (at, _) in enumerate(left):
                    try:
                        result = _failure_of(program) if program.end else _one_apart(at, tests, program)
                    except BadTestsError:
                        if not done:
                            raise
                        left = left[done:]  # earlier answers may be the cause: repeat in a new process
                        break
                    results[at] = result
                    if result.kind in {"ended", "timeout", "limit"}:
                        return
                else:
                    return


def _one_apart(at: int, tests: ProgramRun, program: ProgramRun) -> Result:
    refused: Result | None = None
    for _ in range(_CALLS_IN_TESTS):
        message = tests.receive()
        if message is None:
            # The tests only wait or compute on the program's values, so the program contributed to any end of theirs.
            return _failure_of(program) if program.end else Result(_failure_of(tests).kind, f"the test {tests.why}")
        if message[0] == "test":
            if message[1] != at:
                raise BoxError(f"the tests' box answered test {message[1] + 1} in place of test {at + 1}")
            return refused or _outcome(at, *message[2:])
        name, *rest = message[1:]
        more = message[0] == "more"
        reply = program.ask(
            {"more": rest[0]} if more else {"name": name, "args": rest[0], "kwargs": rest[1], "parts": True}
        )
        if reply is None:
            return _failure_of(program)
        value, problem, error = _value(reply)
        if not problem:
            tests.send([reply[0], value, *reply[2:]])
        elif error:
            tests.send(["raised", *error])
        else:
            # Remembered here: no test passes with a value that did not cross, even if it handles the error.
            refused = refused or Result("refused", f"{name} {problem} ({_HINT})")
            tests.send(["refused", problem])
    return Result("limit", f"more than {_CALLS_IN_TESTS} calls")


def _outcome(at: int, kind: str, why: str) -> Result:
    if kind == "pass":
        return PASSED
    if kind == "fail":
        return Result("wrong", f"failed ({quote(why)})")
    if kind == "refused":
        return Result("refused", f"{quote(why)} ({_HINT})")
    if kind == "uncrossable":
        raise BadTestsError(
            f"test {at + 1} {why}, which cannot cross to the program: rewrite it, or choose assert_mode='in_process', "
            "which trusts the program"
        )
    if kind == "idle":
        raise BadTestsError(f"test {at + 1} never calls the program: anything would pass it")
    hint = f" ({_PRELOAD}; functions of the program need no import)" if why.startswith("ModuleNotFoundError") else ""
    raise BadTestsError(f"test {at + 1} is broken: {quote(why)}{hint}")


def _in_process(
    question: GradingTask, boxes: BoxSet, results: list[Result], codes: Sequence[tuple[int, CodeTest]], limits: Limits
) -> None:
    """Run test code inside the program, and believe it."""
    loading = [{"mode": "calls", **question.program}]
    questions = [{"code": test.code} for _, test in codes]
    with ProgramRun(boxes.box(question.box_kind), limits, loading, questions=questions, last=True) as program:
        failed = _load(program)
        for at, _ in codes:
            reply = None if failed else program.answer()
            if reply is None:
                results[at] = failed or _failure_of(program)
                return
            results[at] = PASSED if reply == ["pass"] else Result("wrong", f"failed ({quote(_words(reply))})")
