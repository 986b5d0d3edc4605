import ast
import json
import os
import textwrap

import pytest

from grpo_plus.advantages import advantages

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


def logs(out):
    """The metrics that training printed, one mapping a step."""
    found = [ast.literal_eval(line) for line in out.splitlines() if line.startswith("{'loss'")]
    return [{key: value if value is None else float(value) for key, value in row.items()} for row in found]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["raw", "reinforce_pp"])
def test_two_steps_with_one_completion_a_prompt(cli, config, name):
    code, out, err = cli("train", config(advantage=name, objective="reinforce", num_generations=1, engine="auto"))
    assert code == 0, err
    rows = logs(out)
    assert len(rows) == 2
    assert all(row["advantages/dead_group_fraction"] < 1 for row in rows)


@pytest.mark.slow
@pytest.mark.parametrize("name", BUILT_IN)
def test_two_steps_with_every_estimator_from_yaml(cli, config, folder, name):
    more = {"reward_funcs": ["./rewards.py:digits", "./rewards.py:by_answer"]}
    if name == "mix":
        more["advantage_kwargs"] = {"parts": {"sign": 1.0, "rloo": 0.5}, "sign": {"band": 0.1}}
    if name == "passk":
        more["advantage_kwargs"] = {"k": 2}
    if name == "gae":
        more["critic"] = {"on": "trunk"}
    if name == "process":
        (folder / "steps.py").write_text(STEPS)
        more |= {
            "plugins": ["./steps.py"],
            "verifiers": ["halves"],
            "advantage_kwargs": {"credit": "return", "outcome_weight": 0.5},
        }
    code, out, err = cli("train", config(advantage=name, **more))
    assert code == 0, err
    steps = logs(out)
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
        code, out, err = cli("train", config(**chosen), "--advantage_kwargs.gain", "4")
        assert code == 0, err
        found.append([step["advantages/abs_mean"] for step in logs(out)])
    _, plain, _ = cli("train", config(plugins=["./mine.py"], advantage="twice_center"))
    assert found[0] == found[1]
    assert found[0][0] == pytest.approx(2 * logs(plain)[0]["advantages/abs_mean"], rel=1e-3)


@pytest.mark.slow
def test_an_objective_and_an_estimator_by_flags(cli, config):
    code, out, err = cli(
        "train",
        config(),
        "--advantage",
        "sign",
        "--advantage_kwargs",
        '{"band": .25}',
        "--objective",
        "grpo",
        "--beta=0.1",
        "--max_steps",
        "1",
    )
    assert code == 0, err
    assert len(logs(out)) == 1
    assert {"kl", "advantages/zero_fraction"} <= set(logs(out)[0])


def test_verifiers_in_the_yaml_and_on_the_command_line(cli, config):
    listed = [
        {"name": "think_format", "weight": 0.5},
        {"name": "exact", "label": "right", "columns": {"answer": "answer"}},
    ]
    code, out, err = cli("train", config(reward_funcs=None, verifiers=listed, max_steps=1))
    assert code == 0, err
    assert {"rewards/think_format/mean", "rewards/right/mean"} <= set(logs(out)[0])
    code, out, err = cli("train", config(reward_funcs=None, max_steps=1), "--verifiers", "think_format", "exact")
    assert code == 0, err
    assert {"rewards/think_format/mean", "rewards/exact/mean"} <= set(logs(out)[0])


@pytest.mark.slow
def test_rewards_by_the_hosts_names_and_dotted_paths(cli, config, folder, monkeypatch):
    (folder / "dotted_rewards.py").write_text(
        "def one(completions, **_):\n    return [float(len(c)) for c in completions]\n"
    )
    monkeypatch.syspath_prepend(str(folder))
    chosen = ["think_format_reward", "dotted_rewards.one"]
    code, out, err = cli(
        "train", config(reward_funcs=chosen, prompt={"column": "question", "system": "Be brief."}, max_steps=1)
    )
    assert code == 0, err
    assert {"rewards/think_format_reward/mean", "rewards/one/mean"} <= set(logs(out)[0])


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["parquet", "csv", "json", "saved", "folder"])
def test_data_in_every_form(cli, config, folder, kind):
    from datasets import Dataset

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
    more = (
        {"eval_strategy": "steps", "eval_steps": 1, "num_generations_eval": 2, "per_device_eval_batch_size": 4}
        if kind == "folder"
        else {}
    )
    code, out, err = cli(
        "train", config(dataset_name=str(path), max_steps=1, reward_funcs=["./rewards.py:by_answer"], **more)
    )
    assert code == 0, err
    assert len(logs(out)) == 1
    assert ("eval_reward" in out) == (kind == "folder")


