"""What parts need, exclude and replace: one table, which plug-ins extend, and notes on valid configs."""

import dataclasses
from types import SimpleNamespace

import pytest
from trl import ModelConfig

from grpo_plus import GRPOPlusConfig
from grpo_plus.advantages import register_advantage
from grpo_plus.advantages.registry import advantages
from grpo_plus.cli._notes import adapter_notes
from grpo_plus.objectives import register_objective
from grpo_plus.objectives.pieces import piece_registries
from grpo_plus.recipe.choice import ConfigFacts
from grpo_plus.recipe.launch import launching
from grpo_plus.recipe.table import PARTS, config_notes, parts_of
from grpo_plus.selection import register_selection, selections
from grpo_verifiers.errors import ConfigError
from grpo_verifiers.rules import broken_rules, excludes, needs
from tests.trainer.conftest import BASE


def made(tmp_path, owner=GRPOPlusConfig, **settings):
    return owner(**{**BASE, **settings, "output_dir": str(tmp_path)})


NOTED = [
    ({"use_vllm": True, "vllm_mode": "server", "rollout": {"vllm_sync": "files"}}, {"vllm_group_port": 3}, "vllm_group_port", {"rollout": {"vllm_sync": "nccl"}}),
    ({}, {"eval_verifiers": ["exact"]}, "eval_strategy is 'no'", {"eval_strategy": "steps", "eval_steps": 5}),
]  # fmt: skip


@pytest.mark.parametrize(("idle", "field", "why", "active"), NOTED, ids=[next(iter(case[1])) for case in NOTED])
def test_a_field_is_remarked_upon_where_a_part_of_ours_makes_it_inert_and_only_there(
    tmp_path, idle, field, why, active
):
    (note,) = config_notes(made(tmp_path, **idle, **field))
    assert why in note
    assert not config_notes(made(tmp_path, **idle))
    assert not config_notes(made(tmp_path, **{**idle, **field, **active}))


def test_each_row_of_the_table_names_a_field_or_says_when_it_is_broken(tmp_path):
    plain = made(tmp_path)
    known = {spec.name for spec in dataclasses.fields(GRPOPlusConfig)}
    rules = [rule for part in PARTS for rule in part.rules]
    assert len(rules) > 60
    for rule in rules:
        assert rule.target.partition(".")[0] in known or rule.when is not None or rule.relation == "notes", rule
    assert broken_rules(PARTS, ConfigFacts(plain, plain.recipe)) == config_notes(plain) == []
    assert config_notes(made(tmp_path, loss_type="sapo", epsilon=0.3, vllm_mode="server", top_k=5)) == []


@pytest.fixture
def plug_ins():
    own = [needs("critic", "it is there"), excludes("fp16", "it is small")]
    register_advantage("ruled_estimator", rules=own)(lambda table: table.totals())
    register_selection("ruled_selection", rules=own)(lambda history: 1.0 + history.drawn)
    register_objective("ruled_surrogate", kind="surrogate", rules=own)(lambda batch, ratio: ratio * batch.advantages)
    yield
    advantages.unregister("ruled_estimator")
    selections.unregister("ruled_selection")
    piece_registries["surrogate"].unregister("ruled_surrogate")


@pytest.mark.parametrize("chosen", [
    {"advantage": "ruled_estimator"}, {"advantage": {"name": "mix", "parts": {"ruled_estimator": 1.0, "raw": 1.0}}},
    {"selection": "ruled_selection"}, {"objective": {"name": "grpo", "surrogate": "ruled_surrogate"}},
])  # fmt: skip
def test_a_plug_in_brings_its_own_rules(tmp_path, plug_ins, chosen):
    with pytest.raises(ConfigError) as refusal:
        made(tmp_path, **chosen, fp16=True)
    text = str(refusal.value)
    assert "needs critic: it is there. Set critic." in text
    assert "does not go with fp16 (True): it is small. Remove one of the two." in text


def test_a_plain_config_has_no_remarks(tmp_path):
    parts = {"advantage": "sign", "objective": "dapo", "verifiers": ["math"]}
    engine = {"layout": "packed", "tokens_per_pass": 64}
    assert config_notes(made(tmp_path, **parts, report={"every": 5}, rollout={"rows": 4}, engine=engine)) == []
    for report in ({"every": 5, "record": True}, {"every": 0}):
        assert config_notes(made(tmp_path, report=report)) == []


