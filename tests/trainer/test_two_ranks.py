"""Two CPU processes through `accelerate launch` train as one does, with prompt groups that span both."""

import pytest

RUNS = {
    "trl": {},
    "zscore": {"advantage": "zscore"},
    "batch_whiten": {"advantage": "batch_whiten", "loss_type": "grpo"},
    "gdpo": {"advantage": "gdpo", "reward_weights": [1.0, 0.5]},
    "process": {"advantage": "process", "advantage_kwargs": {"credit": "return", "outcome_weight": 0.5}},
    "math_steps": {"advantage": "process", "verifiers": [{"name": "math_steps", "weight": 0}]},
    "mix": {"advantage": "mix", "advantage_kwargs": {"parts": {"process": 1.0, "sign": 0.5}}},
    "objective": {"advantage": "sign", "objective": "dapo"},
}


@pytest.fixture(scope="module")
def worlds(in_two_worlds):
    return in_two_worlds("ranks.py", RUNS)


def flat(rows):
    width = max(map(len, rows))
    return [value for row in rows for value in [*row, *[0.0] * (width - len(row))]]


@pytest.mark.parametrize("name", RUNS)
def test_two_processes_are_one(worlds, name):
    one, two = (world[name] for world in worlds)
    assert (one["world"], two["world"]) == (1, 2)
    assert len(one["advantages"]) == len(two["advantages"]) == 12
    assert flat(two["advantages"]) == pytest.approx(flat(one["advantages"]), abs=1e-6)
    assert any(abs(value) > 0.1 for value in flat(one["advantages"]))
    assert two["logged"] == pytest.approx(one["logged"], abs=1e-6)
    assert max(map(abs, one["gradient"])) > 1e-2
    assert two["gradient"] == pytest.approx(one["gradient"], abs=2e-6)
    for metric, value in one["metrics"].items():
        close = {"abs": 1e-5} if metric == "loss" else {"rel": 1e-4, "abs": 1e-6}
        assert two["metrics"][metric] == pytest.approx(value, **close), metric


def test_the_group_in_the_middle_spans_both_ranks(worlds):
    """Rows 4 to 7 are one prompt; rows 0 to 5 are on the first rank. A z-score within a rank would be another one."""
    values = [row[0] for row in worlds[1]["zscore"]["advantages"]]
    assert sum(values[4:8]) == pytest.approx(0.0, abs=1e-5)
    assert abs(sum(values[4:6])) > 0.1
    assert values[8:] == [0.0] * 4
