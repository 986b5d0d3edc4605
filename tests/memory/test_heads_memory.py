"""The planner's arithmetic of a critic and a reward model, against the ones that exist."""

import contextlib
import itertools
import json
import re
from functools import partial

import peft
import pytest
import torch
from transformers import AutoModelForCausalLM

from grpo_plus import GRPOPlusConfig
from grpo_plus.check.memory import _table
from grpo_plus.cli import main
from grpo_plus.heads.adamw import OwnAdamW
from grpo_plus.heads.adapter import AdapterTrunk
from grpo_plus.heads.own_model import ModelTrunk
from grpo_plus.heads.passes import Passes
from grpo_plus.heads.scalar import ScalarHead
from grpo_plus.heads.trunk import PolicyTrunk
from grpo_plus.memory.advice import settings_of
from grpo_plus.memory.estimate import GIB, HeadSettings, Settings, estimate
from grpo_plus.memory.fit import DoesNotFitError, fit
from grpo_plus.memory.shape import read_model_config, shape_of
from grpo_plus.testing import make_tiny_model
from grpo_plus.training.update.advice import heads_of
from tests.device import DEVICE, FLOAT32, NAME
from tests.memory.live import Live, OnDevice
from tests.qlora.test_qlora_planner import qwen3

SHAPE = {"architecture": "llama", "hidden": 256, "layers": 4, "num_attention_heads": 8, "num_key_value_heads": 2}


def eight_billion():
    return qwen3("8B")


def thin():
    return eight_billion().to_dict() | {"num_hidden_layers": 2, "layer_types": ["full_attention"] * 2}


def planned(shape, kind, *, name="critic", rank=None, **settings):
    (found,) = estimate(shape, Settings(heads=(HeadSettings(name, kind, rank=rank),), **settings)).heads
    return found


def adapted(model, rank=4):
    config = peft.LoraConfig(r=rank, target_modules="all-linear", task_type="CAUSAL_LM", lora_alpha=8)
    return peft.get_peft_model(model, config)


def updated(trunk):
    """A head on it after a step of its optimizer, and the bytes of weights, gradients and moments."""
    head = ScalarHead(trunk.hidden_size, device=DEVICE)
    own = trunk.named_parameters() | {f"head/{name}": one for name, one in head.named_parameters()}
    weights = sum(one.nbytes for one in own.values())
    for one in own.values():
        one.grad = torch.ones_like(one)
    gradients = sum(one.grad.nbytes for one in own.values())
    optimizer = OwnAdamW(own, learning_rate=1e-3)
    optimizer.step()
    moments = sum(tensor.nbytes for tensor in optimizer.tensors().values() if tensor.dim() > 0 or tensor.numel() > 1)
    steps_of_one = 2 * 4  # the moments of the bias, which has no axis
    return weights + moments + steps_of_one, gradients


NO_TOKENS = {"micro_batch": 1, "prompt_length": 0, "completion_length": 0, "four_bit": False}


@pytest.mark.parametrize(("kind", "rank"), [("adapter", 2), ("adapter", 4), ("trunk", None)])
def test_an_adapter_or_a_head_alone_is_as_large_as_the_one_that_is_made(kind, rank):
    model, _ = make_tiny_model(architecture="llama", hidden=64, layers=2)
    shape, model = shape_of(model.config), model.to(DEVICE)
    trunk = AdapterTrunk(adapted(model), "critic", rank=rank) if kind == "adapter" else PolicyTrunk(model)
    found = planned(shape, kind, rank=rank, **NO_TOKENS)
    assert (found.resident, found.update) == updated(trunk)


@pytest.mark.parametrize("tied", [True, False])
def test_a_model_of_its_own_is_as_large_as_the_one_that_is_loaded(tied, tmp_path):
    made, tokenizer = make_tiny_model(tmp_path, architecture="llama", hidden=64, layers=2, tie_word_embeddings=tied)
    shape = shape_of(made.config)
    assert (shape.head_weights == 0) is tied
    found = planned(shape, "model", width=4, **NO_TOKENS)
    trunk = ModelTrunk(str(tmp_path), vocabulary=len(tokenizer), device=DEVICE)
    assert (found.resident, found.update) == updated(trunk)
    narrow = planned(shape, "model", width=2, **NO_TOKENS)
    assert narrow.update - found.update == shape.linear_weights  # 2 bytes of each in one of the two layers


