"""The quickstart's data, its warm start, and its own YAML with one line changed."""

import json
import math
import random
from itertools import islice
from pathlib import Path

import pytest
import yaml
from safetensors.torch import load_file

from benchmarks import small_model
from grpo_plus.cli import main, quickstart
from grpo_plus.record import open_run
from grpo_verifiers import get_verifier
from tests.quickstart.conftest import YAML, flags


def scores(solutions, chains):
    answers = [str(chain.answer) for chain in chains]
    return [verdict.score for verdict in get_verifier("math").verify_batch(None, solutions, answer=answers)]


def test_worked_solutions_are_right_line_by_line():
    found = list(islice(quickstart.chains(seed=5), 200))
    assert scores([chain.worked_out for chain in found], found) == [1.0] * 200
    for chain in found:
        *lines, box = chain.worked_out.splitlines()
        assert len(lines) == len(chain.moves) >= 2
        assert all(eval(line.replace("=", "==")) for line in lines)
        assert box == f"\\boxed{{{eval(chain.question)}}}"


def test_guesses_are_near_and_seldom_right():
    found = list(islice(quickstart.chains(seed=5), 400))
    rng = random.Random(0)
    guesses = [chain.guessed(rng) for chain in found]
    stated = [int(guess.removeprefix("\\boxed{").removesuffix("}")) for guess in guesses]
    assert all(abs(number - chain.answer) <= quickstart.OFF for number, chain in zip(stated, found, strict=True))
    assert 0.08 < sum(scores(guesses, found)) / 400 < 0.25


@pytest.mark.slow
def test_no_question_of_the_test_split_is_trained_on_or_part_of_the_warm_start():
    splits, rows = quickstart.dataset(), quickstart.solutions()
    assert {name: len(rows) for name, rows in splits.items()} == quickstart.ROWS
    asked = {name: {row[0]["content"] for row in rows["prompt"]} for name, rows in splits.items()}
    assert all(len(asked[name]) == count for name, count in quickstart.ROWS.items())
    learned = {row[0]["content"] for row in rows["prompt"]}
    assert len(rows) == quickstart.SOLUTIONS
    assert len(learned) > 9_000
    assert not asked["test"] & (asked["train"] | learned)


@pytest.mark.slow
@pytest.mark.parametrize("task", ["quickstart", "mix"])
def test_no_measured_question_of_the_benchmark_is_part_of_its_warm_start(tmp_path, monkeypatch, task):
    from benchmarks import time_to_accuracy
    from benchmarks.studies import task as studies

    learned = set()

    def note(_folder, _start, rows, *_, **__):
        learned.update(row["prompt"][0]["content"] for row in rows)

    monkeypatch.setattr(quickstart, "FOLDER", tmp_path)
    monkeypatch.setattr(small_model, "place", note)
    monkeypatch.setattr(studies, "made_once", lambda folder, make: (make(folder), folder)[1])  # in this process
    monkeypatch.setattr("sys.argv", ["time_to_accuracy"])
    options = time_to_accuracy._options()
    (tmp_path / "found").mkdir()
    time_to_accuracy._warm(tmp_path / "found", 0, options)
    train, test = time_to_accuracy._rows(task, 0, options)
    measured = {row["prompt"][0]["content"] for row in test}
    assert len(measured) == options.held_out
    assert len(learned) > 9_000
    assert not measured & (learned | {row["prompt"][0]["content"] for row in train})


def test_the_longest_solution_fits_the_config():
    path = Path(__file__).parents[2] / "examples" / "quickstart.yaml"
    if not path.is_file():
        pytest.skip("the examples are not beside the tests")
    most = yaml.safe_load(path.read_text())["max_completion_length"]
    longest = max(len(chain.worked_out) for chain in islice(quickstart.chains(seed=3), 5000))
    assert longest + 1 <= most  # a token a character, and the one that ends it


