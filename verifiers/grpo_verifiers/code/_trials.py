"""Programs with a verdict that is certain in advance: the reference solution of a row, and some that do nothing."""

import ast
import re
from collections.abc import Iterable, Sequence
from typing import Any

from grpo_verifiers.base.golds import Trial
from grpo_verifiers.code.guest.blocks import PYTHON
from grpo_verifiers.code.tests import BadTestsError, CallTest, CodeTest, StdioTest, Test, read_tests
from grpo_verifiers.reading.fences import last_block

_RETURNED = ("None", "[]", "0", '""', "True", "False", 'float("nan")')
_ECHO = "import sys\nsys.stdout.write(sys.stdin.read())"


def trials(tests: Any, solution: Any = None, **_: Any) -> list[Trial]:
    """The trials of a row; its solution, if it has one, is a bare program or a completion with a fenced block."""
    golden = [] if solution is None else [Trial(_completion(solution), "its reference solution", passes=True)]
    try:
        read = read_tests(tests)
    except BadTestsError:
        read = []
    return [*golden, *(Trial(_fence(source), name, passes=False) for name, source in _idle(read))]


def _completion(solution: Any) -> str:
    text = solution if isinstance(solution, str) else str(solution)
    if _parses(text):
        return _fence(text)  # fences in it are part of its strings
    return text if last_block(text, PYTHON) is not None else _fence(text)


def _parses(source: str) -> bool:
    try:
        ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True


def _fence(source: str) -> str:
    """A program in a fence that none of its lines can close."""
    fence = "`" * (1 + max((len(run) for run in re.findall("`+", source)), default=2))
    return f"{fence}python\n{source}\n{fence}\n"


def _idle(tests: Sequence[Test]) -> list[tuple[str, str]]:
    """Name and source of programs that do nothing for these tests."""
    programs = [("an empty program (pass)", "pass")]
    printed = [test.stdout for test in tests if isinstance(test, StdioTest)]
    if printed:
        programs.append(("a program that prints its input", _ECHO))
    if len(printed) > 1:
        programs.append(("a program that prints the same for any input", f"print({printed[0]!r}, end='')"))
    names = sorted({name for test in tests for name in _functions(test)})
    if names:
        # With a single test, a program that returns its expected value passes and proves nothing.
        expected = [test.expected for test in tests if isinstance(test, CallTest)]
        first = [repr(value) for value in expected[:1] if len(expected) > 1 and isinstance(value, int | float | str)]
        returned = dict.fromkeys((*_RETURNED, *first))
        programs += [(f"a program that returns {value}", _stubs(names, value)) for value in returned]
        programs.append(("a program that returns its first argument", _stubs(names, "args[0] if args else None")))
    return programs


def _functions(test: Test) -> Iterable[str]:
    if isinstance(test, CallTest):
        return [test.function]
    return test.names if isinstance(test, CodeTest) else []


def _stubs(names: Sequence[str], result: str) -> str:
    """A program with these functions and methods, all with one result."""
    functions = [name for name in names if "." not in name]
    methods: dict[str, list[str]] = {}
    for name in names:
        owner, _, method = name.rpartition(".")
        if owner and "." not in owner:
            methods.setdefault(owner, []).append(method)
    lines = [f"def {name}(*args, **kwargs):\n    return {result}\n" for name in functions]
    for owner, own in methods.items():
        lines.append(f"class {owner}:")
        lines += [f"    def {method}(self, *args, **kwargs):\n        return {result}\n" for method in own]
    return "\n".join(lines)
