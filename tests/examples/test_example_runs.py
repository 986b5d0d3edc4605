"""Every example trains for two steps on a tiny model: only the model, the data and sizes are put in place."""

import json
import math
import re
from pathlib import Path

import pytest
import yaml
from safetensors.torch import load_file

from grpo_plus.cli import main
from grpo_plus.cli._arguments import parse
from grpo_plus.cli.quickstart import tools
from grpo_plus.record import open_run

SMALL = {"max_steps": 2, "num_generations": 4, "per_device_train_batch_size": 8, "gradient_accumulation_steps": 1}
SMALL |= {"max_completion_length": 12, "logging_steps": 1, "save_steps": 100, "use_cpu": True, "bf16": False}
SMALL |= {"gradient_checkpointing": False, "disable_tqdm": True, "report": True}
CONFIGS = {  # file, advantage, objective, rewards
    "estimators.yaml": ("sign", "dapo", ["math"]),
    "first_run.yaml": ("sign", "dapo", ["share_of_digits"]),
    "math_12gb.yaml": ("center", "dapo", ["math"]),
    "mixed_difficulty.yaml": ("zscore", "dapo", ["math"]),
    "papers/ppo.yaml": ("gae", "ppo_clip", ["math"]),
    "papers/sao.yaml": ("gae", "dis", ["math"]),
    "process.yaml": ("process", "dapo", ["math", "math_steps"]),
}


@pytest.fixture
def train(examples, place):
    def train(name, **changes):
        where = {"model_name_or_path": place.model, "dataset_name": place.data, "output_dir": place.out}
        flags = [f"--{key}={value}" for key, value in (where | SMALL | changes).items()]
        assert main(["train", str(examples / name), *flags]) == 0
        return place.out

    return train


@pytest.mark.sample(1, 3)
@pytest.mark.parametrize("name", CONFIGS)
def test_a_config_trains_with_the_parts_it_names(name, train, steps):
    advantage, objective, rewards = CONFIGS[name]
    alone = {"num_generations": 1, "measure": "null", "critic.warmup_steps": 0}
    alone |= {"steps_per_generation": 1, "num_iterations": 1}
    out = train(name, **(alone if advantage == "gae" else {}))
    found = steps(out)
    assert len(found) == 2
    for values in found:
        assert math.isfinite(values["loss"])
        assert math.isfinite(values["grad_norm"])
    parts = json.loads((out / "grpo_plus" / "run.json").read_text())["parts"]
    assert (parts["advantage"]["name"], parts["objective"]["name"]) == (advantage, objective)
    assert [reward["name"] for reward in parts["rewards"]] == rewards


@pytest.mark.slow
def test_the_recipe_for_a_card_trains_adapters_on_a_4_bit_base(train):
    out = train("math_12gb.yaml", lora_r=4, learning_rate=1e-2, max_steps=3)
    assert not (out / "model.safetensors").exists()
    adapter = load_file(out / "adapter_model.safetensors")
    assert {key.rpartition(".lora_")[2] for key in adapter} == {"A.weight", "B.weight"}
    assert {str(value.dtype) for value in adapter.values()} == {"torch.float32"}
    parts = json.loads((out / "grpo_plus" / "run.json").read_text())["parts"]
    assert parts["rollout"] == "auto"


@pytest.mark.slow
def test_the_example_of_mixed_difficulty_draws_from_its_own_data(train, examples, steps):
    out = train("mixed_difficulty.yaml", dataset_name=f"{examples / 'mixed_difficulty.py'}:rows", num_generations=8)
    for values in steps(out):
        assert 0 <= values["dead_groups/stopped"] <= values["dead_groups/dead"] <= 1
        assert 0 < values["selection/unseen"] < 1


