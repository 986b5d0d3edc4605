"""What a run is made of, and how what has changed of it is compared, refused and said, without a training."""

import enum
from types import SimpleNamespace

import pytest
import torch
from peft import LoraConfig, get_peft_model

from grpo_plus.testing import make_tiny_model
from grpo_plus.training.resuming import made_of
from grpo_plus.training.resuming.changes import Settings, _sharding, compare, lines_of, refusals


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
    plain = made_of.model_of(host(tiny()))
    assert plain == made_of.model_of(host(tiny()))
    count = sum(weight.numel() for weight in tiny().parameters())
    expected = {"class": "Qwen2ForCausalLM", "quantisation": None, "dtype": "float32", "name": ""}
    assert plain | expected | {"parameters": count, "trained": count} == plain
    assert plain["shapes"] == plain["trained_shapes"] != plain["weights"]
    assert not {"dtype", "use_cache", "architectures", "transformers_version"} & plain["config"].keys()
    assert plain["config"]["hidden_size"] == tiny().config.hidden_size

    def differs(model):
        found = made_of.model_of(host(model))
        return {name for name in found if found[name] != plain[name]}

    frozen, named, stored, bits, config = (tiny() for _ in range(5))
    frozen.lm_head.weight.requires_grad_(False)
    named.config._name_or_path = "elsewhere"
    stored.config.quantization_config = {"quant_method": "gptq"}
    bits.is_loaded_in_4bit = True
    config.config.rms_norm_eps = 0.5
    assert differs(tiny(seed=1)) == {"weights"}
    assert differs(tiny().bfloat16()) >= {"dtype", "weights"}
    assert differs(frozen) == {"trained", "trained_shapes"}
    assert differs(named) == {"name"}
    assert differs(stored) == differs(bits) == {"quantisation"}
    assert made_of.model_of(host(stored))["quantisation"] == "gptq"
    assert made_of.model_of(host(bits))["quantisation"] == "4 bits"
    assert differs(config) == {"config"}
    for place, noticed in ((0, True), (255, True), (256, False)):  # the first values of a weight
        change = lambda weight, place=place: weight.view(-1)[place].add_(1)  # noqa: E731
        assert ("weights" in differs(changed(tiny(), "model.embed_tokens.weight", change))) is noticed


def test_of_an_adapter_the_base_is_told_apart_from_what_it_trains():
    base = made_of.model_of(host(tiny()))
    for kind in ({}, {"modules_to_save": ["lm_head"]}):
        config = LoraConfig(r=4, target_modules=["q_proj"], task_type="CAUSAL_LM", **kind)
        adapted = get_peft_model(tiny(), config)
        found = made_of.model_of(host(adapted))
        if not kind:
            assert {name: found[name] for name in ("shapes", "weights", "parameters", "class")}.items() <= base.items()
        assert found["trained"] == sum(one.numel() for one in adapted.parameters() if one.requires_grad)
        assert found["trained_shapes"] != base["trained_shapes"]
    adapted.add_adapter("ref", LoraConfig(r=4, target_modules=["q_proj"]))
    adapted.add_adapter("second", LoraConfig(r=2, target_modules={"v_proj", "q_proj"}))
    found = made_of.adapters_of(host(adapted))
    assert found.keys() == {"default", "second"}
    assert found["second"]["r"] == 2
    assert found["second"]["target_modules"] == ["q_proj", "v_proj"]
    assert not {"base_model_name_or_path", "task_type", "inference_mode", "peft_version"} & found["second"].keys()
    assert made_of.adapters_of(host(tiny())) == {}


def test_what_holds_weights_in_pieces_is_told_with_its_layout():
    def kind(deepspeed=None, fsdp=None):
        plugin = None if deepspeed is None else SimpleNamespace(zero_stage=deepspeed)
        state = SimpleNamespace(deepspeed_plugin=plugin, fsdp_plugin=SimpleNamespace(state_dict_type=fsdp))
        given = {"is_deepspeed_enabled": deepspeed is not None, "is_fsdp_enabled": fsdp is not None}
        return _sharding(SimpleNamespace(accelerator=SimpleNamespace(state=state), **given))

    assert kind() is None
    assert [kind(deepspeed=stage) for stage in (2, 3)] == ["DeepSpeed (weights whole)", "DeepSpeed (ZeRO-3)"]
    assert (kind(fsdp=Kind.ONE), kind(fsdp="full")) == ("FSDP (ONE)", "FSDP (full)")


