"""The fingerprint of a run and the comparison of two, without a training."""

import enum
from types import SimpleNamespace

import pytest
import torch
from peft import LoraConfig, get_peft_model

from grpo_plus import GRPOPlusConfig
from grpo_plus.testing import make_tiny_model
from grpo_plus.training.resume import run_fingerprint
from grpo_plus.training.resume.run_changes import changes, fixed, table
from tests.device import FLOAT32


def host(model):
    return SimpleNamespace(model=model, accelerator=SimpleNamespace(unwrap_model=lambda model: model))


def tiny(seed=0, **more):
    return make_tiny_model(seed=seed, **more)[0]


def changed(model, name, change):
    """The model with one weight changed in place."""
    with torch.no_grad():
        change(model.get_parameter(name))
    return model


def test_a_model_is_told_by_what_it_is_and_holds():
    plain = run_fingerprint.model_of(host(tiny()))
    assert plain == run_fingerprint.model_of(host(tiny()))
    expected = {"class": "Qwen2ForCausalLM", "quantisation": None, "dtype": "float32"}
    assert plain | expected == plain
    assert plain["shapes"] == plain["trained_shapes"] != plain["weights"]
    assert not {"dtype", "use_cache", "architectures", "transformers_version"} & plain["config"].keys()
    assert plain["config"]["hidden_size"] == tiny().config.hidden_size

    def differs(model):
        found = run_fingerprint.model_of(host(model))
        return {name for name in found if found[name] != plain[name]}

    frozen, named, stored, bits, config = (tiny() for _ in range(5))
    frozen.lm_head.weight.requires_grad_(False)
    named.config._name_or_path = "elsewhere"
    stored.config.quantization_config = {"quant_method": "gptq"}
    bits.is_loaded_in_4bit = True
    config.config.rms_norm_eps = 0.5
    assert differs(tiny(seed=1)) == {"weights"}
    assert differs(tiny().bfloat16()) >= {"dtype", "weights"}
    assert differs(frozen) == {"trained_shapes"}
    assert differs(named) == set()
    assert differs(stored) == differs(bits) == {"quantisation"}
    assert run_fingerprint.model_of(host(stored))["quantisation"] == "gptq"
    assert run_fingerprint.model_of(host(bits))["quantisation"] == "4 bits"
    assert differs(config) == {"config"}
    for place, noticed in ((0, True), (255, True), (256, False)):  # the first values of a weight
        change = lambda weight, place=place: weight.view(-1)[place].add_(1)  # noqa: E731
        assert ("weights" in differs(changed(tiny(), "model.embed_tokens.weight", change))) is noticed


def test_of_an_adapter_the_base_is_told_apart_from_what_it_trains():
    base = run_fingerprint.model_of(host(tiny()))
    for kind in ({}, {"modules_to_save": ["lm_head"]}):
        config = LoraConfig(r=4, target_modules=["q_proj"], task_type="CAUSAL_LM", **kind)
        adapted = get_peft_model(tiny(), config)
        found = run_fingerprint.model_of(host(adapted))
        if not kind:
            assert {name: found[name] for name in ("shapes", "weights", "class")}.items() <= base.items()
        assert found["trained_shapes"] != base["trained_shapes"]
    adapted.add_adapter("ref", LoraConfig(r=4, target_modules=["q_proj"]))
    adapted.add_adapter("second", LoraConfig(r=2, target_modules={"v_proj", "q_proj"}))
    found = run_fingerprint.adapters_of(host(adapted))
    assert found.keys() == {"default", "second"}
    assert found["second"]["r"] == 2
    assert found["second"]["target_modules"] == ["q_proj", "v_proj"]
    assert not {"base_model_name_or_path", "task_type", "inference_mode", "peft_version"} & found["second"].keys()
    assert run_fingerprint.adapters_of(host(tiny())) == {}