def test_a_question_column_and_a_system_message_become_the_prompt(config, folder):
    from grpo_plus.cli._arguments import parse
    from grpo_plus.cli.train import build_trainer

    path = config(prompt={"column": "question", "system": "Be brief."}, reward_funcs=["./rewards.py:digits"])
    trainer = build_trainer(parse("grpo-plus train", [path]))
    assert trainer.train_dataset[0]["prompt"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "what is 0?"},
    ]
    flags = ["--prompt", "{}", "--prompt.column", "question", "--prompt.chat", "false"]
    trainer = build_trainer(parse("grpo-plus train", [path, *flags]))
    assert trainer.train_dataset[0]["prompt"] == "what is 0?"


def test_adapters_and_types_of_weights(config):
    import torch

    from grpo_plus.cli._arguments import parse
    from grpo_plus.cli.train import build_trainer

    path = config(use_peft=True, lora_r=4, lora_target_modules=["q_proj", "v_proj"], dtype="bfloat16")
    trainer = build_trainer(parse("grpo-plus train", [path]))
    names = [name for name, parameter in trainer.model.named_parameters() if parameter.requires_grad]
    assert names
    assert all("lora_" in name for name in names)
    assert trainer.model.get_base_model().lm_head.weight.dtype == torch.bfloat16


def test_batch_sizes_are_checked_for_the_processes_to_be_launched(cli, config, monkeypatch):
    from grpo_plus.cli._arguments import parse

    parsed = parse("grpo-plus train", [config(per_device_train_batch_size=1), "--num_processes", "4"])
    assert parsed.training.generation_batch_size == 4
    with_file = parse("grpo-plus train", [config(per_device_train_batch_size=1), "--accelerate_config", "multi_gpu"])
    assert with_file.training.generation_batch_size == 8
    code, _, err = cli("train", config(per_device_train_batch_size=1), "--num_processes", "2")
    assert code == 2
    assert "generation_batch_size (2) must be divisible by num_generations (4)" in err
    monkeypatch.setenv("GRPO_PLUS_LAUNCHED", "1")  # a rank counts the processes there are
    code, _, err = cli("train", config(per_device_train_batch_size=1), "--num_processes", "4")
    assert code == 2
    assert "generation_batch_size (1)" in err


def test_environment_variables_of_the_yaml(config, monkeypatch):
    from grpo_plus.cli._arguments import parse

    monkeypatch.setenv("GRPO_PLUS_TEST_VARIABLE", "before")
    parse("grpo-plus train", [config(env={"GRPO_PLUS_TEST_VARIABLE": 3})])
    assert os.environ["GRPO_PLUS_TEST_VARIABLE"] == "3"


def test_exponents_without_a_dot_are_numbers(config):
    from grpo_plus.cli._arguments import parse

    parsed = parse(
        "grpo-plus train", [config(learning_rate="3e-4", advantage="zscore", advantage_kwargs={"eps": "1e-6"})]
    )
    assert parsed.training.learning_rate == 3e-4
    assert parsed.training.advantage_kwargs == {"eps": 1e-6}


def test_arguments_of_accelerate_are_kept_apart(config):
    from grpo_plus.cli._arguments import parse

    assert parse("grpo-plus train", [config()]).launch == ()
    parsed = parse("grpo-plus train", [config(num_processes=2), "--main_process_port", "1234"])
    assert sorted(parsed.launch) == sorted(("--num_processes", "2", "--main_process_port", "1234"))
    given = config(
        num_processes=4, per_device_train_batch_size=1, multi_gpu=True, same_network=False, fsdp_offload_params=True
    )
    launch = parse("grpo-plus train", [given]).launch
    assert sorted(launch) == sorted(["--num_processes", "4", "--multi_gpu", "--fsdp_offload_params", "true"])
    named = parse("grpo-plus train", [config(), "--accelerate_config", "multi_gpu"]).launch
    assert named[0] == "--config_file"
    assert named[1].endswith("multi_gpu.yaml")


