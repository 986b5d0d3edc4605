"""Null and false mean off, of every part, list and mapping of a config."""

import typing

import pytest

from grpo_plus import GRPOPlusConfig
from grpo_plus.cli import UserError
from grpo_plus.cli._arguments import GROUPS, parse
from tests.trainer.conftest import BASE

PARTS = (
    *("measure", "warm_start", "prompt", "reward_model", "critic", "environment", "tools", "verifiers"),
    *("eval_verifiers", "plugins", "advantage", "objective", "selection"),
    *("dead_groups", "rollout", "engine", "diagnosis"),
    *("verifier_column", "env", "reward_funcs", "next_steps", "datasets", "reward_weights"),
)


def mappings_and_lists():
    for group in GROUPS:
        for name, hint in typing.get_type_hints(group).items():
            kinds = typing.get_args(hint)
            if any(kind is dict or typing.get_origin(kind) in (dict, list) for kind in kinds) and bool not in kinds:
                yield name


def read(tmp_path, line):
    path = tmp_path / "config.yaml"
    path.write_text(f"model_name_or_path: x\ndataset_name: y\nuse_cpu: true\nbf16: false\n{line}\n")
    found = parse("t", [str(path)])
    return vars(found.training) | vars(found.script) | vars(found.model) | vars(found.mixture)


OFF_AS = {"rollout": "stock", "engine": "stock", "report": {"record": False}}
"""Fields whose default is not what off means."""


@pytest.mark.sample(12)
@pytest.mark.parametrize("name", sorted({*PARTS, *mappings_and_lists()}))
def test_null_and_false_are_as_if_the_field_were_left_out(tmp_path, name):
    left_out = read(tmp_path, "# nothing")
    for word in ("null", "false", "off", "~"):
        found = read(tmp_path, f"{name}: {word}")
        changed = {key for key in found if repr(found[key]) != repr(left_out[key])} - {"output_dir", "_recipe"}
        if name in OFF_AS and word in ("false", "off"):
            assert found[name] == OFF_AS[name]
            changed -= {name}
        assert not changed, (word, {key: found[key] for key in changed})


@pytest.mark.slow
def test_so_they_are_on_the_command_line_and_in_python(tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text("model_name_or_path: x\ndataset_name: y\nuse_cpu: true\nbf16: false\n")
    for word in ("null", "false", "none"):
        for name in ("measure", "critic", "tools", "environment", "advantage", "chat_template_kwargs"):
            found = parse("t", [str(path), f"--{name}", word])
            assert getattr(found.script if name == "measure" else found.training, name) in (None, [], {}), (name, word)
    names = ("critic", "tools", "environment", "verifiers", "selection", "generation_kwargs")
    assert GRPOPlusConfig(**BASE, **dict.fromkeys(names, False)).recipe == GRPOPlusConfig(**BASE).recipe


@pytest.mark.parametrize("line", ["beta: false", "num_generations: null", "learning_rate: false"])  # fmt: skip
def test_numbers_stay_numbers(tmp_path, line):
    with pytest.raises(UserError, match=line.partition(":")[0]):
        read(tmp_path, line)