def test_every_estimator_that_an_example_offers_in_a_comment_is_one(examples):
    path = examples / "estimators.yaml"
    text = path.read_text(encoding="utf-8")
    offered = re.findall(r"^# advantage: (\w+|\{[^}]*\})", text, re.MULTILINE)
    (swept,) = re.findall(r"--vary advantage=([\w,]+)", text)
    assert len(offered) >= 4
    for name in (*offered, *swept.split(",")):
        assert parse("grpo-plus train", [str(path), f"--advantage={name}"]).training.advantage == yaml.safe_load(name)


TURNS = {"tools.yaml": "math", "environment.yaml": "Treasure"}  # file, reward


@pytest.mark.parametrize("name", TURNS)
@pytest.mark.nightly
def test_an_example_with_turns_warm_starts_trains_and_measures(name, place, steps, monkeypatch, capsys):
    reward = TURNS[name]
    monkeypatch.setattr(tools, "FOLDER", place.folder)
    monkeypatch.setattr(tools, "SOLUTIONS", 600)
    monkeypatch.setattr(tools, "CALLING", 0.8)
    assert main(["init", Path(name).stem]) == 0
    path = place.folder / name
    warm = re.sub(r"  steps: \d+", "  steps: 60", re.sub(r"batch_size: 80", "batch_size: 40", path.read_text()))
    path.write_text(warm)
    few = {"max_steps": 2, "per_device_train_batch_size": 16, "gradient_accumulation_steps": 1, "logging_steps": 1}
    few |= {"output_dir": place.out, "disable_tqdm": True, "measure": '{"split": "test", "n": 1, "limit": 12}'}
    assert main(["train", str(path), *(f"--{key}={value}" for key, value in few.items())]) == 0
    found = steps(place.out)
    assert len(found) == 2
    assert all(math.isfinite(values["loss"]) and f"rewards/{reward}/mean" in values for values in found)
    assert sum(values["tools/calls"] for values in found) > 0
    said = capsys.readouterr().out
    assert "supervised training, 60 steps" in said
    assert f"Accuracy before training: {reward} " in said
    assert f"{reward}: " in next(line for line in said.splitlines() if "points of accuracy" in line)
    assert open_run(place.out) is not None
    measured = (place.out / "measure" / "after.jsonl").read_text().splitlines()
    assert len(measured) == 12
    assert all(json.loads(line)["turns"] for line in measured)


def test_the_examples_with_turns_are_explained(place, examples, capsys):
    for name, schema in (("tools.yaml", '"name": "calculator"'), ("environment.yaml", '"name": "west"')):
        assert main(["check", "--only=config", str(examples / name)]) == 0
        assert schema in capsys.readouterr().out
    assert main(["plugins", f"{examples / 'game.py'}:Treasure"]) == 0
    said = capsys.readouterr().out
    assert all(f'"name": "{way}"' in said for way in ("north", "south", "east", "west"))


@pytest.mark.slow
def test_a_recipe_with_companions_runs_where_it_was_written(place, steps):
    assert main(["init", "code"]) == 0
    assert main(["train", "code_rl.yaml", "--report", "true"]) == 0
    found = steps(place.folder / "runs" / "code" / "out")
    assert len(found) == 2
    for values in found:
        assert values["verifiers/code/status/error"] == 0
        assert values["rewards/looks_like_code/mean"] > 0


def test_the_index_names_every_example(examples):
    index = (examples / "README.md").read_text(encoding="utf-8")
    for path in examples.iterdir():
        if path.suffix in (".yaml", ".py") or path.name in ("accelerate", "estimator_package"):
            assert f"({path.name}" in index, path


def test_the_recipes_for_cards_differ_in_what_a_card_decides_only(examples):
    free = {"model_name_or_path", "output_dir", "max_completion_length", "rollout", "per_device_train_batch_size"}
    free |= {"gradient_accumulation_steps", "chat_template_kwargs"}  # the last of models that think
    found = [yaml.safe_load((examples / f"math_{card}gb.yaml").read_text()) for card in (8, 12, 16, 24)]
    same = [{key: value for key, value in values.items() if key not in free} for values in found]
    assert same == [same[1]] * 4
