"""The host's own errors are in the one report: all of them, in one line each, with the field."""

import importlib.util

import pytest
from transformers.integrations.deepspeed import is_deepspeed_zero3_enabled

from grpo_plus import GRPOPlusConfig
from grpo_plus.recipe.host import host_problems, unseen_best_problems
from grpo_verifiers.errors import ConfigError
from tests.trainer.conftest import BASE

EVALUATING = {"eval_strategy": "steps", "eval_steps": 1}


def problems(**values):
    with pytest.raises(ConfigError) as caught:
        GRPOPlusConfig(**BASE | values)
    return caught.value.problems


@pytest.mark.parametrize(("values", "expected"), [
    ({"optim": "adamm"}, "adamm is not a valid OptimizerNames"), ({"eval_strategy": "sometimes"}, "sometimes is not a valid"),
    ({"log_completions_hub_repo": "a/b"}, "log_completions_hub_repo is set, but"), ({"auto_find_batch_size": True}, "auto_find_batch_size"),
    ({"accelerator_config": "nowhere.json"}, "nowhere.json"), ({"accelerator_config": {"a": 1}}, "unexpected keyword argument 'a'"),
    ({"warmup_steps": -1}, "Got warmup_steps = -1"), ({"dataloader_prefetch_factor": 2}, "dataloader_prefetch_factor"),
    ({"bf16": True, "fp16": True}, "fp16 and bf16 are both true"), ({"chat_template_kwargs": "{a: 1}"}, "JSONDecodeError"),
    ({"num_generations": 3}, "num_generations is 3, which does not divide the completions of a generation batch (8)"),
    ({**EVALUATING, "num_generations_eval": 3}, "Set per_device_eval_batch_size, or num_generations_eval, which divides it."),
    ({"load_best_model_at_end": True}, "--load_best_model_at_end requires the save and eval strategy to match"),
])  # fmt: skip
def test_an_error_of_the_host_is_one_line_that_names_its_field(values, expected):
    (text,) = problems(**values)
    assert "\n" not in text
    assert expected in text or expected == "JSONDecodeError"
    assert any(name in text for name in values)


def test_every_error_of_the_host_is_found_and_ours_beside_them():
    wrong = {
        "optim": "adamm",
        "warmup_steps": -1,
        "num_generations": 3,
        "lr_scheduler_type": "cosin",
        "temperature": -1,
    }
    found = "\n".join(problems(**wrong, **EVALUATING, num_generations_eval=5, advantage="sgn"))
    for words in ("adamm", "warmup_steps", "num_generations is 3", "cosin", "temperature is -1", "(5)", "'sign'"):
        assert words in found
    assert found.count("\n") == 6


def test_an_error_about_a_default_in_the_place_of_a_wrong_value_is_passed_over():
    (text,) = problems(num_generations=-3, per_device_train_batch_size=12)
    assert text.startswith("num_generations is -3")
    (text,) = problems(per_device_train_batch_size=0, num_generations=7)
    assert text.startswith("per_device_train_batch_size is 0")
    assert len(problems(save_steps=0, **EVALUATING, load_best_model_at_end=True)) == 1


def test_a_check_that_fails_whatever_is_given_ends():
    def never(_values):
        raise KeyError("nothing")

    assert host_problems(GRPOPlusConfig, {"beta": 0.1}, never) == ["TRL cannot use the config: KeyError: 'nothing'"]


def test_a_package_that_is_missing_is_named_with_the_field_that_needs_it():
    if importlib.util.find_spec("deepspeed") is not None:
        pytest.skip("deepspeed is installed")
    (text,) = problems(deepspeed={"zero_optimization": {"stage": 3}})
    assert "deepspeed" in text
    assert not is_deepspeed_zero3_enabled()  # nothing half built is left behind


def test_a_best_model_that_no_evaluation_tells_is_refused():
    for values in ({"save_strategy": "best"}, {"load_best_model_at_end": True, "save_strategy": "no"}):
        (text,) = problems(**values)
        assert f"{next(iter(values))} is " in text
        assert "set eval_strategy: steps." in text
    fine = {"metric_for_best_model": "reward", "save_strategy": "best"}
    assert unseen_best_problems(GRPOPlusConfig(**BASE, **EVALUATING, **fine)) == []