def test_several_processes_and_deepspeed_have_settings_and_bounds_of_their_own(tmp_path):
    with (
        launching(processes=2),
        pytest.raises(ConfigError, match=r"tokens_per_pass \(64\): it works on a single device"),
    ):
        made(tmp_path, engine={"tokens_per_pass": 64})
    config = made(tmp_path, engine={"layout": "packed", "tokens_per_pass": 64})
    choice = ConfigFacts(config, config.recipe)
    assert broken_rules(parts_of(choice), choice) == []
    config.deepspeed = {"zero_optimization": {"stage": 2}}  # which is not installed here
    choice = ConfigFacts(config, config.recipe)
    (problem,) = broken_rules(parts_of(choice), choice)
    assert "tokens_per_pass (64): it works on a single device only" in problem


OURS = [
    ({"engine": "trimmed", "neftune_noise_alpha": 0.1}, "layout ('trimmed')", "neftune_noise_alpha"),
    ({"engine": {"tokens_per_pass": 64}, "fsdp": "full_shard"}, "tokens_per_pass (64)", "single device"),
    ({"report": {"every": 5}}, "report.every needs the record", "a part of grpo_plus"),
    ({"report": {"every": -1}}, "report: every is -1", "at least 0"),
    ({"report": "yes"}, "is 'yes'", "true or false"),
    ({"rollout": "auto", "use_vllm": True}, "how ('auto')", "use_vllm"),
    ({"rollout": {"how": "stock", "rows": 5}}, "rows (5)", "rollout: auto"),
    (
        {"rollout": {"vllm_sync": "adapter"}, "use_vllm": True, "vllm_mode": "colocate"},
        "vllm_sync ('adapter')",
        "server",
    ),
]


@pytest.mark.parametrize(("settings", "named", "reason"), OURS, ids=[str(case[0]) for case in OURS])
def test_an_option_of_ours_that_nobody_would_read_is_refused(tmp_path, settings, named, reason):
    with pytest.raises(ConfigError) as refusal:
        made(tmp_path, **settings)
    assert named in str(refusal.value)
    assert reason in str(refusal.value)


@pytest.mark.parametrize(("stage", "gathers", "drawn"), [(2, False, True), (3, True, True), (3, False, False)])
def test_our_rollouts_are_unread_only_where_no_process_has_the_whole_model(tmp_path, stage, gathers, drawn):
    config = made(tmp_path, rollout="auto", ds3_gather_for_generation=gathers)
    config.deepspeed = {"zero_optimization": {"stage": stage}}
    config.deepspeed_plugin = SimpleNamespace(zero_stage=stage)
    notes = config_notes(config)
    assert notes == [] if drawn else "the parameters are sharded" in notes[0]


@pytest.mark.parametrize("settings", [{"rollout": "auto"}, {"rollout": {"rows": 4}}], ids=str)
def test_a_rollout_function_beside_a_setting_of_rollouts_is_refused(build, settings):
    def rollout(prompts, trainer):
        raise AssertionError("never asked")

    with pytest.raises(ConfigError, match="rollout does not go with rollout_func"):
        build(trainer={"rollout_func": rollout}, **settings)


def test_remarks_about_clipping_and_the_models_options(tmp_path):
    inner = {"surrogate": {"name": "clip", "epsilon_low": 0.1}}
    for keywords, said_so in (({"epsilon_high": 0.3}, "epsilon_high (0.3)"), (inner, "epsilon_low (0.1)")):
        notes = config_notes(made(tmp_path, objective={"name": "grpo", **keywords}))
        assert any(said_so in note for note in notes)
    moving = made(tmp_path, objective={"name": "grpo", "epsilon_high": 0.3}, num_iterations=2)
    assert config_notes(moving) == []
    for model, noted in ((ModelConfig(), 0), (ModelConfig(lora_r=8), 1), (ModelConfig(lora_r=8, use_peft=True), 0)):
        told = ["lora_r (8) is not read: use_peft is false."] * noted
        assert adapter_notes(SimpleNamespace(model=model)) == told
