"""The page on the worker protocol names the messages, bounds and files that the code has; the trainer unpickles nothing."""

import ast
import re
from pathlib import Path

import pytest

from grpo_verifiers.code import _results, run
from grpo_verifiers.exec import process, scheduler, wire
from grpo_verifiers.sandbox.box import Limits

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "verifiers" / "grpo_verifiers"
PAGE = " ".join((ROOT / "docs" / "worker_protocol.md").read_text(encoding="utf-8").split())
IN_WORKERS = {
    *(("exec/worker.py", "_run"), ("exec/worker.py", "_serve"), ("exec/wire.py", "read_call")),
    ("exec/spec.py", "load"),
    ("ray/station.py", "_spec"),  # on a node, of what the trainer sent
    ("ray/station.py", "_outcomes"),
}


def functions(tree):
    return [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]


def calls(tree, *names):
    """Calls of functions or methods with one of these names."""
    return [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and getattr(node.func, "attr", getattr(node.func, "id", "")) in names
    ]


@pytest.mark.slow
def test_only_what_runs_in_a_worker_unpickles():
    found = set()
    talking = [
        path for room in ("exec", "ray", "sandbox", "code", "steps", "judge") for path in (PACKAGE / room).rglob("*.py")
    ]
    assert len(talking) > 50
    for path in talking:
        tree = ast.parse(path.read_text(encoding="utf-8"))
        pickled = [
            call
            for call in calls(tree, "loads", "load", "Unpickler")
            if isinstance(call.func, ast.Attribute)
            and isinstance(call.func.value, ast.Name)
            and "pickle" in call.func.value.id
        ]
        name = path.relative_to(PACKAGE).as_posix()
        for call in pickled:
            (inner,) = [f.name for f in functions(tree) if f.lineno <= call.lineno <= f.end_lineno]
            found.add((name, inner))
        assert not any(
            "pickle" in (node.module or "") for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)
        ), name
        if name not in {"exec/worker.py", "exec/wire.py", "code/_referee_process.py", "ray/bridge.py"}:
            assert not calls(tree, "read_call"), f"{name} reads messages that are pickled"
    assert found == IN_WORKERS


def test_bounds_messages_and_files_of_the_page_are_those_of_the_code():
    for words in [
        f"at most {wire.MAX_REPLY >> 20} MiB; a larger result",
        f"within {scheduler.BOOT_SECONDS:g} s, loads a check within {scheduler.LOAD_SECONDS:g} s",
        *(f"takes a message within {process.SEND_SECONDS:g} s", f"two lengths (`{wire._CALL.format}`)"),
        *(f"A length (`{wire._REPLY.format}`)", f"reasons of at most {_results._REASON} characters"),
        f"one answer is at most {Limits().message >> 20} MiB and all of a run {Limits().sent >> 20} MiB",
        f"and {run._PER_QUESTION} bytes for each question",
    ]:
        assert words in PAGE
    to_worker, _, rest = PAGE.partition("## Worker to trainer")
    asks = calls(ast.parse((PACKAGE / "exec/scheduler.py").read_text(encoding="utf-8")), "ask")
    words = [each.value for ask in asks for each in ask.args if isinstance(each, ast.Constant)]
    kinds = re.findall(r"\| `(\w+)` \| [^|]+ \| [^|]+ \| [^|]+ \|", to_worker)
    assert set(kinds) == {word for word in words if isinstance(word, str)} | {"boot"}
    worker = list(ast.walk(ast.parse((PACKAGE / "exec/worker.py").read_text(encoding="utf-8"))))
    keys = [key for node in worker if isinstance(node, ast.Dict) for key in node.keys]
    keys += [node.slice for node in worker if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store)]
    sent = {key.value for key in keys if isinstance(key, ast.Constant)}
    assert set(re.findall(r"\| `(\w+)` \|", rest.partition("## What happens")[0])) == sent - {"orphans"}
    named = re.findall(r"(?:tests|exec|code|sandbox)/[\w./]+\.py", PAGE)
    assert len(named) > 15
    assert [name for name in named if not (ROOT / name).exists() and not (PACKAGE / name).exists()] == []
