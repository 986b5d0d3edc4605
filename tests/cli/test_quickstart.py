"""The quickstart's data and model: made on the spot, named by reference, trained from its own YAML."""

import random
from itertools import islice
from pathlib import Path

import pytest

from grpo_plus import quickstart
from grpo_verifiers import get_verifier

YAML = Path(__file__).parents[2] / "examples" / "quickstart.yaml"


def test_every_clean_solution_is_right_and_slips_make_some_wrong():
    found = list(islice(quickstart.chains(seed=5), 200))
    clean = get_verifier("math").verify_batch(
        None, [c.solution() for c in found], answer=[str(c.answer) for c in found]
    )
    assert [verdict.score for verdict in clean] == [1.0] * 200
    rng = random.Random(0)
    slipped = [c.solution(rng, quickstart.SLIPS) for c in found]
    scores = [v.score for v in get_verifier("math").verify_batch(None, slipped, answer=[str(c.answer) for c in found])]
    assert 0.4 < sum(scores) / 200 < 0.9
    assert all(eval(line.replace("=", "==")) for c in found for line in c.solution().splitlines()[:-1])


def test_no_question_of_the_test_split_is_trained_on():
    splits = quickstart.dataset()
    assert {name: len(rows) for name, rows in splits.items()} == quickstart.ROWS
    assert not set(splits["train"]["prompt"]) & set(splits["test"]["prompt"])


@pytest.mark.skipif(not YAML.is_file(), reason="the examples are not beside the tests")
def test_a_step_from_its_yaml_with_a_model_that_is_kept(tmp_path, monkeypatch, capsys):
    from grpo_plus.cli import main

    monkeypatch.setattr(quickstart, "FOLDER", tmp_path)
    quickstart.warm_start(tmp_path / "warm", steps=2, rows=4)
    kept = (tmp_path / "warm" / "model.safetensors").stat().st_mtime_ns
    arguments = ["--output_dir", str(tmp_path / "out"), "--max_steps", "1", "--per_device_train_batch_size", "8"]
    assert main(["train", str(YAML), *arguments]) == 0
    assert (tmp_path / "out" / "model.safetensors").is_file()
    assert (tmp_path / "warm" / "model.safetensors").stat().st_mtime_ns == kept
    assert "The model is in" in capsys.readouterr().out
