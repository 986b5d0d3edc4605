import ast
import json
import os

import pytest
import torch
from datasets import Dataset
from trl import TrlParser

from grpo_plus import GRPOPlusConfig
from grpo_plus.advantages import advantages
from grpo_plus.cli._arguments import parse
from grpo_plus.cli._data import load_rows
from grpo_plus.cli.train import build_trainer
from grpo_plus.recipe.values import mapping, read_yaml

BUILT_IN = sorted(entry.name for entry in advantages.entries() if entry.way == "built-in" and entry.name != "gigpo")
"""Estimators that need no environment; the other one is in test_tools.py."""

STEPS = """
from grpo_verifiers import Step, Verdict, verifier

@verifier("halves", isolation="inline")
def halves(completion: str, answer: str, completion_text: str):
    middle = len(completion_text) // 2
    digits = sum(c.isdigit() for c in completion_text[:middle])
    steps = (Step(0, middle, float(digits)), Step(middle, len(completion_text), float(len(answer))))
    return Verdict(digits / 8, steps=steps if middle else ())
"""

MINE = """
from grpo_plus.advantages import register_advantage

@register_advantage("twice_center")
def twice_center(table, *, gain: float = 2.0):
    \"\"\"Twice the distance from the mean.\"\"\"
    totals = table.totals().nan_to_num()
    return gain * (totals - totals.mean())
"""


def logs(out, start="loss"):
    found = [ast.literal_eval(line) for line in out.splitlines() if line.startswith(f"{{'{start}")]
    return [{key: value if value is None else float(value) for key, value in row.items()} for row in found]


def trained(cli, path, *flags):
    return logs(cli.done("train", path, *flags))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["raw", "reinforce_pp"])
def test_two_steps_with_one_completion_a_prompt(cli, config, name):
    rows = trained(cli, config(advantage=name, objective="reinforce", num_generations=1, engine="auto"))
    assert len(rows) == 2
    assert all(row["advantages/dead_group_fraction"] < 1 for row in rows)


@pytest.mark.sample(0, 8)
@pytest.mark.parametrize("name", BUILT_IN)
def test_two_steps_with_every_estimator_from_yaml(cli, config, folder, name):
    more = {"reward_funcs": ["./rewards.py:digits", "./rewards.py:by_answer"]}
    keywords = {"mix": {"parts": {"sign": 1.0, "rloo": 0.5}, "sign": {"band": 0.1}}, "passk": {"k": 2}}
    keywords["process"] = {"credit": "return", "outcome_weight": 0.5}
    if name == "gae":
        more["critic"] = {"on": "trunk"}
    if name == "process":
        (folder / "steps.py").write_text(STEPS)
        more |= {"plugins": ["./steps.py"], "verifiers": ["halves"]}
    steps = trained(cli, config(advantage={"name": name, **keywords.get(name, {})}, **more))
    assert len(steps) == 2
    assert any(step["advantages/abs_mean"] > 0 for step in steps)
    assert (folder / "out" / "model.safetensors").exists()
    if name == "process":
        assert steps[0]["steps/per_completion"] > 1.5
        assert "rewards/halves/mean" in steps[0]


@pytest.mark.slow
def test_an_estimator_of_ones_own_by_decorator_and_by_reference(cli, config, folder):
    (folder / "mine.py").write_text(MINE)
    found = []
    for chosen in ({"plugins": ["./mine.py"], "advantage": "twice_center"}, {"advantage": "./mine.py:twice_center"}):
        steps = trained(cli, config(**chosen), "--advantage.gain", "4")
        found.append([step["advantages/abs_mean"] for step in steps])
    plain = trained(cli, config(plugins=["./mine.py"], advantage="twice_center"))
    assert found[0] == found[1]
    assert found[0][0] == pytest.approx(2 * plain[0]["advantages/abs_mean"], rel=1e-3)


@pytest.mark.slow
def test_verifiers_in_the_yaml_and_all_parts_on_the_command_line(cli, config):
    right = {"name": "exact", "label": "right", "columns": {"answer": "answer"}}
    listed = [{"name": "think_format", "weight": 0.5}, right]
    (step,) = trained(cli, config(reward_funcs=None, verifiers=listed, max_steps=1))
    assert {"rewards/think_format/mean", "rewards/right/mean"} <= set(step)
    flags = ("--advantage", "sign", "--advantage.band", ".25", "--objective", "grpo", "--beta=0.1")
    flags += ("--verifiers", "think_format", "exact", "--max_steps", "1")
    (step,) = trained(cli, config(reward_funcs=None), *flags)
    names = {"kl", "advantages/zero_fraction", "rewards/think_format/mean", "rewards/exact/mean"}
    assert names <= set(step)


