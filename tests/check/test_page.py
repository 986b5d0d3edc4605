"""The page lists every kind of finding in the code's words."""

import importlib
import pkgutil
import re
from pathlib import Path

import pytest

import grpo_plus.check
from grpo_plus.check.finding import FindingKind, Severity

MODULES = [
    importlib.import_module(f"grpo_plus.check.{each.name}") for each in pkgutil.iter_modules(grpo_plus.check.__path__)
]
FOUND = {kind for module in MODULES for kind in vars(module).values() if isinstance(kind, FindingKind)}
KINDS = {kind.code: kind for kind in FOUND}
ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "check.md"


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
