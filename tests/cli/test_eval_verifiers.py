"""Verifiers that only look at evaluations: they are logged there, and training never notices."""

import re

import pytest

from tests.cli.test_train_command import logs

EVALUATED = {"eval_strategy": "steps", "eval_steps": 1, "num_generations_eval": 4, "per_device_eval_batch_size": 8}
EVALUATED |= {"dataset_test_split": "train", "max_steps": 2}

AGAIN = """
from grpo_verifiers import verifier

@verifier("again", isolation="inline")
def again(completion: str) -> float:
    return sum(c.isdigit() for c in completion) / 8

@verifier("odd", isolation="inline")
def odd(completion: str) -> float:
    return float(len(completion) % 2)
"""


def trained(rows):
    timed = re.compile(r"^time/|(time|per_second)$")
    return [{key: value for key, value in row.items() if not timed.search(key)} for row in rows]


@pytest.mark.slow
@pytest.mark.parametrize("log_completions", [False, True])
def test_evaluation_has_its_own_and_training_is_as_without(cli, config, folder, log_completions):
    (folder / "again.py").write_text(AGAIN)
    more = EVALUATED | {"plugins": ["./again.py"], "advantage": "sign", "log_completions": log_completions}
    plain = cli.done("train", config(**more))
    out = cli.done("train", config(eval_verifiers=["again", {"name": "odd", "weight": -2}], **more))
    assert len(logs(out, "loss")) == 2
    assert trained(logs(out, "loss")) == trained(logs(plain, "loss"))
    assert not any("again" in key or "score" in key for row in logs(out, "loss") for key in row)
    ours, theirs = logs(out, "eval_loss"), logs(plain, "eval_loss")
    assert len(ours) == len(theirs) == 2
    for row, without in zip(ours, theirs, strict=True):
        assert row["eval_reward"] == without["eval_reward"] == row["eval_rewards/digits/mean"]
        assert row["eval_rewards/again/mean"] == pytest.approx(row["eval_rewards/digits/mean"], abs=1e-3)
        assert 0 < row["eval_rewards/odd/mean"] < 1
        score = row["eval_rewards/again/mean"] - 2 * row["eval_rewards/odd/mean"]
        assert row["eval_score"] == pytest.approx(score, abs=2e-3)
        assert row["eval_verifiers/odd/status/error"] == 0
    assert "eval_score" not in theirs[0]


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"eval_verifiers": [{"name": "math", "wieght": 1}]}, "unknown option 'wieght'. Did you mean the key 'weight'"),
        ({"verifiers": ["math"], "eval_verifiers": ["math"]}, "eval_verifiers has 'math', which verifiers has too"),
        ({"eval_verifiers": [{"name": "exact", "columns": {"answer": "gold"}}]}, "eval_dataset has no column 'gold'"),
    ],
)
def test_what_is_refused(cli, config, changes, expected):
    err = cli.refused("train", config(**(EVALUATED | changes)))
    assert expected in err
    assert "train_dataset" not in err
