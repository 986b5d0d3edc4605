"""A critic's options, its loss, and every combination that cannot be."""

import json
import typing

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, BitsAndBytesConfig

from grpo_plus import GRPOPlusConfig
from grpo_plus.heads.losses import explained_variance, value_loss
from grpo_plus.heads.trunk import FREEZABLE
from grpo_plus.recipe.settings import CriticOptions
from grpo_plus.recipe.table import config_notes
from grpo_plus.testing import make_tiny_model
from grpo_verifiers.errors import ConfigError


def config(critic, folder, **settings):
    wanted = {"advantage": "gae", "num_generations": 1, "use_cpu": True, "bf16": False, "report_to": "none"}
    return GRPOPlusConfig(output_dir=str(folder), critic=critic, **wanted | settings)


def test_the_loss_and_its_gradient_are_those_of_a_plain_loop(device):
    generator = torch.Generator().manual_seed(0)
    values, returns, old = (torch.randn(64, generator=generator, dtype=torch.float64).to(device) for _ in range(3))
    for clip in (None, 0.2, 1.0):
        leaf = values.clone().requires_grad_()
        loss, clipped = value_loss(leaf, returns, old, clip)
        loss.sum().backward()
        for at in range(64):
            v, r, o = (float(each[at]) for each in (values, returns, old))
            plain, slope = 0.5 * (v - r) ** 2, v - r
            if clip is not None:
                near = min(max(v, o - clip), o + clip)
                other = 0.5 * (near - r) ** 2
                if other > plain:
                    plain, slope = other, (near - r) * (near == v)
                assert bool(clipped[at]) == (other > 0.5 * (v - r) ** 2 and abs(v - o) > clip)
            assert float(loss[at]) == pytest.approx(plain, abs=1e-12)
            assert float(leaf.grad[at]) == pytest.approx(slope, abs=1e-12)
        assert clip is None or 0 < clipped.sum() < 64


def test_explained_variance_is_that_of_its_definition(device):
    returns = torch.tensor([1.0, 2.0, 3.0, 4.0], device=device)
    for values, expected in ((returns, 1.0), (torch.zeros_like(returns), 0.0), (-returns, pytest.approx(-3.0))):
        assert explained_variance(values, returns) == expected
    assert explained_variance(returns, torch.ones_like(returns)) is None


def test_options_have_their_defaults_and_may_be_text_or_flags(tmp_path):
    recipe = config('{"on": "model", "clip": null, "updates": 2}', tmp_path).recipe
    assert recipe.critic == CriticOptions(on="model", clip=None, updates=2)
    assert config({}, tmp_path).recipe.critic == CriticOptions()
    assert [config(none, tmp_path, advantage="raw").recipe.critic for none in (None, "null")] == [None, None]
    options = CriticOptions()
    assert (options.kind(adapted=True), options.kind(adapted=False)) == ("adapter", "model")
    assert options.rate("trunk") > options.rate("adapter") > options.rate("model")
    hints = typing.get_type_hints(CriticOptions, include_extras=True)
    assert set(typing.get_args(typing.get_args(hints["freeze"])[0])) == set(FREEZABLE)
    notes = config_notes(config({"warmup_steps": 3}, tmp_path))
    assert any(
        "the first 3 steps (warmup_steps) leave the policy and its schedule as they are" in note for note in notes
    )
    assert not any("critic" in note for note in config_notes(config({}, tmp_path)))