WRONG = {
    "an unknown key": ({"advantge": "sign"}, (), "unknown key 'advantge'. Did you mean 'advantage'?"),
    "an unknown key like none": ({"zzzzzz": 1}, (), "unknown key 'zzzzzz'. grpo-plus train --help-all lists all."),
    "an unknown flag": ({}, ("--advantge", "sign"), "unknown option --advantge. Did you mean --advantage?"),
    "an abbreviated flag": ({}, ("--advant", "sign"), "unknown option --advant"),
    "a stray word": ({}, ("stray",), "stray"),
    "an unknown estimator": ({"advantage": "sgn"}, (), "Did you mean 'sign'?"),
    "an unknown keyword": ({"advantage": "sign"}, ("--advantage_kwargs.bnad", "1"), "Did you mean 'band'?"),
    "a negative band": ({"advantage": "sign", "advantage_kwargs": {"band": -1}}, (), "band"),
    "no model": ({"model_name_or_path": None}, (), "model_name_or_path is missing"),
    "no rewards": ({"reward_funcs": None}, (), "nothing rewards the completions"),
    "no data": ({"dataset_name": None}, (), "no data: set dataset_name"),
    "a missing data file": (
        {"dataset_name": "./rows.jsonl"},
        (),
        "the dataset file './rows.jsonl' does not exist: looked in",
    ),
    "a data file of another kind": ({"dataset_name": "./rewards.py"}, (), "must end in .jsonl"),
    "an unknown split": ({"dataset_train_split": "trian"}, (), "Did you mean 'train'?"),
    "an unknown column": ({"prompt": {"column": "questoin"}}, (), "Did you mean 'question'?"),
    "an unknown key of the prompt": ({"prompt": {"colunm": "question"}}, (), "prompt has colunm"),
    "a reward that is not there": ({"reward_funcs": ["./rewards.py:digit"]}, (), "Did you mean 'digits'?"),
    "a reward file that is not there": ({"reward_funcs": ["./reward.py:digits"]}, (), "does not exist: looked at"),
    "an unknown reward": ({"reward_funcs": ["think_fromat_reward"]}, (), "Did you mean 'think_format_reward'?"),
    "a reward that cannot be called": ({"reward_funcs": ["./rewards.py:not_callable"]}, (), "cannot be called"),
    "a plugin that is not there": ({"plugins": ["./none.py"]}, (), "does not exist: looked at"),
    "an environment that is no mapping": ({"env": [1]}, (), "env is [1], expected a mapping"),
    "a verifier's column that is not there": (
        {"verifiers": [{"name": "exact", "columns": {"answer": "anwser"}}]},
        (),
        "train_dataset has no column 'anwser', which exact needs",
    ),
    "a model that is not there": ({"model_name_or_path": "/nowhere"}, (), "the folder '/nowhere' does not exist"),
    "too few rows": (
        {"gradient_accumulation_steps": 9},
        (),
        "the training data has 16 rows, but a generation batch takes 18",
    ),
    "no step": ({"max_steps": 0}, (), "max_steps is 0, expected at least 1"),
    "no rows": ({"dataset_name": "./empty.jsonl"}, (), "empty.jsonl holds no rows"),
    "nothing to resume": ({"resume_from_checkpoint": True}, (), "there is nothing to resume"),
    "a folder with a character that no path holds": ({"output_dir": "a\0b"}, (), "output_dir is 'a\\x00b'"),
    "a keyword that the model does not take": ({"model_init_kwargs": {"a": 1}}, (), "model_init_kwargs has a: 1"),
    "a keyword that the schedule does not take": (
        {"lr_scheduler_kwargs": {"a": 1}},
        (),
        "lr_scheduler_kwargs ({'a': 1})",
    ),
    "a value that the host refuses": ({"num_generations": 3}, (), "divisible"),
}