@pytest.fixture
def rows():
    """Four rows of 32 and 96 tokens."""
    draw = partial(torch.randint, 3, 90, generator=torch.Generator().manual_seed(0))
    return draw((4, 128)).to(DEVICE), torch.ones(4, 128, dtype=torch.long, device=DEVICE), 96


ASKED = {"micro_batch": 4, "prompt_length": 32, "completion_length": 96, "four_bit": False}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["adapter", "model"])
@pytest.mark.parametrize("recompute", [True, False])
def test_an_update_holds_what_is_planned_within_a_fifth(kind, recompute, rows, tmp_path):
    made, tokenizer = make_tiny_model(tmp_path, **SHAPE, intermediate_size=768)
    if kind == "adapter":
        policy = adapted(AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.bfloat16).to(DEVICE)).train()
        if recompute:
            policy.gradient_checkpointing_enable({"use_reentrant": False})
        trunk = AdapterTrunk(policy, "critic")
    else:
        trunk = ModelTrunk(str(tmp_path), vocabulary=len(tokenizer), checkpointing=recompute, device=DEVICE)
    context = partial(torch.autocast, DEVICE, torch.bfloat16)
    passes = Passes(trunk, ScalarHead(trunk.hidden_size, spread=0.1, device=DEVICE), layout="stock", autocast=context)
    found = planned(shape_of(made.config), kind, rank=4, checkpointing=recompute, **ASKED)
    with Live() as live, trunk.active():
        for _ in range(2):  # gradients of the micro-batch before are there
            passes.values(*rows).sum().backward()
    assert live.peak == pytest.approx(found.update, rel=0.2)


