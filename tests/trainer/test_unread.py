"""No option is silently ignored: what nobody reads is said, and where it is an option of ours, refused."""

import dataclasses
from types import SimpleNamespace

import pytest
from trl import ModelConfig

from grpo_plus import GRPOPlusConfig
from grpo_plus.advantages import register_advantage, unread_weights
from grpo_plus.advantages.registry import advantages
from grpo_plus.recipe.launch import launching
from grpo_plus.recipe.notes import config_notes, weight_notes
from grpo_plus.recipe.unread import MODEL_NOTES, NOTES, PROBLEMS, unread_notes, unread_problems
from grpo_verifiers.errors import ConfigError
from tests.trainer.conftest import BASE


def made(tmp_path, owner=GRPOPlusConfig, **settings):
    return owner(**{**BASE, **settings, "output_dir": str(tmp_path)})


def said(config, name):
    return [note for note in config_notes(config) if note.startswith(f"{name} (")]


def unread(config, name):
    return [note for note in said(config, name) if "is not read: " in note]


NOTED = [
    ({"use_vllm": True, "vllm_mode": "server", "rollout": {"vllm_sync": "files"}}, {"vllm_group_port": 3}, "vllm_sync", {"rollout": {"vllm_sync": "nccl"}}),
    ({}, {"eval_verifiers": ["exact"]}, "eval_strategy is 'no'", {"eval_strategy": "steps", "eval_steps": 5}),
]  # fmt: skip


@pytest.mark.parametrize(("idle", "field", "why", "active"), NOTED, ids=[next(iter(case[1])) for case in NOTED])
def test_a_field_is_remarked_upon_where_a_part_of_ours_makes_it_inert_and_only_there(
    tmp_path, idle, field, why, active
):
    (name,) = field
    (note,) = said(made(tmp_path, **idle, **field), name)
    assert "is not read: " in note
    assert why in note
    assert not said(made(tmp_path, **idle), name)
    assert not said(made(tmp_path, **{**idle, **field, **active}), name)


def test_the_tables_name_fields_and_none_of_the_host_alone(tmp_path):
    known = {spec.name for spec in dataclasses.fields(GRPOPlusConfig)}
    assert {name.partition(".")[0] for row in (*NOTES, *PROBLEMS) for name in row.fields} <= known
    hosts = {"loss_type": "sapo", "epsilon": 0.3, "vllm_mode": "server", "warmup_steps": 5, "data_seed": 3, "top_k": 5}
    assert config_notes(made(tmp_path, **hosts)) == []


def test_a_plain_config_has_no_remarks(tmp_path):
    assert config_notes(made(tmp_path)) == []
    parts = {"advantage": "sign", "objective": "dapo", "verifiers": ["math"]}
    engine = {"layout": "packed", "tokens_per_pass": 64}
    assert config_notes(made(tmp_path, **parts, report={"every": 5}, rollout={"rows": 4}, engine=engine)) == []
    made(tmp_path, report={"every": 5, "record": True})
    made(tmp_path, report={"every": 0})


def test_several_processes_and_deepspeed_have_settings_and_bounds_of_their_own(tmp_path):
    with launching(processes=2), pytest.raises(ConfigError, match=r"engine.tokens_per_pass \(64\).* single device"):
        made(tmp_path, engine={"tokens_per_pass": 64})
    config = made(tmp_path, engine={"layout": "packed", "tokens_per_pass": 64})
    assert unread_problems(config) == []
    config.deepspeed = {"zero_optimization": {"stage": 2}}  # which is not installed here
    (problem,) = unread_problems(config)
    assert problem.startswith("engine.tokens_per_pass")
    assert "it works on a single device only" in problem


