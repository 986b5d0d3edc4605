"""Parse the tests of a row into one of three shapes."""

import ast
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from grpo_verifiers.code.guest.names import unknown_names
from grpo_verifiers.code.guest.values import NoValueError, encode
from grpo_verifiers.errors.messages import show

_KEYS = ("stdin", "stdout", "function", "args", "args_repr", "kwargs", "expected", "expected_repr", "code")
_SHAPES = (
    "expected {stdin, stdout}, {function, args, expected or expected_repr}, or {code}; a key without a value is left "
    "out, or None"
)
_ELSEWHERE = {"input": "stdin", "output": "stdout", "fn_name": "function", "func": "function", "test": "code"}
MAX_TESTS = 10_000


class BadTestsError(ValueError):
    """Unusable tests; the dataset's fault, never a completion's."""


@dataclass(frozen=True)
class StdioTest:
    """Standard input, and the complete output expected for it."""

    stdin: str
    stdout: str


@dataclass(frozen=True)
class CallTest:
    """A call, and the value expected from it; all values as trees."""

    function: str
    args: Any
    kwargs: Any
    expected: Any


@dataclass(frozen=True)
class CodeTest:
    """Test code, which raises where the program is wrong."""

    code: str

    @property
    def names(self) -> set[str]:
        """Names that it reads and never binds; empty for broken code, which fails when it runs."""
        try:
            return unknown_names(ast.parse(self.code))
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return set()


Test = StdioTest | CallTest | CodeTest


def read_tests(value: Any) -> list[Test]:
    """The tests of a row: a list of mappings, or that in JSON; BadTestsError if missing or malformed."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError) as error:
            raise BadTestsError(f"tests is a text that is not JSON ({error}): {show(value)}") from error
    if hasattr(value, "tolist"):  # a column of arrays
        value = value.tolist()
    if isinstance(value, Mapping | str | bytes) or not isinstance(value, Sequence):
        each = ": one {stdin, stdout} for each pair" if isinstance(value, Mapping) and "inputs" in value else ""
        raise BadTestsError(f"tests is {show(value)}, expected a list of tests{each}")
    if not value:
        raise BadTestsError("tests is empty: a program without a test can be neither right nor wrong")
    if len(value) > MAX_TESTS:
        raise BadTestsError(f"{len(value)} tests, expected at most {MAX_TESTS}")
    return [_read(index, test) for index, test in enumerate(value, 1)]


def _read(index: int, test: Any) -> Test:
    if not isinstance(test, Mapping):
        as_code = " (for an assertion: {code: 'assert …'})" if isinstance(test, str) else ""
        raise BadTestsError(f"test {index} is {show(test)}, {_SHAPES}{as_code}")
    fields = {key: item for key, item in test.items() if item is not None}
    unknown = sorted(str(key) for key in fields if key not in _KEYS)
    if unknown:
        hints = ", ".join(f"{key} is {_ELSEWHERE[key]} here" for key in unknown if key in _ELSEWHERE)
        hint = f" ({hints})" if hints else ""
        raise BadTestsError(f"test {index} has unknown keys {', '.join(map(repr, unknown))}{hint}; {_SHAPES}")
    keys = set(fields)
    if "stdout" in keys and keys <= {"stdin", "stdout"}:
        return StdioTest(_text(index, fields, "stdin"), _text(index, fields, "stdout"))
    if keys == {"code"}:
        code = _text(index, fields, "code")
        if not code.strip():
            raise BadTestsError(f"test {index}: code is empty")
        return CodeTest(code)
    expected = keys & {"expected", "expected_repr"}
    if "function" in keys and len(expected) == 1 and not keys & {"stdin", "stdout", "code"}:
        return _call(index, fields)
    if "function" in keys and not expected and not keys & {"stdin", "stdout", "code"}:
        raise BadTestsError(
            f"test {index} of function {show(fields['function'])} has no expected value (a None counts as absent: "
            "write expected_repr: 'None')"
        )
    raise BadTestsError(f"test {index} has the keys {', '.join(map(repr, sorted(keys))) or 'none'}; {_SHAPES}")


def _call(index: int, fields: Mapping[str, Any]) -> CallTest:
    function = fields["function"]
    if not isinstance(function, str) or not all(part.isidentifier() for part in function.split(".")):
        raise BadTestsError(f"test {index}: function is {show(function)}, expected a name")
    if "args" in fields and "args_repr" in fields:
        raise BadTestsError(f"test {index} has both args and args_repr, expected one")
    args = _literal(index, fields, "args_repr") if "args_repr" in fields else _plain(fields.get("args", []))
    kwargs = _plain(fields.get("kwargs", {}))
    if not isinstance(args, list | tuple):
        raise BadTestsError(f"test {index}: the arguments are {show(args)}, expected a list")
    if not isinstance(kwargs, dict) or not all(isinstance(key, str) for key in kwargs):
        raise BadTestsError(f"test {index}: kwargs is {show(kwargs)}, expected names and values")
    kwargs = {key: item for key, item in kwargs.items() if item is not None}
    expected = _literal(index, fields, "expected_repr") if "expected_repr" in fields else _plain(fields["expected"])
    try:
        return CallTest(str.__str__(function), encode(list(args)), encode(kwargs), encode(expected))
    except NoValueError as error:
        raise BadTestsError(f"test {index} holds {error}, expected built-in values") from error


def _plain(value: Any) -> Any:
    """Arrays and scalars of numpy, which tables of numbers come as, in plain values."""
    return value.tolist() if hasattr(value, "tolist") else value


def _literal(index: int, fields: Mapping[str, Any], key: str) -> Any:
    text = _text(index, fields, key)
    if text.strip() == "set()":
        return set()
    try:
        return ast.literal_eval(text.strip())
    except (ValueError, SyntaxError, MemoryError, RecursionError, TypeError) as error:
        raise BadTestsError(
            f"test {index}: {key} is {show(text)}, expected a Python literal such as '(1, {{2}})'"
        ) from error


def _text(index: int, fields: Mapping[str, Any], key: str) -> str:
    value = fields.get(key, "")
    if not isinstance(value, str):
        raise BadTestsError(f"test {index}: {key} is {show(value)}, expected a text")
    return str.__str__(value)  # of a class of its own, such as numpy's
