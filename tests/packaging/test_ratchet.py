"""The house does not grow: no count is above its bound in bounds.json."""

import json
from collections import Counter

import pytest

from tests.packaging import ratchet

if not (ratchet.ROOT / "grpo_plus").is_dir():
    pytest.skip("the sources are not here", allow_module_level=True)


@pytest.mark.parametrize("kind", ratchet.KINDS)
def test_no_count_is_above_its_bound(kind):
    above = ratchet.grown(kind, ratchet.KINDS[kind](), ratchet.read()[kind])
    assert not above, "\n".join(["delete before you add, or raise the bound in bounds.json and say why:", *above])


def test_bounds_fall_and_never_rise(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(ratchet, "BOUNDS", tmp_path / "bounds.json")
    monkeypatch.setattr(ratchet, "KINDS", {"test lines in": lambda: Counter(more=12, less=3, new=1)})
    ratchet.BOUNDS.write_text(json.dumps({"test lines in": {"more": 10, "less": 5, "gone": 7}}))
    assert ratchet.main(["--write"]) == 1
    assert capsys.readouterr().out.splitlines()[0] == "test lines in more: 12, 2 above the bound of 10"
    assert ratchet.read() == {"test lines in": {"less": 3, "more": 10}}
