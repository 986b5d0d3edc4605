"""Every field of a config file with values that do not belong there: refused in words, or within its range."""

import dataclasses
import datetime as dt
import math
import re

import pytest
import yaml

from grpo_plus.cli import UserError, main
from grpo_plus.cli._arguments import GROUPS, parse
from grpo_plus.config import MAPPINGS
from grpo_plus.recipe.values import judge

BAD = (
    None, True, False, 0, -1, 1.5, math.nan, math.inf, 10**400, "mumpitz", "", [1, "a"], [], {"a": 1},
    "{a: [", dt.date(2026, 1, 1),
)  # fmt: skip
OFF = {*MAPPINGS, "prompt", "measure", "warm_start"}
"""Mappings, which are off or empty by ``false`` as by ``null``."""
FIELDS = [(group, spec) for group in GROUPS for spec in dataclasses.fields(group) if spec.init]


def write(path, **values):
    path.write_text(yaml.safe_dump({"output_dir": str(path.parent / "out"), "use_cpu": True, "bf16": False} | values))
    return str(path)


def said(path):
    """What the parser of ``grpo-plus train`` says of a file, in words; None where it accepts it."""
    try:
        return None if parse("grpo-plus train", [path]) else ""
    except UserError as error:
        return str(error)


@pytest.mark.sample(2, 16)
@pytest.mark.parametrize(("group", "spec"), FIELDS, ids=[spec.name for _, spec in FIELDS])
def test_no_value_of_a_field_ends_in_a_traceback_or_is_accepted_outside_its_range(tmp_path, group, spec):
    for value in BAD:
        text = said(write(tmp_path / "c.yaml", **{spec.name: value}))
        if text is not None:
            assert "Traceback" not in text.replace("Its traceback is above", "") or spec.name == "plugins"
        elif judge(group, {"eval_strategy": "no", spec.name: value}).problems:
            assert value is False, value  # a bare no
            assert spec.name.endswith("_strategy") or spec.name in OFF


def test_all_problems_of_a_file_are_in_one_report_and_those_of_names_and_numbers_in_an_earlier_one(cli, config, folder):
    (folder / "broken.py").write_text("import grpo_plus\n\n1 / 0\n")
    wrong = {
        "top_p": (2, "top_p is 2,"),
        "model_name_or_path": (3, "model_name_or_path is 3, expected text."),
        "lora_r": ([1], "lora_r is [1], expected an integer."),
        "load_in_8bit": (True, "You can't use 8 bit and 4 bit precision at the same time"),
        "load_in_4bit": (True, "You can't use 8 bit and 4 bit precision at the same time"),
        "optim": ("adamm", "optim: unknown value 'adamm'."),
        "warmup_steps": (-1, "Got warmup_steps = -1"),
        "torch_threads": (0, "torch_threads is 0, expected at least 1"),
        "bnb_4bit_quant_type": ("nf5", "bnb_4bit_quant_type: unknown value 'nf5'."),
        "datasets": ([{"pth": "x"}], "unexpected keyword argument 'pth'"),
        "measure": ({"split": "test", "temperature": math.inf}, "measure: temperature is inf"),
        "epsilonn": (0.1, "unknown key 'epsilonn'. Did you mean 'epsilon'?"),
        "num_generations": ("four", "num_generations is 'four', expected an integer."),
        "beta": ([1], "beta is [1], expected a number."),
        "advantage": ("sgn", "Did you mean 'sign'?"),
        "objective": ("grp", "Did you mean 'grpo'?"),
        "prompt": ({"colum": "question"}, "prompt: unknown key 'colum'"),
        "env": ({"NAME": {}}, "env has NAME: {}"),
        "plugins": (["./broken.py"], "broken.py cannot be imported: ZeroDivisionError"),
        "verifiers": ([{"name": "math", "wieght": 1}], "unknown option 'wieght'. Did you mean the key 'weight'"),
        "epsilon": (0.3, "epsilon (0.3)"),
    }
    early = {
        "bnb_4bit_quant_type",
        "optim",
        "top_p",
        "lora_r",
        "torch_threads",
        "epsilonn",
        "num_generations",
        "beta",
        "prompt",
        "verifiers",
    }
    for names in (early, wrong.keys() - early):
        err = cli.refused("check", "--only=config", config(**{name: wrong[name][0] for name in names}))
        assert [expected for name, (_, expected) in wrong.items() if name in names and expected not in err] == []
    assert "    1 / 0" in err  # the plug-in's own traceback


def test_a_file_that_is_no_config(tmp_path, capsys):
    for content, expected in (
        (b"- a\n- b\n", "must hold a mapping"),
        (b"", "must hold a mapping"),
        (b"\xff\xfe\x00\x80", "cannot be read"),
        (b"3: 4", "must hold a mapping"),
        (b"a: [", "no valid YAML"),
        (b"beta: 1\nbeta: 2\n", "the key 'beta' appears twice"),
        (b"advantage: {name: zscore, eps: 1, eps: 2}\n", "the key 'eps' appears twice"),
        (b"a: !!python/object/apply:os.system ['true']", "no valid YAML"),
    ):
        (tmp_path / "c.yaml").write_bytes(content)
        assert main(["train", str(tmp_path / "c.yaml")]) == 2
        err = capsys.readouterr().err
        assert expected in err
        assert "c.yaml" in err


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    "flags", [["--learning_rate", "-1"], ["--top_p=2"], ["--max_steps", "0"], ["--torch_threads", "0"]]
)
def test_flags_are_judged_like_the_file(tmp_path, flags):
    path = write(tmp_path / "c.yaml")
    with pytest.raises(UserError, match="expected"):
        parse("grpo-plus train", [path, *flags])


@pytest.mark.sample(4)
@pytest.mark.parametrize("value", [None, True, "many", -1, [2], {"a": 1}, 1.5], ids=str)
@pytest.mark.parametrize(
    "key", ["num_processes", "mixed_precision", "accelerate_config", "main_process_port", "multi_gpu"]
)
def test_launch_arguments_of_any_kind_are_refused_in_words_or_taken(tmp_path, key, value):
    text = said(write(tmp_path / "c.yaml", **{key: value}))
    assert text is None or (text and "Traceback" not in text)


def test_a_single_text_is_a_list_of_one(tmp_path):
    parsed = parse("grpo-plus train", [write(tmp_path / "c.yaml", reward_funcs="./rewards.py:digits")])
    assert parsed.script.reward_funcs == ["./rewards.py:digits"]


@pytest.mark.sample(3)
@pytest.mark.parametrize("text", ["-1e-4", "-1E+3", "-.5", "-2", "-3.e2"])
def test_a_negative_number_in_a_flag_is_a_number(cli, config, text):
    err = cli.refused("check", "--only=config", config(), "--learning_rate", text)
    assert re.search(r"learning_rate is -[\d.]+, expected at least 0 and at most 1", err)


@pytest.mark.skipif(__import__("torch").cuda.is_available(), reason="the message of a machine without a card")
def test_a_machine_without_a_card_is_told_what_a_run_on_it_takes(tmp_path, cli):
    (tmp_path / "c.yaml").write_text("model_name_or_path: no/such\ndataset_name: no\nbf16: true\nverifiers: [math]\n")
    err = cli.refused("train", tmp_path / "c.yaml")
    assert "use_cpu: true and bf16: false" in err
    assert "assign use_cpu" not in err