class Kind(enum.Enum):
    ONE = "one"


def state(*, adapters=(), beta=0.0, sharding=None, processes=1, settings=(), further=(), **model):
    described = {"dtype": "float32", "name": "m", "weights": "w", "class": "C", "parameters": 1000, "trained": 1000}
    one = {"settings": {"beta": beta, **dict(settings)}, "processes": processes, "sharding": sharding}
    return one | {"model": {**described, **model}, "adapters": dict(adapters), **dict(further)}


LORA = {"default": {"peft_type": "LORA", "r": 4, "lora_dropout": 0.0, "alpha": None}}
OTHER = {"default": {**LORA["default"], "lora_dropout": 0.5}}


@pytest.mark.parametrize(("now", "names", "lines", "refused"), [
    ({}, [], [], []),
    # Weights and the place they lie in.
    ({"weights": "v", "dtype": "bfloat16"}, ["model.dtype"], ["  model dtype: float32 then, bfloat16 now"], []),
    ({"name": "n"}, [], [], []),
    ({"weights": "v"}, [], [], []),  # the checkpoint's take their place
    ({"weights": "v", "name": "n"}, ["model.name", "model.weights"], ["  model: m then, n now (trained are th"], []),
    ({"weights": "v", "beta": 0.1}, ["beta", "model.weights"], ["  beta: 0.0", "  model: other weights than th"], []),
    ({"weights": "v", "adapters": LORA}, ..., ..., ["it holds all weights, and this run trains an adapter 'defa"]),
    # Another model.
    ({"class": "D"}, ["model.class"], [], ["it is of a C with 1,000 parameters (m), and this run has a D with 1,0"]),
    ({"shapes": "s"}, ["model.shapes"], [], ["it is of a C with 1,000 parameters (m), and this run has a C with"]),
    ({"quantisation": "gptq"}, ..., [], ["it was trained on a base with no quantisation, and this run has gptq"]),
    ({"trained": 999, "trained_shapes": "t"}, ..., [], ["was trained on 1,000 numbers, and this run trains 999, "]),
    ({"config": {"eps": 1}}, ["model.config.eps"], ["  model eps: unset then, 1 now"], []),
    # Settings.
    ({"settings": {"seed": 1}}, ["seed"], ["  seed: unset then, 1 now (another order of the data: the positio"], []),
    ({"settings": {"max_steps": 9}}, ..., ["  max_steps: unset then, 9 now (the schedule is that of the new len"], []),
    ({"settings": {"warmup_steps": 9}}, ..., ["  warmup_steps: unset then, 9 now (at this step of the new sch"], []),
    ({"settings": {"learning_rate": 9}}, ..., ["  learning_rate: unset then, 9 now (the schedule goes on with"], []),
    ({"settings": {"optim": "a"}}, ..., ..., ["it was saved with optim unset, and this run has a"]),
    ({"settings": {"lr_scheduler_type": "greedy"}}, ..., ..., ["saved with lr_scheduler_type unset, and this run "]),
    ({"settings": {"x": " "}}, ["x"], ["  x: unset then, ' ' now"], []),
    ({"settings": {"x": "y" * 100}}, ["x"], [f"  x: unset then, {'y' * 100} now"], []),
    ({"settings": {"x": "y" * 101}}, ["x"], [f"  x: unset then, {'y' * 99}… now"], []),
    ({"further": {"optimizer": "SGD"}}, ["optimizer"], ..., ["was saved with optimizer unset, and this run has SG"]),
    ({"further": {"rewards": {"a": 2}}}, ["rewards.a"], ["  weight of a: unset then, 2 now"], []),
    # Parts: where a field explains them, they are not said twice.
    ({"further": {"parts": {"math": 1}}}, ["parts.math"], ["  part math: unset then, 1 now"], []),
    ({"further": {"parts": {"a": 1}}, "beta": 2}, ["beta", "parts.a"], ["  beta: 0.0 then, 2 now"], []),
    # Data.
    ({"further": {"data": {"digest": "d"}}}, ..., ["  training data: other rows than then"], []),
    ({"further": {"data": {"digest": "d", "rows": 2}}}, ..., ["  rows of the training data: unset then, 2 now"], []),
    ({"further": {"eval_data": {"a": {"digest": "d"}}}}, ..., ["  evaluation data a: other rows than then"], []),
    ({"further": {"eval_data": {"a": {"rows": 3}}}}, ..., ["  rows of the evaluation data a: unset then, 3 now"], []),
    # Where weights are in pieces.
    ({"sharding": "FSDP (X)"}, ["sharding"], ..., ["it was saved under no sharding, and this run has FSDP (X)"]),
    ({"processes": 2}, ["processes"], ["  processes: 1 then, 2 now"], []),
    ({"settings": {"fp16": True}}, ["fp16"], ["  fp16: unset then, True now"], []),
])  # fmt: skip
def test_a_change_is_named_and_said_or_refused(now, names, lines, refused):
    then, now = state(), state(**now)
    found = compare(then, now)
    if names is not ...:
        assert sorted(found) == sorted(names)
    if lines is not ...:
        said = lines_of(found)
        assert len(said) == len(lines)
        assert all(line.startswith(words) for line, words in zip(said, lines, strict=True)), said
    reasons = refusals(found, then, now)
    assert len(reasons) == len(refused)
    assert all(words in reason for words, reason in zip(refused, reasons, strict=True)), reasons