def test_what_holds_weights_in_pieces_is_told_with_its_layout():
    def kind(deepspeed=None, fsdp=None):
        plugin = None if deepspeed is None else SimpleNamespace(zero_stage=deepspeed)
        state = SimpleNamespace(deepspeed_plugin=plugin, fsdp_plugin=SimpleNamespace(state_dict_type=fsdp))
        given = {"is_deepspeed_enabled": deepspeed is not None, "is_fsdp_enabled": fsdp is not None}
        return run_fingerprint.sharding_of(SimpleNamespace(accelerator=SimpleNamespace(state=state), **given))

    assert kind() is None
    assert [kind(deepspeed=stage) for stage in (2, 3)] == ["DeepSpeed (weights whole)", "DeepSpeed (ZeRO-3)"]
    assert (kind(fsdp=Kind.ONE), kind(fsdp="full")) == ("FSDP (ONE)", "FSDP (full)")


class Kind(enum.Enum):
    ONE = "one"


def state(*, adapters=(), beta=0.0, sharding=None, processes=1, further=(), **model):
    described = {"dtype": "float32", "weights": "w", "class": "C", "parameters": 1000, "trained": 1000}
    one = {"beta": beta, "processes": processes, "sharding": sharding}
    return {**one, "model": {**described, **model}, "adapters": dict(adapters), **dict(further)}


LORA = {"default": {"peft_type": "LORA", "r": 4, "lora_dropout": 0.0, "alpha": None}}


@pytest.mark.parametrize(("then", "now", "names", "never"), [
    ({}, {}, [], []),
    ({}, {"weights": "v", "dtype": "bfloat16"}, ["model.dtype"], []),  # rounded, so the digest says nothing
    ({}, {"weights": "v"}, [], []),  # the checkpoint's take their place
    ({}, {"weights": "v", "beta": 0.1}, ["beta", "model.weights"], []),
    ({"adapters": LORA}, {"weights": "v", "adapters": LORA}, ["model.weights"], ["model.weights"]),
    ({}, {"class": "D"}, ["model.class"], ["model.class"]),
    ({}, {"quantisation": "gptq"}, ["model.quantisation"], ["model.quantisation"]),
    ({}, {"config": {"eps": 1}}, ["model.config.eps"], []),
    ({}, {"further": {"seed": 1, "optim": "a"}}, ["optim", "seed"], ["optim"]),
    ({}, {"further": {"fp16_full_eval": True}}, ["fp16_full_eval"], []),
    ({}, {"further": {"fp16": True}}, ["fp16"], ["fp16"]),
    ({}, {"further": {"rewards": {"a": 2}, "parts": {"a": 1}}}, ["parts.a", "rewards.a"], []),
    ({}, {"further": {"lr_scheduler_type": "greedy"}}, ["lr_scheduler_type"], ["lr_scheduler_type"]),
    ({}, {"further": {"learning_rate": 2}}, ["learning_rate"], []),
    *[
        ({"further": {"lr_scheduler_type": kind}}, {"further": {"lr_scheduler_type": kind, "learning_rate": 2}},
         ["learning_rate"], ["learning_rate"] * (kind == "greedy")) for kind in ("greedy", "cosine")
    ],
    ({}, {"processes": 2}, ["processes"], []),
    ({}, {"sharding": "FSDP (X)"}, ["sharding"], ["sharding"]),
    ({"sharding": "DeepSpeed (Z)"}, {"sharding": "DeepSpeed (Z)", "processes": 2, "further": {"learning_rate": 1, "temperature": 2}},
     ["learning_rate", "processes", "temperature"], ["learning_rate", "processes"]),
])  # fmt: skip
def test_differences_are_named_and_some_are_never_allowed(then, now, names, never):
    found = changes(state(**then), state(**now))
    assert sorted(found) == names
    assert sorted(fixed(found, state(**now))) == never


def test_a_table_has_each_value_on_one_line():
    rows = table({"x": ("a\nb", ["c"]), "y": (None, " ")}).splitlines()
    assert rows[1:] == ["  x    | a b        | ['c']", "  y    | unset      | ' '"]


def test_fields_with_a_result_are_in_the_fingerprint_and_the_others_are_not(tmp_path):
    fields = run_fingerprint.fields_of(GRPOPlusConfig(output_dir=str(tmp_path), **FLOAT32)).keys()
    assert fields >= {"learning_rate", "beta", "per_device_train_batch_size", "seed", "bf16", "eval_steps", "max_steps"}
    assert not fields & {"output_dir", "logging_steps", "save_steps", "report_to", "hub_token", "report"}
