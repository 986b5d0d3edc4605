"""The page lists every kind of finding in the code's words, and every kind is made by a test."""

import ast
import importlib
import pkgutil
import re
from pathlib import Path

import pytest

import grpo_plus.doctor
from grpo_plus.doctor.finding import Kind, Severity

MODULES = [
    importlib.import_module(f"grpo_plus.doctor.{each.name}") for each in pkgutil.iter_modules(grpo_plus.doctor.__path__)
]
FOUND = [kind for module in MODULES for kind in vars(module).values() if isinstance(kind, Kind)]
KINDS = {kind.code: kind for kind in FOUND}
ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "doctor.md"


def codes_in(node):
    """Codes that a test asserts to be there: those that it says are not there do not count."""
    if isinstance(node, ast.Compare) and any(isinstance(op, ast.NotIn) for op in node.ops):
        return
    if isinstance(node, ast.Constant) and node.value in KINDS:
        yield node.value
    for child in ast.iter_child_nodes(node):
        yield from codes_in(child)


def asserted(path):
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            yield from codes_in(node)


def test_every_kind_of_finding_is_made_by_a_test():
    others = set(Path(__file__).parent.glob("test_*.py")) - {Path(__file__)}
    made = {code for path in others for code in asserted(path)}
    assert not KINDS.keys() - made


def test_codes_are_there_once():
    assert len(FOUND) == len(KINDS)
    for kind in FOUND:
        assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", kind.code)
        assert kind.means.endswith(".")
        assert kind.remedy == "" or kind.remedy.endswith(".")
        assert bool(kind.remedy) or kind.severity.rank < Severity.WARNING.rank


@pytest.mark.skipif(not PAGE.exists(), reason="the sources are not here")
def test_the_page_says_what_the_code_says():
    rows = {}
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        if line.startswith("| `"):
            code, severity, means, remedy = [cell.strip() for cell in line.strip("|").split(" | ")]
            rows[code.strip("`")] = (severity, means, remedy)
    assert rows == {kind.code: (kind.severity.value, kind.means, kind.remedy or "—") for kind in KINDS.values()}
