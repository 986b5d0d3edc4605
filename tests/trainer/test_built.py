"""Values inside mappings and texts: what cannot be built is refused before anything loads, what can is left alone."""

import importlib.util

import pytest

from grpo_plus import GRPOPlusConfig
from grpo_verifiers.errors import ConfigError
from tests.device import FLOAT32

BASE = {"output_dir": "out", **FLOAT32, "report_to": "none"}
POLYNOMIAL = {"lr_scheduler_type": "polynomial"}
REFUSED = [
    ({"generation_kwargs": {"top_p": "a"}}, "generation_kwargs: top_p is 'a', expected a number."),
    ({"generation_kwargs": {"temperature": -1}}, "generation_kwargs: temperature is -1"),
    ({"generation_kwargs": {"num_beams": 0}}, "generation_kwargs: num_beams is 0"),
    ({"generation_kwargs": {"num_beams": True}}, "generation_kwargs: num_beams is True"),
    ({"generation_kwargs": {"max_new_tokens": "x"}}, "generation_kwargs: max_new_tokens is 'x'"),
    ({"generation_kwargs": {"early_stopping": "x"}}, "early_stopping"),
    ({"generation_kwargs": {"watermarking_config": 3}}, "watermarking_config"),
    ({"generation_kwargs": {"typical_p": -1}}, "typical_p"),
    ({"generation_kwargs": {"no_repeat_ngram_size": "a"}}, "no_repeat_ngram_size"),
    ({"lr_scheduler_kwargs": {"a": 1}}, "lr_scheduler_kwargs ({'a': 1})"),
    ({**POLYNOMIAL, "lr_scheduler_kwargs": {"power": "x"}}, "lr_scheduler_kwargs ({'power': 'x'})"),
    ({**POLYNOMIAL, "lr_scheduler_kwargs": {"power": "x"}, "warmup_steps": 5}, "gives no schedule"),
    ({"lr_scheduler_type": "cosine_with_min_lr"}, "lr_scheduler_type ('cosine_with_min_lr')"),
    (
        {"lr_scheduler_type": "reduce_lr_on_plateau", "lr_scheduler_kwargs": {"factor": 2.0}, "eval_strategy": "steps"},
        "lr_scheduler_kwargs ({'factor': 2.0})",
    ),
    ({"generation_kwargs": {1: 2}}, "generation_kwargs is {1: 2}, expected a mapping"),
    ({"gradient_checkpointing_kwargs": {1: 2}}, "gradient_checkpointing_kwargs is {1: 2}"),
    ({"optim_args": "a"}, "optim_args is 'a', expected pairs"),
    ({"optim_args": "a=1=2"}, "expected pairs"),
    ({"gradient_checkpointing_kwargs": {"a": 1}}, "gradient_checkpointing_kwargs has a: 1"),
    ({"output_dir": "a\0b"}, "output_dir is 'a\\x00b'"),
    ({"logging_dir": "a\0b"} if "logging_dir" in GRPOPlusConfig.__dataclass_fields__ else {"run_name": "\0"}, "is "),
]


@pytest.mark.sample(18)
@pytest.mark.parametrize(("values", "expected"), REFUSED, ids=lambda v: str(v)[:70])
def test_what_cannot_be_built_is_refused_with_its_field(values, expected):
    with pytest.raises(ConfigError) as caught:
        GRPOPlusConfig(**BASE | values)
    (problem,) = caught.value.problems
    assert expected in str(problem)
    assert "\n" not in str(problem)


@pytest.mark.parametrize(
    ("values", "module"),
    [
        ({"optim": "galore_adamw", "optim_target_modules": "all-linear"}, "galore_torch"),
        ({"optim": "lomo"}, "lomo_optim"),
        ({"use_liger_kernel": True}, "liger_kernel"),
    ],
    ids=str,
)
def test_a_package_that_is_missing_is_named_with_the_field_that_needs_it(values, module):
    if importlib.util.find_spec(module) is not None:
        pytest.skip(f"{module} is installed")
    with pytest.raises(ConfigError, match=next(iter(values))):
        GRPOPlusConfig(**BASE | values)


@pytest.mark.parametrize(
    "values",
    [
        {"generation_kwargs": {"top_p": 0.5, "num_beams": 1, "min_p": 0.1, "typical_p": 0.9, "top_h": 0.4}},
        {"generation_kwargs": {"stop_strings": ["\n"], "repetition_penalty": 1.2, "no_repeat_ngram_size": 3}},
        {"generation_kwargs": {"min_new_tokens": 3, "suppress_tokens": [1], "eta_cutoff": 0.001, "min_p": None}},
        {"generation_kwargs": {"eos_token_id": 3, "exponential_decay_length_penalty": [10, 1.1], "do_sample": False}},
        {"generation_kwargs": {"bad_words_ids": [[3]], "watermarking_config": {"bias": 2.0}, "guidance_scale": 1.5}},
        {"lr_scheduler_type": "cosine_with_min_lr", "lr_scheduler_kwargs": {"min_lr_rate": 0.1}},
        {"lr_scheduler_type": "warmup_stable_decay", "lr_scheduler_kwargs": {"num_decay_steps": 50}, "max_steps": 100},
        {"lr_scheduler_type": "inverse_sqrt", "warmup_steps": 3},
        {"lr_scheduler_type": "inverse_sqrt"},
        {"lr_scheduler_type": "cosine", "max_steps": 1, "warmup_steps": 5},
        {"lr_scheduler_type": "cosine_with_restarts", "lr_scheduler_kwargs": '{"num_cycles": 2}'},
        {"lr_scheduler_type": "polynomial", "learning_rate": 1e-6, "max_steps": 10, "warmup_steps": 0.1},
        {"optim_args": "beta1=0.9, beta2=0.95"},
        {"optim": "sgd", "learning_rate": 0},
        {"gradient_checkpointing_kwargs": {"use_reentrant": False, "preserve_rng_state": True}},
    ],
    ids=lambda v: str(v)[:70],
)
def test_what_can_be_built_is_left_alone(values):
    GRPOPlusConfig(**BASE | values)