@pytest.mark.slow
@pytest.mark.skipif(NAME == "stand-in", reason="its attention writes out all scores")
@pytest.mark.parametrize("layout", ["stock", "packed"])
def test_hidden_states_of_a_generation_batch_take_a_pass_of_the_device_as_planned_within_a_fifth(rows, layout):
    model, _ = make_tiny_model(**SHAPE, intermediate_size=768)
    trunk = PolicyTrunk(model.to(DEVICE, torch.bfloat16))
    passes = Passes(trunk, ScalarHead(trunk.hidden_size, device=DEVICE), layout=layout, autocast=contextlib.nullcontext)
    found = planned(shape_of(model.config), "trunk", **ASKED)
    peaks = {}
    for count in (4, 64):
        ids, mask, width = (each.repeat(count // 4, 1) if isinstance(each, torch.Tensor) else each for each in rows)
        with OnDevice() as live, torch.no_grad(), trunk.active():
            values, features = passes.features(ids, mask, width, batch_size=4)
        assert live.in_main_memory(features)
        assert not live.in_main_memory(values)
        peaks[count] = live.peak
    assert peaks[64] - peaks[4] < 64 * 128 * 64  # numbers for each token, and no hidden state
    assert peaks[64] == pytest.approx(found.update, rel=0.2)


def test_beside_eight_billion_weights_in_four_bits_a_head_adds_nothing_and_an_adapter_a_twentieth():
    shape = shape_of(eight_billion())
    alone = estimate(shape, Settings()).peak
    shares = {}
    for kind in ("trunk", "adapter", "model"):
        found = estimate(shape, Settings(heads=(HeadSettings("critic", kind),)))
        shares[kind] = found.peak / alone - 1
        assert found.parts() == estimate(shape, Settings()).parts()
    assert alone / GIB == pytest.approx(8.902, abs=1e-3)
    assert shares["trunk"] < 1e-3
    assert (shares["adapter"], shares["model"]) == (pytest.approx(0.059, abs=1e-3), pytest.approx(13.66, abs=0.01))
    assert planned(shape, "adapter").resident == 12 * (shape.lora_weights(16) + 4097)


def test_a_head_on_the_policys_states_stays_below_15_percent_where_the_rollout_draws_all_rows_at_once():
    shape = shape_of(eight_billion())
    for rows, length, micro_batch in itertools.product([8, 64, 256], [512, 1024, 4096], [1, 8]):
        asked = Settings(micro_batch=micro_batch, rollout_rows=rows, completion_length=length)
        found = estimate(shape, asked.but(heads=(HeadSettings("critic", "trunk"),)))
        assert found.peak <= 1.15 * estimate(shape, asked).peak


def test_updates_take_turns_and_what_stays_adds_up():
    shape = shape_of(eight_billion())
    critic, reward = HeadSettings("critic", "adapter"), HeadSettings("reward_model", "adapter", rank=16, least_rows=2)
    both, one = (estimate(shape, Settings(heads=heads)) for heads in ((critic, reward), (critic,)))
    assert both.heads[1].update > both.heads[0].update  # two completions are compared
    assert both.train - one.train == pytest.approx(both.heads[1].resident + both.heads[1].update - both.heads[0].update)
    assert both.rollout - one.rollout == both.heads[1].resident


def test_settings_that_fit_leave_room_for_a_critic():
    shape = shape_of(eight_billion())
    asked = Settings(micro_batch=8, rollout_rows=8, heads=(HeadSettings("critic", "adapter"),))
    room = 13.6 * GIB
    alone = fit(shape, asked.but(heads=()), room, generations=8)
    beside = fit(shape, asked, room, generations=8)
    assert (alone.settings.micro_batch, beside.settings.micro_batch) == (8, 4)
    assert beside.estimate.peak <= room < estimate(shape, alone.settings.but(heads=asked.heads)).peak
    with pytest.raises(DoesNotFitError, match=r"the critic \(on: model\) takes 84\.6 GiB at all times"):
        fit(shape, asked.but(heads=(HeadSettings("critic", "model"),)), 24 * GIB, generations=8)


def test_a_run_is_warned_by_an_estimate_that_has_its_critic(tmp_path):
    sizes = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 4, "num_generations": 4}
    learned = {"advantage": "gae", "critic": {"on": "adapter", "lora_r": 8}, "reward_model": {"on": "adapter"}}
    config = GRPOPlusConfig(output_dir=str(tmp_path), **FLOAT32, **sizes, **learned, verifiers=["exact"])
    heads = heads_of(config)
    assert heads == [
        HeadSettings("critic", "adapter", rank=8),
        HeadSettings("reward_model", "adapter", rank=16, least_rows=2),
    ]
    settings = settings_of(config, peft.LoraConfig(r=4), bits=4, heads=heads)
    assert settings.heads == tuple(heads)
    assert heads_of(GRPOPlusConfig(output_dir=str(tmp_path), **FLOAT32)) == []


class TestCommand:
    @pytest.fixture
    def config(self, tmp_path):
        path = tmp_path / "config.json"
        path.write_text(json.dumps(eight_billion().to_dict()))
        return str(path)

    @pytest.fixture
    def run(self, config, tmp_path, capsys):
        """Plan with a YAML file of these keys and options; gives what is printed."""

        def planned_file(keys, *options, code=0):
            path = tmp_path / "run.yaml"
            keys = {"model_name_or_path": config, "load_in_4bit": True, "verifiers": ["math"], **keys}
            path.write_text(json.dumps({key: value for key, value in keys.items() if value is not None}))
            assert main(["check", "--only", "memory", str(path), *options]) == code
            printed = capsys.readouterr()
            return printed.err + re.sub(r"\s*\n {12}", " ", printed.out)

        return planned_file

    @pytest.mark.slow
    @pytest.mark.parametrize(("keys", "changes"), [
        ({}, {}),
        ({"num_generations": 4, "per_device_train_batch_size": 2, "gradient_accumulation_steps": 8},
         {"micro_batch": 2, "rollout_rows": 16, "prompts": 4}),
        ({"lora_r": 8, "max_completion_length": 300, "optim": "adamw_torch", "gradient_checkpointing": False,
          "gradient_checkpointing_kwargs": None},
         {"rank": 8, "completion_length": 300, "optimizer": "adamw_torch", "checkpointing": False}),
        ({"load_in_4bit": False, "load_in_8bit": True}, {"four_bit": False, "eight_bit": True}),
        ({"load_in_4bit": False, "use_peft": True, "lora_target_modules": ["all-linear"], "dtype": "bfloat16",
          "optim": "paged_adamw_8bit"}, {"four_bit": False}),
        ({"advantage": "gae", "critic": {"on": "trunk"}}, {"heads": (HeadSettings("critic", "trunk"),)}),
        ({"advantage": "gae", "critic": {}, "reward_model": {}},
         {"heads": (HeadSettings("critic", "adapter"), HeadSettings("reward_model", "adapter", least_rows=2))}),
        ({"reward_model": {"on": "model", "model": "SMALL"}}, {"heads": "SMALL"}),
    ])  # fmt: skip
    def test_a_config_is_planned_by_what_it_says(self, keys, changes, run, config, tmp_path):
        small = tmp_path / "small.json"
        small.write_text(json.dumps(thin()))
        keys = json.loads(json.dumps({"max_completion_length": 1024, **keys}).replace("SMALL", str(small)))
        if changes.get("heads") == "SMALL":
            own = shape_of(read_model_config(str(small)), str(small))
            changes = {"heads": (HeadSettings("reward_model", "model", shape=own, least_rows=2),)}
        wanted, shape = Settings(**{"micro_batch": 8, **changes}), shape_of(eight_billion(), config)
        text = run(keys, "--vram", "100")
        assert "\n".join(f"  {line}" for line in _table(shape, wanted, estimate(shape, wanted))) in text
        assert "prompts have 256 tokens" in text

    @pytest.mark.slow
    def test_more_of_a_config_counts_as_in_the_trainers_own_warning(self, run):
        whole = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 16, "max_completion_length": 1024}
        assert "2 completions a pass, 16 rows decoded at once" in run({**whole, "rollout": {"rows": 16}})
        small = run({**whole, "advantage": "gae", "critic": {"on": "adapter", "lora_r": 4}})
        assert "  critic          0.122 GiB" in small  # a quarter of rank 16
        large = run({**whole, "advantage": "gae", "critic": {"on": "adapter"}})
        assert "  critic          0.488 GiB  an adapter of its own and Adam's moments, float32\n" in large
        nowhere = {**whole, "advantage": "gae", "critic": {"on": "model", "model": "/nowhere.json"}}
        assert "the config of /nowhere.json cannot be read" in run(nowhere, code=2)
        unquantised = {**whole, "load_in_4bit": None, "use_peft": True}
        texts = [run({**unquantised, "dtype": dtype}, "--vram", "100") for dtype in ("bfloat16", "float32")]
        gib = [float(text.split("  weights ")[1].split()[0]) for text in texts]
        assert gib == pytest.approx([8.19 * 2e9 / GIB, 8.19 * 4e9 / GIB], rel=1e-3)

    def test_options_win_over_the_file_and_a_card_gives_lines_for_it(self, run):
        keys = {"max_completion_length": 1024, "gradient_accumulation_steps": 4}
        keys |= {"advantage": "gae", "critic": {"on": "adapter"}}
        text = run(keys, "--max-completion-length", "512", "--critic.on", "trunk", "--prompt-length", "99", "--vram=11")
        assert "prompts of 99 and completions of 512 tokens" in text
        printed = dict(re.findall(r"^ {4}(\w+): (.*)$", text, re.MULTILINE))
        assert int(printed["per_device_train_batch_size"]) * int(printed["gradient_accumulation_steps"]) == 32
        assert "critic" not in printed  # it stays what the file says

    def test_what_is_left_out_is_said(self, run):
        assert "memory of the reward model (reward_model_name_or_path)" in run({"reward_model_name_or_path": "a/b"})
        steps = {"per_device_train_batch_size": 4, "steps_per_generation": 4, "gradient_accumulation_steps": 2}
        assert "per_device_train_batch_size times steps_per_generation stays 16" in run(steps, "--vram", "8")

    def test_a_config_that_cannot_be_planned_is_refused(self, run):
        for keys, options, words in (
            ({"load_in_4bit": None, "use_cpu": True, "bf16": False}, [], "runs with adapters (use_peft) only"),
            ({"critic": {"on": "head"}}, [], "critic"),
            ({}, ["--prompt_length", "0"], "--prompt-length is 0, expected at least 1"),
            ({"model_name_or_path": None}, [], "model_name_or_path"),
        ):
            assert words in run(keys, *options, code=2)