@pytest.mark.slow
def test_rewards_by_the_hosts_names_and_dotted_paths(cli, config, folder, monkeypatch):
    text = "def one(completions, **_):\n    return [float(len(c)) for c in completions]\n"
    (folder / "dotted_rewards.py").write_text(text)
    monkeypatch.syspath_prepend(str(folder))
    chosen = ["think_format_reward", "dotted_rewards.one"]
    asked = {"column": "question", "system": "Be brief."}
    (step,) = trained(cli, config(reward_funcs=chosen, prompt=asked, max_steps=1))
    assert {"rewards/think_format_reward/mean", "rewards/one/mean"} <= set(step)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["parquet", "csv", "json", "saved", "folder"])
def test_data_in_every_form(cli, config, folder, kind):
    rows = Dataset.from_list([json.loads(line) for line in (folder / "data.jsonl").read_text().splitlines()])
    path = folder / f"rows.{kind}"
    if kind == "saved":
        rows.save_to_disk(path)
    elif kind == "folder":
        path.mkdir()
        rows.to_json(path / "train.jsonl")
        rows.select(range(4)).to_json(path / "test.jsonl")
    elif kind == "json":
        path.write_text(json.dumps(list(rows)))
    else:
        getattr(rows, f"to_{kind}")(path)
    more = {"eval_strategy": "steps", "eval_steps": 1, "num_generations_eval": 2, "per_device_eval_batch_size": 4}
    given = {"dataset_name": str(path), "max_steps": 1, "reward_funcs": ["./rewards.py:by_answer"]}
    out = cli.done("train", config(**given, **(more if kind == "folder" else {})))
    assert len(logs(out)) == 1
    assert ("eval_reward" in out) == (kind == "folder")


def test_cells_of_a_csv_file_stay_as_they_are_written(folder):
    (folder / "cells.csv").write_text('answer,word,price,whole\n1,NA,1.5,2.0\n,"",2.0,3.0\n3,None,,\n')
    rows = load_rows(str(folder / "cells.csv"))["train"].to_dict()
    assert repr([*rows.values()]) == "[[1, None, 3], ['NA', None, 'None'], [1.5, 2.0, None], [2.0, 3.0, None]]"


def test_a_question_column_and_a_system_message_become_the_prompt(config, folder):
    path = config(prompt={"column": "question", "system": "Be brief."}, reward_funcs=["./rewards.py:digits"])
    trainer = build_trainer(parse("grpo-plus train", [path]))
    asked = [("system", "Be brief."), ("user", "what is 0?")]
    assert trainer.train_dataset[0]["prompt"] == [{"role": role, "content": text} for role, text in asked]
    flags = ["--prompt", "{}", "--prompt.column", "question", "--prompt.chat", "false"]
    trainer = build_trainer(parse("grpo-plus train", [path, *flags]))
    assert trainer.train_dataset[0]["prompt"] == "what is 0?"


def test_adapters_and_types_of_weights(config):
    path = config(use_peft=True, lora_r=4, lora_target_modules=["q_proj", "v_proj"], dtype="bfloat16")
    trainer = build_trainer(parse("grpo-plus train", [path]))
    names = [name for name, parameter in trainer.model.named_parameters() if parameter.requires_grad]
    assert names
    assert all("lora_" in name for name in names)
    assert trainer.model.get_base_model().lm_head.weight.dtype == torch.bfloat16


def test_batch_sizes_are_checked_for_the_processes_to_be_launched(cli, config, monkeypatch):
    parsed = parse("grpo-plus train", [config(per_device_train_batch_size=1), "--num_processes", "4"])
    assert parsed.training.generation_batch_size == 4
    with_file = parse("grpo-plus train", [config(per_device_train_batch_size=1), "--accelerate_config", "multi_gpu"])
    assert with_file.training.generation_batch_size == 8
    err = cli.refused("train", config(per_device_train_batch_size=1), "--num_processes", "2")
    assert "num_generations is 4, which does not divide the completions of a generation batch (2)" in err
    monkeypatch.setenv("GRPO_PLUS_LAUNCHED", "1")  # a rank counts the processes there are
    err = cli.refused("train", config(per_device_train_batch_size=1), "--num_processes", "4")
    assert "generation batch (1)" in err


def test_environment_variables_and_exponents_without_a_dot(config, monkeypatch):
    monkeypatch.setenv("GRPO_PLUS_TEST_VARIABLE", "before")
    parse("grpo-plus train", [config(env={"GRPO_PLUS_TEST_VARIABLE": 3})])
    assert os.environ["GRPO_PLUS_TEST_VARIABLE"] == "3"
    path = config(learning_rate="3e-4", advantage={"name": "zscore", "eps": "1e-6"})
    parsed = parse("grpo-plus train", [path])
    assert parsed.training.learning_rate == 3e-4
    assert parsed.training.advantage == {"name": "zscore", "eps": 1e-6}