@pytest.mark.slow
def test_the_model_is_the_one_that_the_yaml_makes(tmp_path, monkeypatch, capsys):
    home = tmp_path / "home"
    for name, value in {"FOLDER": home, "SOLUTIONS": 160, "STEPS": 2}.items():
        monkeypatch.setattr(quickstart, name, value)
    folder = quickstart.model()
    assert "supervised training, 2 steps of 80 of 160 solutions" in capsys.readouterr().out
    if not YAML.is_file():
        pytest.skip("the examples are not beside the tests")
    text = YAML.read_text().replace("runs/quickstart/warm", str(home / "warm")).replace("steps: 550", "steps: 2")
    for line in ("load_in_4bit: false", "load_in_4bit: true"):
        path = tmp_path / "changed.yaml"
        path.write_text(text.replace("load_in_4bit: false", line))
        code = main(["train", str(path), *flags(output_dir=tmp_path / "out" / line[-4:])])
        found = capsys.readouterr()
        assert code == 0, found.err
        assert "supervised training" not in found.out
        assert f"reused from {folder}." in found.out


def test_an_untrained_model_of_another_recipe_is_made_anew(tmp_path, monkeypatch):
    monkeypatch.setattr(quickstart, "FOLDER", tmp_path)
    folder = Path(quickstart.base(hidden=64))
    written = (folder / "model.safetensors").stat().st_mtime_ns
    assert quickstart.base(hidden=64) == str(folder)
    assert (folder / "model.safetensors").stat().st_mtime_ns == written
    (folder / "recipe.json").write_text(json.dumps({"recipe": quickstart.RECIPE - 1}))
    quickstart.base(hidden=64)
    assert json.loads((folder / "recipe.json").read_text()) == {"recipe": quickstart.RECIPE}
    assert list(tmp_path.iterdir()) == [folder]


def test_an_interrupted_start_leaves_nothing_half(tmp_path, monkeypatch):
    def fail(*_, **__):
        raise OSError("no space")

    monkeypatch.setattr(quickstart, "FOLDER", tmp_path)
    monkeypatch.setattr("transformers.PreTrainedTokenizerBase.save_pretrained", fail)
    with pytest.raises(OSError, match="no space"):
        quickstart.base(hidden=64)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.sample(0, 2)
@pytest.mark.parametrize("line", ["", "advantage: sign", "objective: target\nnum_iterations: 2", "load_in_4bit: true"])
def test_two_steps_with_one_line_changed(train, tmp_path, warm_home, varied, line):
    out = tmp_path / "out"
    code, text, err = train(out, line, learning_rate="1e-2", **varied)
    assert code == 0, err
    lines = text.splitlines()
    assert any(each.startswith("Accuracy before training: math ") for each in lines)
    gained, _ = [each for each in lines if "points of accuracy" in each]
    assert gained.startswith("math: ")
    at = lines.index(f"The model is in {out}.")
    assert at > lines.index(gained)
    assert lines[at + 1] == f"The report is {out / 'report.html'}."
    nexts = [each.removeprefix("  ") for each in lines[at + 3 :]]
    endings = ["--advantage sign", "--verifiers near", "--load_in_4bit true"]
    assert all(each.rsplit(" --output_dir", 1)[0].endswith(end) for each, end in zip(nexts, endings, strict=True))
    assert all(f"grpo-plus train {out.parent / 'changed.yaml'} " in each for each in nexts)
    assert open_run(out) is not None
    if line != "load_in_4bit: true":
        before, after = (load_file(folder / "model.safetensors") for folder in (warm_home / "model", out))
        assert any((after[name] - value).abs().max() > 1e-4 for name, value in before.items())
        assert all(math.isfinite(value.sum()) for value in after.values())
    else:
        assert (out / "adapter_model.safetensors").is_file()


@pytest.mark.slow
def test_a_warm_start_leaves_the_precision_of_a_config_that_is_there(tmp_path, monkeypatch):
    from grpo_plus import GRPOPlusConfig, GRPOPlusTrainer

    monkeypatch.setattr(quickstart, "FOLDER", tmp_path)
    settings = {"report_to": "none", "num_generations": 2, "per_device_train_batch_size": 2, "verifiers": ["math"]}
    args = GRPOPlusConfig(str(tmp_path / "out"), use_cpu=True, bf16=True, **settings)
    small_model.warm_start(tmp_path / "model", steps=1, hidden=64)
    trainer = GRPOPlusTrainer(str(tmp_path / "model"), None, args, quickstart.dataset()["test"])
    assert trainer.accelerator.mixed_precision == "bf16"
