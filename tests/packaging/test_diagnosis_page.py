"""The page of the diagnosis names the rules of the code, with their metrics, windows and thresholds."""

import re
from pathlib import Path

import pytest

from grpo_plus.diagnosis import RULES
from grpo_plus.diagnosis.catalogue import COVERED

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "diagnosis.md"
if not PAGE.exists():
    pytest.skip("the sources are not here", allow_module_level=True)
TEXT = PAGE.read_text(encoding="utf-8")


def rows():
    found = {}
    for line in TEXT.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        if len(cells) == 7 and cells[0].startswith("`"):
            found[cells[0].strip("` ")] = cells[1:]
    return found


def test_the_page_has_the_rules_of_the_code_and_what_one_finding_covers():
    page = rows()
    assert list(page) == list(RULES)
    for name, (metrics, window, threshold, *words) in page.items():
        rule = RULES[name]
        assert tuple(re.findall(r"`([^`]+)`", metrics)) == rule.metrics, name
        assert window == f"{rule.window}, {rule.least}", name
        assert float(threshold) == rule.threshold, name
        assert all(len(each) > 10 for each in words), name
        assert "`" in words[-1], f"{name} names an option"
    for name, others in COVERED.items():
        assert f"`{name}`" in TEXT
        assert all(f"`{other}`" in TEXT for other in others)
        assert others <= RULES.keys()
