"""Two CPU processes: one writes, and what it writes holds the rows of both."""

import json
from pathlib import Path

import pytest

from grpo_plus.record import open_run

pytestmark = pytest.mark.slow

RUNS = {"process": {"advantage": {"name": "process", "credit": "return", "outcome_weight": 0.5}}}


def test_groups_that_span_ranks_are_whole(tmp_path, tiny_model, two_ranks):
    script = Path(__file__).parents[1] / "trainer" / "ranks.py"
    with two_ranks(script, tmp_path, tiny_model, json.dumps(RUNS), log=tmp_path / "log"):
        pass
    trained = json.loads((tmp_path / "found.json").read_text())["process"]
    run = open_run(tmp_path / "out")
    assert (run.status, run.info["processes"]) == ("done", 2)
    groups = list(run.groups())
    assert [group["group"] for group in groups] == [0, 1, 2]
    assert [group["prompt"] for group in groups] == ["12+3=", "4=", "12+34+5="]
    rows = [one for group in groups for one in group["completions"]]
    for row, (one, advantages) in enumerate(zip(rows, trained["advantages"], strict=True)):
        text = "ab3d5fgh"[: 1 + (5 * row) % 8] + "xyz"[row % 3] * (row % 4)
        assert "".join(one["pieces"]).startswith(text)
        assert one["token_advantages"] == pytest.approx(advantages[: one["tokens"]], abs=1e-8)
        assert not any(advantages[one["tokens"] :])
        starts = range(0, one["tokens"] - 1, 2)
        scores = [None if (row + at) % 5 == 0 else float((row * 7 + at) % 3) for at in starts]
        ends = [min(at + 2, one["tokens"]) for at in starts]
        assert one.get("steps", []) == [list(step) for step in zip(starts, ends, scores, strict=True)]
    assert [one["advantage"] for one in rows] == pytest.approx(trained["logged"], abs=1e-6)
    assert any(abs(value) > 0.1 for one in rows for value in one["token_advantages"])
    assert rows[2]["rewards"][0] is None
    assert len(list((tmp_path / "out").rglob("run.json"))) == 1
