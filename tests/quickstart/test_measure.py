"""`measure` in a config: the same held-out samples before and after."""

import json

import pytest

from grpo_plus.cli import main
from grpo_plus.evaluation.measure import measure_problems


def samples(path):
    return {(row["row"], row["sample"]): row for row in map(json.loads, path.read_text().splitlines())}


@pytest.mark.slow
def test_only_training_makes_the_difference(train, tmp_path):
    """With a learning rate of nothing, before and after are the same samples."""
    out = tmp_path / "out"
    code, text, err = train(out, learning_rate="1e-30", measure='{"split": "test", "n": 3, "k": 2, "limit": 5}')
    assert code == 0, err
    before, after = (samples(out / "measure" / f"{when}.jsonl") for when in ("before", "after"))
    assert before == after
    assert sorted(before) == [(row, sample) for row in range(5) for sample in range(3)]
    assert "math: +0.0 points of accuracy" in text
    assert "math: pass@2" in text
    assert "pass@3" not in text
    results = json.loads((out / "measure" / "after.json").read_text())["results"]["verifiers"]["math"]
    right = sum(row["verdicts"]["math"]["score"] for row in after.values())
    assert results["pass_at"]["1"]["value"] == pytest.approx(right / 15)


@pytest.mark.slow
def test_a_resumed_run_keeps_its_first_measurement(train, tmp_path, varied):
    out, again = tmp_path / "out", {"learning_rate": "1e-2", **varied}
    code, _, err = train(out, 'save_strategy: "steps"', save_steps=1, **again)
    assert code == 0, err
    before = (out / "measure" / "before.jsonl").read_text()
    after = samples(out / "measure" / "after.jsonl")
    assert samples(out / "measure" / "before.jsonl") != after
    again["resume_from_checkpoint"] = str(out / "checkpoint-1")
    code, text, err = train(out, 'save_strategy: "steps"', save_steps=1, **again)
    assert code == 0, err
    assert "before training math" in (out / "README.md").read_text()
    assert (out / "measure" / "before.jsonl").read_text() == before
    assert "Accuracy before training" in text


WRONG = {
    "{split: test, m: 2}": "measure: unknown key 'm'. There is: batch,",
    "{splti: test}": "Did you mean 'split'?",
    "{n: 0}": "measure: n is 0, expected a whole number of at least 1",
    "{n: 2, k: 3}": "k: 3, which must not be above n (2)",
    "{temperature: -1}": "measure: temperature is -1",
    "{split: 3}": "measure: split is 3",
    "[test]": "measure is '[test]', expected a mapping",
}


@pytest.mark.parametrize("given", WRONG)
def test_wrong_settings_are_named(given):
    assert WRONG[given] in " ".join(measure_problems(given))
    assert measure_problems(None) == measure_problems({"split": "test"}) == []
    assert measure_problems({"split": "test", "n": 4, "k": 4, "limit": 8, "seed": 0, "temperature": 0.7}) == []


UNUSABLE = [
    ({"measure": '{"split": "tset"}'}, "Did you mean 'test'?"),
    ({"measure": '{"n": "a"}'}, "measure: n is 'a'"),
]
UNUSABLE += [({"torch_threads": 0}, "torch_threads is 0, expected at least 1")]


@pytest.mark.parametrize(("changes", "expected"), UNUSABLE)
def test_what_the_command_says(train, tmp_path, changes, expected):
    code, _, err = train(tmp_path / "out", **changes)
    assert code == 2
    assert expected in err


def test_a_run_without_verifiers_cannot_be_measured(tmp_path, capsys, warm_home):
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"prompt": "1+1", "solution": "2"}\n' * 8)
    base = {"model_name_or_path": str(warm_home / "model"), "dataset_name": str(rows), "output_dir": str(tmp_path)}
    base |= {"reward_funcs": "accuracy_reward", "measure": '{"split": "train"}', "use_cpu": "true", "bf16": "false"}
    code = main(["train", *(word for key, value in base.items() for word in (f"--{key}", value))])
    assert code == 2
    assert "measure needs verifiers" in capsys.readouterr().err
