"""Two CPU processes train as one does, with prompt groups that span both, rows that move, and groups that are replaced."""

import pytest

RESAMPLE = {"dead_groups": {"name": "resample", "rounds": 2}}
ROULETTE = {"dead_groups": {"name": "roulette", "after": 3, "keep": 0.5}}
RUNS = {
    "trl": {}, "zscore": {"advantage": "zscore"}, "batch_whiten": {"advantage": "batch_whiten", "loss_type": "grpo"},
    "gdpo": {"advantage": "gdpo", "reward_weights": [1.0, 0.5]},
    "process": {"advantage": {"name": "process", "credit": "return", "outcome_weight": 0.5}},
    "math_steps": {"advantage": "process", "verifiers": [{"name": "math_steps", "weight": 0}]},
    "mix": {"advantage": {"name": "mix", "parts": {"process": 1.0, "sign": 0.5}}},
    "objective": {"advantage": "sign", "objective": "dapo"},
}  # fmt: skip
DRAWN = {
    "resample": RESAMPLE, "resample, steps": {**RESAMPLE, "advantage": "process"},
    "resample, batch": {**RESAMPLE, "advantage": "batch_whiten", "pad_to_multiple_of": 8}, "roulette": {**ROULETTE, "objective": "dapo"},
    "roulette, reference": {**ROULETTE, "objective": "grpo", "beta": 0.1},
    "roulette, several updates": {**ROULETTE, "objective": "dr_grpo", "num_iterations": 2},
}  # fmt: skip
FIRST = ("reward", "completions/")
"""Metrics of the whole first round."""


@pytest.fixture(scope="module")
def worlds(in_two_worlds):
    return in_two_worlds("advantages", RUNS)


@pytest.fixture(scope="module")
def drawn(in_two_worlds):
    return in_two_worlds("drawing", DRAWN)


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


def close(one, other, path=""):
    if isinstance(one, dict):
        assert one.keys() == other.keys(), path
    if isinstance(one, dict | list):
        keys = one if isinstance(one, dict) else range(len(one))
        assert len(one) == len(other), path
        for key in keys:
            close(one[key], other[key], f"{path}/{key}")
    elif isinstance(one, float):
        assert other == pytest.approx(one, rel=1e-4, abs=1e-5), path
    else:
        assert one == other, path


@pytest.mark.parametrize("name", DRAWN)
def test_two_processes_put_the_same_batch_together_as_one_does(drawn, name):
    one, two = (world[name] for world in drawn)
    assert (one["world"], two["world"]) == (1, 2)
    others = ("dead_groups/drawn", "num_tokens", *(FIRST if name.startswith("roulette") else ()))
    for found in (one, two):  # groups that are there for the other processes' sake are drawn and counted
        found["logs"] = [{k: v for k, v in entry.items() if not k.startswith(others)} for entry in found["logs"]]
    width = max(len(row) for whole, *_ in (*one["batches"], *two["batches"]) for row in whole["advantages"])
    for whole, *_ in (*one["batches"], *two["batches"]):
        whole["advantages"] = [row + [0.0] * (width - len(row)) for row in whole["advantages"]]
    for part in ("batches", "table", "logs", "state"):
        close(one[part], two[part], part)
    assert max(map(abs, one["moved"])) > 1e-2
    assert two["moved"] == pytest.approx(one["moved"], abs=1e-5)


@pytest.mark.parametrize("name", DRAWN)
def test_the_runs_are_worth_the_comparison(drawn, name):
    """Groups are replaced or stop and go on, rounds come to unlike numbers of rows, and some rows have no reward."""
    _, two = (world[name] for world in drawn)
    rows = {count for rounds in two["each"] for count in rounds}
    assert len(rows) > 1
    logs = [entry for entry in two["logs"] if "dead_groups/dead" in entry]
    changed = [entry.get("dead_groups/replaced", entry.get("dead_groups/stopped")) for entry in logs]
    assert max(changed) > 0
    if name.startswith("roulette"):
        weights = {weight for whole, *_ in two["batches"] for weight in whole["share"]}
        assert {round(weight) for weight in weights} == {0, 1, 2}  # times the factors of a quotient by tokens
        assert any(rounds[0] == 6 for rounds in two["each"])  # nine rows do not divide by two
    assert {"correct", "wrong"} < {verdict for whole, *_ in two["batches"] for verdict in [*whole["verdicts"], ""]}
    for whole, (rewards, lengths, *_), count in two["batches"]:
        assert [len(ids) for ids in whole["completion"]] == lengths
        assert [prompt for prompt in whole["rows"][::4] for _ in range(4)] == whole["rows"]
        shares = whole["share"] if "objective" in DRAWN[name] else [1.0] * 12
        tokens = sum(share * len(ids) for share, ids in zip(shares, whole["tool"], strict=True))
        assert count == tokens or name == "roulette"  # whose loss divides by tokens
        assert len(rewards) == 12
