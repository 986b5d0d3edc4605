"""What is written in a config: values that cannot be built are refused, null and false mean off, of every part."""

import importlib.util
import typing

import pytest

from grpo_plus import GRPOPlusConfig
from grpo_plus.cli import UserError
from grpo_plus.cli._arguments import GROUPS, parse
from grpo_verifiers.errors import ConfigError
from tests.trainer.conftest import BASE

POLYNOMIAL = {"lr_scheduler_type": "polynomial"}
PLATEAU = {"lr_scheduler_type": "reduce_lr_on_plateau", "eval_strategy": "steps"}
REFUSED = [
    ({"generation_kwargs": {"top_p": "a"}}, "generation_kwargs: top_p is 'a', expected a number."),
    ({"generation_kwargs": {"temperature": -1}}, "generation_kwargs: temperature is -1"),
    ({"generation_kwargs": {"num_beams": 0}}, "generation_kwargs: num_beams is 0"),
    ({"generation_kwargs": {"num_beams": True}}, "generation_kwargs: num_beams is True"),
    ({"generation_kwargs": {"max_new_tokens": "x"}}, "generation_kwargs: max_new_tokens is 'x'"),
    ({"generation_kwargs": {"early_stopping": "x"}}, "early_stopping"),
    ({"generation_kwargs": {"watermarking_config": 3}}, "watermarking_config"), ({"generation_kwargs": {"typical_p": -1}}, "typical_p"),
    ({"generation_kwargs": {"no_repeat_ngram_size": "a"}}, "no_repeat_ngram_size"),
    ({"lr_scheduler_kwargs": {"a": 1}}, "lr_scheduler_kwargs ({'a': 1})"),
    ({**POLYNOMIAL, "lr_scheduler_kwargs": {"power": "x"}}, "lr_scheduler_kwargs ({'power': 'x'})"),
    ({**POLYNOMIAL, "lr_scheduler_kwargs": {"power": "x"}, "warmup_steps": 5}, "gives no schedule"),
    ({"lr_scheduler_type": "cosine_with_min_lr"}, "lr_scheduler_type ('cosine_with_min_lr')"),
    ({**PLATEAU, "lr_scheduler_kwargs": {"factor": 2.0}}, "lr_scheduler_kwargs ({'factor': 2.0})"),
    ({"generation_kwargs": {1: 2}}, "generation_kwargs is {1: 2}, expected a mapping"),
    ({"gradient_checkpointing_kwargs": {1: 2}}, "gradient_checkpointing_kwargs is {1: 2}"),
    ({"optim_args": "a"}, "optim_args is 'a', expected pairs"), ({"optim_args": "a=1=2"}, "expected pairs"),
    ({"gradient_checkpointing_kwargs": {"a": 1}}, "gradient_checkpointing_kwargs has a: 1"),
    ({"output_dir": "a\0b"}, "output_dir is 'a\\x00b'"),
    ({"logging_dir": "a\0b"} if "logging_dir" in GRPOPlusConfig.__dataclass_fields__ else {"run_name": "\0"}, "is "),
]  # fmt: skip


@pytest.mark.sample(18)
@pytest.mark.parametrize(("values", "expected"), REFUSED, ids=lambda v: str(v)[:70])
def test_what_cannot_be_built_is_refused_with_its_field(values, expected):
    with pytest.raises(ConfigError) as caught:
        GRPOPlusConfig(**BASE | values)
    (problem,) = caught.value.problems
    assert expected in str(problem)
    assert "\n" not in str(problem)


@pytest.mark.parametrize(("values", "module"), [
    ({"optim": "galore_adamw", "optim_target_modules": "all-linear"}, "galore_torch"), ({"optim": "lomo"}, "lomo_optim"),
    ({"use_liger_kernel": True}, "liger_kernel"),
], ids=str)  # fmt: skip
def test_a_package_that_is_missing_is_named_with_the_field_that_needs_it(values, module):
    if importlib.util.find_spec(module) is not None:
        pytest.skip(f"{module} is installed")
    with pytest.raises(ConfigError, match=next(iter(values))):
        GRPOPlusConfig(**BASE | values)


@pytest.mark.parametrize("values", [
    {"generation_kwargs": {"top_p": 0.5, "num_beams": 1, "min_p": 0.1, "typical_p": 0.9, "top_h": 0.4}},
    {"generation_kwargs": {"stop_strings": ["\n"], "repetition_penalty": 1.2, "no_repeat_ngram_size": 3}},
    {"generation_kwargs": {"min_new_tokens": 3, "suppress_tokens": [1], "eta_cutoff": 0.001, "min_p": None}},
    {"generation_kwargs": {"eos_token_id": 3, "exponential_decay_length_penalty": [10, 1.1], "do_sample": False}},
    {"generation_kwargs": {"bad_words_ids": [[3]], "watermarking_config": {"bias": 2.0}, "guidance_scale": 1.5}},
    {"lr_scheduler_type": "cosine_with_min_lr", "lr_scheduler_kwargs": {"min_lr_rate": 0.1}},
    {"lr_scheduler_type": "warmup_stable_decay", "lr_scheduler_kwargs": {"num_decay_steps": 50}, "max_steps": 100},
    {"lr_scheduler_type": "inverse_sqrt", "warmup_steps": 3}, {"lr_scheduler_type": "inverse_sqrt"},
    {"lr_scheduler_type": "cosine", "max_steps": 1, "warmup_steps": 5},
    {"lr_scheduler_type": "cosine_with_restarts", "lr_scheduler_kwargs": '{"num_cycles": 2}'},
    {"lr_scheduler_type": "polynomial", "learning_rate": 1e-6, "max_steps": 10, "warmup_steps": 0.1},
    {"optim_args": "beta1=0.9, beta2=0.95"}, {"optim": "sgd", "learning_rate": 0},
    {"gradient_checkpointing_kwargs": {"use_reentrant": False, "preserve_rng_state": True}},
], ids=lambda v: str(v)[:70])  # fmt: skip
def test_what_can_be_built_is_left_alone(values):
    GRPOPlusConfig(**BASE | values)


PARTS = (
    *("measure", "warm_start", "prompt", "reward_model", "critic", "rounds", "environment", "tools", "verifiers"),
    *("eval_verifiers", "plugins", "advantage", "objective", "selection", "advantage_kwargs", "objective_kwargs"),
    *("selection_kwargs", "dead_groups_kwargs", "dead_groups", "rollout", "engine", "vllm_sync"),
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


OFF_AS = {"rollout": "stock", "engine": "stock"}
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
    names = ("critic", "rounds", "tools", "environment", "verifiers", "selection", "generation_kwargs")
    assert GRPOPlusConfig(**BASE, **dict.fromkeys(names, False)).recipe == GRPOPlusConfig(**BASE).recipe
    assert read(tmp_path, "advantage: rloo\nrollout: off")["rollout"] == "stock"


@pytest.mark.parametrize("line", ["beta: false", "report_steps: false", "num_generations: null", "learning_rate: false"])  # fmt: skip
def test_numbers_stay_numbers(tmp_path, line):
    with pytest.raises(UserError, match=line.partition(":")[0]):
        read(tmp_path, line)