@pytest.mark.sample(6)
@pytest.mark.parametrize("name", WRONG)
def test_wrong_input_is_one_message_and_no_traceback(cli, config, name):
    changes, flags, expected = WRONG[name]
    path = config(**changes)
    try:
        code, _, err = cli("train", path, *flags)
    except SystemExit as end:
        code, err = end.code, ""
        pytest.fail(f"left through argparse with {code}: {err}")
    assert code == 2
    assert expected in err
    assert "Traceback" not in err


def test_no_config_at_all_says_how_to_get_one(cli):
    code, _, err = cli("train")
    assert code == 2
    assert "give a config file: grpo-plus train config.yaml. grpo-plus init writes one." in err


def test_the_traceback_of_a_broken_plugin_is_shown(cli, config, folder):
    (folder / "broken.py").write_text("def helper():\n    return 1 / 0\n\nhelper()\n")
    code, _, err = cli("train", config(plugins=["./broken.py"]))
    assert code == 2
    assert "ZeroDivisionError" in err
    assert "in helper" in err


@pytest.mark.slow
def test_a_verifier_that_only_fails_ends_the_run_with_its_own_traceback_alone(cli, config, folder):
    (folder / "failing.py").write_text(
        "from grpo_verifiers import verifier\n\n\n@verifier('fails_always', isolation='inline')\n"
        "def judge(completion):\n    return {}['no such key']\n"
    )
    code, _, err = cli("train", config(reward_funcs=None, verifiers=["./failing.py:judge"], max_steps=8))
    assert code == 2
    assert "grpo-plus train: verifier 'judge'" in err
    told = err[err.index("grpo-plus train:") :]
    assert "KeyError: 'no such key'" in told
    assert "grpo_plus/" not in told  # where the trainer stood says nothing


def test_all_problems_of_a_config_are_printed_together(cli, config):
    code, _, err = cli("train", config(advantage="sgn", engine="fast", objective="gpro", epsilon=0.3))
    assert code == 2
    assert "problems:" in err
    for expected in ("'sgn'", "'fast'", "'gpro'", "epsilon (0.3)"):
        assert expected in err


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (None, "cannot be read"),
        ("- a\n- b\n", "must hold a mapping"),
        ("a: [1\n", "no valid YAML"),
        ("beta: 1\nbeta: 2\n", "the key 'beta' is given twice"),
        ("advantage_kwargs: {eps: 1, eps: 2}\n", "the key 'eps' is given twice"),
    ],
)
def test_a_config_file_that_cannot_be_used(cli, folder, text, expected):
    path = folder / "odd.yaml"
    if text is not None:
        path.write_text(text)
    code, _, err = cli("train", path)
    assert code == 2
    assert expected in err
    assert "odd.yaml" in err


def test_one_config_file_only(cli, config):
    code, _, err = cli("train", config(), "--config", config())
    assert code == 2
    assert "give one config file" in err


def test_help_lists_our_options_and_the_hosts(cli):
    code, out, _ = cli("train", "--help")
    assert code == 0
    for flag in (
        "--advantage ",
        "--objective_kwargs",
        "--verifiers",
        "--learning_rate",
        "--model_name_or_path",
        "--prompt",
    ):
        assert flag in out


def test_merge_keys_and_comments_of_yaml(cli, folder):
    from grpo_plus.recipe.options import read_yaml

    path = folder / "merge.yaml"
    path.write_text(
        textwrap.dedent("""
        base: &base {a: 1, b: 2e-3}  # shared
        more: {<<: *base, a: 3}
    """)
    )
    assert read_yaml(path) == {"base": {"a": 1, "b": 2e-3}, "more": {"a": 3, "b": 2e-3}}


def test_a_key_that_yaml_takes_for_true_is_the_word_that_it_is(folder):
    """``critic: {on: trunk}`` would be ``{True: 'trunk'}``."""
    from grpo_plus.recipe.options import mapping, read_yaml

    path = folder / "words.yaml"
    path.write_text("critic: {on: trunk, off: no}\nyes: true\n")
    assert read_yaml(path) == {"critic": {"on": "trunk", "off": False}, "yes": True}
    assert mapping("critic", "{on: model}") == {"on": "model"}
    path.write_text("{on: 1, on: 2}")
    with pytest.raises(ValueError, match="'on' is given twice"):
        read_yaml(path)