OURS = [
    ({"engine": "trimmed", "neftune_noise_alpha": 0.1}, "engine.layout ('trimmed')", "neftune_noise_alpha"),
    (
        {"engine": {"tokens_per_pass": 64}, "neftune_noise_alpha": 0.1},
        "engine.tokens_per_pass (64)",
        "neftune_noise_alpha",
    ),
    ({"engine": {"tokens_per_pass": 64}, "fsdp": "full_shard"}, "engine.tokens_per_pass (64)", "single device"),
    ({"report": {"every": 5}}, "report.every (5)", "needs the record"),
    ({"report": {"every": 5, "record": False}, "verifiers": ["math"]}, "report.every (5)", "needs the record"),
    ({"rollout": "auto", "use_vllm": True}, "rollout is 'auto'", "use_vllm"),
    ({"rollout": {"how": "stock", "rows": 5}}, "rollout.rows (5)", "rollout: auto"),
    ({"rollout": {"vllm_sync": "files"}}, "rollout.vllm_sync ('files')", "use_vllm: true"),
    (
        {"rollout": {"vllm_sync": "adapter"}, "use_vllm": True, "vllm_mode": "colocate"},
        "rollout.vllm_sync ('adapter')",
        "'colocate'",
    ),
    ({"rollout": {"rows": 5}, "verifiers": ["math"], "use_vllm": True}, "rollout.rows (5)", "rollout: auto"),
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
    notes = said(config, "rollout.how")
    assert notes == [] if drawn else "the parameters are sharded" in notes[0]


@pytest.mark.parametrize(
    "settings",
    [{"rollout": "auto"}, {"rollout": {"how": "auto", "rows": 4}}],
    ids=str,
)
def test_a_rollout_function_beside_a_setting_of_rollouts_is_refused(build, settings):
    def rollout(prompts, trainer):
        raise AssertionError("never asked")

    with pytest.raises(ConfigError, match="rollout_func draws the completions"):
        build(trainer={"rollout_func": rollout}, **settings)


def test_remarks_about_clipping_and_the_models_options(tmp_path):
    inner = {"surrogate": {"name": "clip", "epsilon_low": 0.1}}
    for keywords, said_so in (({"epsilon_high": 0.3}, "epsilon_high (0.3)"), (inner, "epsilon_low (0.1)")):
        notes = config_notes(made(tmp_path, objective={"name": "grpo", **keywords}))
        assert any(said_so in note for note in notes)
    moving = made(tmp_path, objective={"name": "grpo", "epsilon_high": 0.3}, num_iterations=2)
    assert config_notes(moving) == []
    (note,) = unread_notes(ModelConfig(lora_r=8), MODEL_NOTES)
    assert note.startswith("lora_r (8) is not read: use_peft is false")
    for model in (ModelConfig(), ModelConfig(lora_r=8, use_peft=True)):
        assert unread_notes(model, MODEL_NOTES) == []


@pytest.fixture
def first_only():
    @register_advantage("first_only")
    def first_only(table):
        return table.rewards[:, 0] - table.rewards[:, 0].mean()

    yield "first_only"
    advantages.unregister("first_only")


def test_weights_that_an_estimator_does_not_read_are_found(tmp_path, first_only):
    for name, given, unread in (
        (first_only, [2.0, 3.0], [0, 1]), ("center", [2.0, 3.0], []), ("zscore", [2.0], [0]), ("zscore", [2.0, 0.5, 0.0], []),
    ):  # fmt: skip
        assert unread_weights(name, given) == unread
    assert unread_weights("mix", [2.0], parts={"zscore": 1.0, "center": 1.0}) == []
    noted = {settings: weighed(tmp_path, settings, 2.0) for settings in (first_only, None, "center")}
    assert all("the weight 2 of 'right' changes nothing" in note for name in (first_only, None) for note in noted[name])
    assert [len(notes) for notes in noted.values()] == [1, 1, 0]
    assert "first_only" in noted[first_only][0]
    assert "TRL's own" in noted[None][0]
    assert weighed(tmp_path, "zscore", 1.0) == []


def weighed(tmp_path, advantage, weight):
    config = made(tmp_path, advantage=advantage)
    return weight_notes(config, [("right", weight)], config.recipe.advantage)