@pytest.mark.parametrize(("critic", "settings", "words"), [
    ({"learning_rat": 1}, {}, "learning_rat"), ({"clip": 0}, {}, "critic: clip is 0"), ({"lam": 1.5}, {}, "critic: lam is 1.5"),
    ({"updates": 0}, {}, "critic: updates is 0"), ({"warmup_steps": -1}, {}, "critic: warmup_steps is -1"),
    ({"learning_rate": float("nan")}, {}, "critic: key 'learning_rate' is nan"), ({"freeze": ["attn"]}, {}, "freeze"),
    ({"on": "head"}, {}, "critic: key 'on' is 'head'"), ("[1]", {}, "expected a mapping"),
    ({"on": "trunk", "model": "x"}, {}, "model ('x'): on (trunk) is the policy"),
    ({"on": "adapter", "model": "x"}, {}, "model ('x'): on (adapter) is the policy"),
    ({"on": "trunk", "freeze": ["mlp"]}, {}, "freeze (['mlp']): on: trunk trains the head alone"),
    ({"on": "model", "lora_r": 4}, {}, "lora_r (4): on (model) has no adapter"),
    ({}, {"advantage": "raw"}, "critic needs advantage ('raw'): the estimator reads no values"),
    ({}, {"advantage": None, "num_generations": 2}, "critic needs advantage: the estimator reads no values"),
    (None, {}, "advantage 'gae' needs critic: it reads a critic's values. Set critic: {}"),
    ({}, {"dead_groups": "resample", "num_generations": 4}, "compare nothing in a group"),
    ({"warmup_steps": 5}, {"max_steps": 5}, "the policy is not trained before step 5"),
])  # fmt: skip
def test_what_cannot_be_is_refused_when_the_config_is_built(critic, settings, words, tmp_path):
    with pytest.raises(ConfigError) as raised:
        config(critic, tmp_path, **settings)
    assert words in str(raised.value)
    if settings.get("dead_groups") is None and critic != "[1]":
        assert len(raised.value.problems) == 1, raised.value.problems


def test_a_launcher_of_deepspeed_or_fsdp_is_refused(tmp_path, monkeypatch):
    for variable, name in (("ACCELERATE_USE_DEEPSPEED", "DeepSpeed"), ("ACCELERATE_USE_FSDP", "FSDP")):
        monkeypatch.setenv(variable, "true")
        with pytest.raises(Exception, match=f"critic does not go with {name}: .*Use DDP"):
            config({}, tmp_path)
        monkeypatch.delenv(variable)


def test_what_only_the_trainer_knows_is_refused_with_a_way_out(build, tmp_path, tiny_model):
    for critic, lora, words in (
        ({"on": "adapter"}, False, "trains no LoRA adapter: set use_peft"),
        ({"model": tiny_model}, True, "a run with LoRA has it on an adapter: set on: model"),
        ({"lora_r": 2}, False, "the run trains no LoRA adapter: remove them"),
        ({"on": "model", "model": "/no/such"}, False, "critic: model is '/no/such', which cannot be loaded"),
        ({"on": "adapter", "freeze": ["embeddings"]}, True, "freeze has 'embeddings', but no trained weight"),
    ):
        with pytest.raises(ConfigError) as raised:
            build(critic, lora=lora)
        assert words in str(raised.value)
    for name, vocab, words in (
        ("other", "0123456789", "which reads .* tokens, and the policy writes"),
        ("shuffled", "".join(map(chr, [*range(126, 31, -1), 10])), "another tokenizer than the policy: the token"),
    ):
        make_tiny_model(tmp_path / name, vocab=vocab)
        with pytest.raises(ConfigError, match=f"critic: model is .*{words}"):
            build({"on": "model", "model": str(tmp_path / name)})


def test_a_start_in_4_bits_is_refused_as_a_model_of_its_own(build, tmp_path):
    make_tiny_model(tmp_path / "full", hidden=64)
    quantisation = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4")
    small = str(tmp_path / "small")
    AutoModelForCausalLM.from_pretrained(tmp_path / "full", quantization_config=quantisation).save_pretrained(small)
    AutoTokenizer.from_pretrained(tmp_path / "full").save_pretrained(small)
    words = rf"critic: model is '{small}', whose weights are stored quantised and .* set model to .* or on: adapter"
    with pytest.raises(ConfigError, match=words):
        build({"on": "model"}, model=small, lora=True)


def test_explain_shows_the_critic(cli, tmp_path, tiny_model):
    (tmp_path / "rows.jsonl").write_text(json.dumps({"prompt": "1+1=", "answer": "2"}) + "\n")
    (tmp_path / "run.yaml").write_text(
        f"model_name_or_path: {tiny_model}\ndataset_name: rows.jsonl\noutput_dir: out\nadvantage: gae\n"
        "num_generations: 1\ncritic: {on: trunk, warmup_steps: 3, updates: 2}\nverifiers: [exact]\n"
        "use_cpu: true\nbf16: false\nmax_steps: 9\n"
    )
    code, out, err = cli("check", "--only=config", "--config", tmp_path / "run.yaml", "--critic.clip", "0.5")
    assert code == 0, err
    for words in (
        "critic: on: trunk, updates: 2, warmup_steps: 3, clip: 0.5",
        "values are assumed to be the mean reward",
    ):
        assert words in out
