"""Run an honest program against its tests in a plain interpreter: the label of a code row by what the program does."""

import json
import math
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

CALL = """
import asyncio, json, sys
source, tests = json.load(open("row.json"))
results = []
for test in tests:
    module = sys.modules["program"] = type(sys)("program")
    exec(compile(source, "program", "exec"), module.__dict__)
    if "function" in test:
        owner, _, name = test["function"].rpartition(".")
        called = getattr(module.__dict__[owner](), name) if owner else module.__dict__[name]
        result = called(*test["args"])
        results.append(asyncio.run(result) if asyncio.iscoroutine(result) else result)
    else:
        exec(compile(test["code"], "test", "exec"), dict(module.__dict__))
        results.append(None)
json.dump(results, open("results.json", "w"))
"""


def _same(result: Any, expected: Any) -> bool:
    """Of one type and equal; floats to nine digits of their own size."""
    if isinstance(result, dict) and isinstance(expected, dict):
        return result.keys() == expected.keys() and all(_same(result[key], expected[key]) for key in expected)
    if isinstance(result, list) and isinstance(expected, list):
        return len(result) == len(expected) and all(map(_same, result, expected))
    if isinstance(expected, float):
        return type(result) in {int, float} and math.isclose(result, expected, rel_tol=1e-9, abs_tol=0)
    return type(result) is type(expected) and result == expected


def _lines(text: str) -> list[str]:
    """Lines without trailing space, and without empty ones at the end."""
    return [line.rstrip() for line in text.rstrip().split("\n")]


def _run(command: list[str], folder: str, text: str = "") -> str | None:
    """What a command prints; None where it fails or takes 20 s."""
    try:
        done = subprocess.run(command, check=True, input=text, capture_output=True, text=True, timeout=20, cwd=folder)
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired):
        return None
    return done.stdout


def passes(program: str, tests: list[dict[str, Any]]) -> bool:
    """All tests of a row: each on a program that starts afresh."""
    with tempfile.TemporaryDirectory() as folder:
        if "stdin" in tests[0]:
            printed = [_run([sys.executable, "-I", "-c", program], folder, test["stdin"]) for test in tests]
            return all(
                text is not None and _lines(text) == _lines(test["stdout"])
                for text, test in zip(printed, tests, strict=True)
            )
        row, script, results = (Path(folder, name) for name in ("row.json", "run.py", "results.json"))
        row.write_text(json.dumps([program, tests]), encoding="utf-8")
        script.write_text(CALL, encoding="utf-8")
        if _run([sys.executable, str(script)], folder) is None or not results.exists():
            return False
        found = json.loads(results.read_text(encoding="utf-8"))
        return all("code" in test or _same(result, test["expected"]) for result, test in zip(found, tests, strict=True))