def test_arguments_of_accelerate_are_kept_apart(config):
    assert parse("grpo-plus train", [config()]).launch == ()
    parsed = parse("grpo-plus train", [config(num_processes=2), "--main_process_port", "1234"])
    assert sorted(parsed.launch) == sorted(("--num_processes", "2", "--main_process_port", "1234"))
    given = {"num_processes": 4, "multi_gpu": True, "same_network": False, "fsdp_offload_params": True}
    launch = parse("grpo-plus train", [config(per_device_train_batch_size=1, **given)]).launch
    assert sorted(launch) == sorted(["--num_processes", "4", "--multi_gpu", "--fsdp_offload_params", "true"])
    named = parse("grpo-plus train", [config(), "--accelerate_config", "multi_gpu"]).launch
    assert named[0] == "--config_file"
    assert named[1].endswith("multi_gpu.yaml")


NO_MODEL = {"model_name_or_path": "no/model"}
WRONG = {
    "a word for a switch": ({"use_cpu": "maybe"}, "use_cpu is 'maybe'"),
    "a variable without a value": ({"env": {"NAME": None}}, "env has NAME: None"),
    "no model": ({"model_name_or_path": None}, "model_name_or_path is missing"),
    "no rewards": ({"reward_funcs": None}, "nothing rewards the completions"),
    "nothing to judge with": ({"measure": {"split": "train"}} | NO_MODEL, "measure needs verifiers"),
    "no data": ({"dataset_name": None}, "no data: set dataset_name"),
    "a reward that is not there": ({"reward_funcs": ["./rewards.py:digit"]}, "Did you mean 'digits'?"),
    "a reward that cannot be called": ({"reward_funcs": ["./rewards.py:not_callable"]}, "cannot be called"),
    "a keyword that the model does not take": ({"model_init_kwargs": {"a": 1}}, "model_init_kwargs has a: 1"),
}  # fmt: skip


@pytest.mark.sample(6)
@pytest.mark.parametrize("name", WRONG)
def test_wrong_input_is_one_message_and_no_traceback(cli, config, name):
    changes, expected = WRONG[name]
    err = cli.refused("train", config(**changes))
    assert expected in err
    assert "Traceback" not in err


@pytest.mark.slow
def test_a_verifier_that_only_fails_ends_the_run_with_its_own_traceback_alone(cli, config, folder):
    (folder / "failing.py").write_text(
        "from grpo_verifiers import verifier\n\n\n@verifier('fails_always', isolation='inline')\n"
        "def judge(completion):\n    return {}['no such key']\n"
    )
    err = cli.refused("train", config(reward_funcs=None, verifiers=["./failing.py:judge"], max_steps=8))
    assert "grpo-plus train: verifier judge" in err
    told = err[err.index("grpo-plus train:") :]
    assert "KeyError: 'no such key'" in told
    assert "grpo_plus/" not in told  # where the trainer stood says nothing


def test_yaml_has_merge_keys_and_comments_and_keys_that_it_takes_for_true(cli, folder):
    path = folder / "merge.yaml"
    path.write_text("base: &base {a: 1, b: 2e-3}  # shared\nmore: {<<: *base, a: 3}\n")
    assert read_yaml(path) == {"base": {"a": 1, "b": 2e-3}, "more": {"a": 3, "b": 2e-3}}
    path = folder / "words.yaml"
    path.write_text("critic: {on: trunk, off: no}\nyes: true\n")
    assert read_yaml(path) == {"critic": {"on": "trunk", "off": False}, "yes": True}
    assert mapping("critic", "{on: model}") == {"on": "model"}
    path.write_text("{on: 1, on: 2}")
    with pytest.raises(ValueError, match="'on' appears twice"):
        read_yaml(path)


def test_keywords_of_built_in_objectives_are_flags_of_any_parser():
    flags = ["--objective", "dapo", "--objective.epsilon_high", ".28", "--objective.reduce", "constant"]
    given = ["--output_dir", "out", "--use_cpu", "true", "--bf16", "false", "--report_to", "none", *flags]
    (config,) = TrlParser((GRPOPlusConfig,)).parse_args_and_config(given)
    assert config.objective == {"name": "dapo", "epsilon_high": 0.28, "reduce": "constant"}


def test_launch_files_are_found_beside_the_config(config, folder):
    text = "compute_environment: LOCAL_MACHINE\ndistributed_type: MULTI_CPU\nnum_processes: 2\n"
    (folder / "two.yaml").write_text(text)
    parsed = parse("grpo-plus train", [config(accelerate_config="two.yaml")])
    assert parsed.launch == ("--config_file", str(folder / "two.yaml"))
    assert parsed.processes == 2
    parsed = parse("grpo-plus train", [config(), f"--accelerate_config={folder / 'two.yaml'}"])
    assert parsed.launch == ("--config_file", str(folder / "two.yaml"))