def test_changes_of_adapters_of_layouts_and_of_what_differs_in_unseen_digits():
    then = state(adapters=LORA)

    def told(now):
        return refusals(found := compare(then, now), then, now), lines_of(found)

    assert told(state(adapters=OTHER)) == ([], ["  adapter default.lora_dropout: 0.0 then, 0.5 now"])
    ranked = {"default": {**LORA["default"], "r": 8}}
    assert told(state(adapters=ranked))[0] == ["it was saved with the adapter's r 4, and this run has 8"]
    then = state(sharding="FSDP (FULL)", settings={"lr_scheduler_type": "linear"})
    assert told(state(sharding="FSDP (SHARDED)", settings={"lr_scheduler_type": "cosine"}))[0] == [
        "it was saved under FSDP (FULL), and this run has FSDP (SHARDED)"
    ]
    assert told(state())[0] == ["it was saved under FSDP (FULL), and this run has no sharding"]
    for kind, layout in (("FSDP", "FSDP (FULL)"), ("DeepSpeed", "DeepSpeed (weights whole)")):
        then = state(sharding=kind)  # of an older release
        refused, (line,) = told(state(sharding=layout))
        assert refused == []
        assert line.startswith(f"  sharding: {kind} then, in a layout that the checkpoint does not name")
        assert line.endswith(layout)
        assert len(told(state(sharding=layout, processes=2))[0]) == (kind == "DeepSpeed")
    then = state(adapters=LORA)
    reason = "its adapter was trained on other weights (m) than those of this run (m)"
    assert told(state(adapters=LORA, weights="v"))[0] == [reason]
    assert told(state(adapters=LORA, weights="v", dtype="bfloat16"))[0] == []  # rounded, so nothing is known
    assert told(state(adapters={**LORA, "more": {}}))[0][0].endswith("(LORA) and an adapter 'more' (unknown)")
    then = state(sharding="DeepSpeed (ZeRO-3)", settings={"fp16": True, "x": "a" * 120 + "b", "learning_rate": 1})
    assert told(state(sharding="DeepSpeed (ZeRO-3)", processes=2, settings={"fp16": True, **then["settings"]}))[0] == [
        "DeepSpeed has split its optimizer between 1 processes, and this run has 2"
    ]
    new = state(sharding="DeepSpeed (ZeRO-3)", settings={"x": "a" * 120 + "c", "learning_rate": 2})
    assert told(new)[0] == ["it holds the state of a gradient scaler (fp16), which this run lacks"]
    assert f"  x: another one than then ({'a' * 99}…)" in told(new)[1]
    (line,) = (line for line in lines_of(compare(then, new), deepspeed=True) if "learning" in line)
    assert line == "  learning_rate: 1 then, 2 now (no effect: DeepSpeed goes on with the old one)"
    assert not any("no effect" in line for line in told(new)[1])


@pytest.mark.parametrize(("changed", "keeps"), [
    ((), True),
    (("sharding",), True),
    (("rounds.most", "learning_rate"), True),
    (("rounds", "beta"), False),
    (("model.rounds",), False),
])  # fmt: skip
def test_a_batch_is_kept_where_nothing_that_it_hangs_on_has_changed(changed, keeps):
    settings = Settings(recipe=None)
    settings.changed = dict.fromkeys(changed, (1, 2))
    assert settings.keeps_batch is keeps
