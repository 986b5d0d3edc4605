"""No option is silently ignored: what nobody reads is said, and where it is an option of ours, refused."""

import dataclasses
from types import SimpleNamespace

import pytest
import torch
import yaml
from trl import GRPOConfig, ModelConfig

from grpo_plus import GRPOPlusConfig
from grpo_plus.advantages import register_advantage, unread_weights
from grpo_plus.advantages.registry import advantages
from grpo_plus.recipe.launch import launching
from grpo_plus.recipe.notes import config_notes, weight_notes
from grpo_plus.recipe.unread import MODEL_NOTES, NOTES, PROBLEMS, unread_notes, unread_problems
from grpo_verifiers.errors import ConfigError
from tests.trainer.conftest import BASE, weights

TABLE = yaml.safe_load("""
named: [&colocated {use_vllm: true}, &server {use_vllm: true, vllm_mode: server}, &moving {num_iterations: 2},
  &evaluating {eval_strategy: steps, eval_steps: 5}, &adaptive {use_adaptive_entropy: true}]
rows:
- [{}, *colocated, {vllm_mode: server, vllm_structured_outputs_regex: a+, vllm_importance_sampling_correction: false,
    vllm_max_model_length: 99, vllm_model_impl: transformers, vllm_importance_sampling_clip_max: 2.0,
    vllm_importance_sampling_clip_min: 0.5, vllm_importance_sampling_cap: 2.0}]
- [{}, *server, {vllm_server_base_url: "http://here", vllm_group_port: 3}]
- [*colocated, *server, {vllm_server_base_url: "http://here", vllm_server_host: here, vllm_server_timeout: 3.0}]
- [{<<: *server, vllm_server_base_url: "http://there"}, *server, {vllm_server_host: here, vllm_server_port: 80}]
- [*server, *colocated, {vllm_gpu_memory_utilization: 0.5, vllm_tensor_parallel_size: 2, vllm_enable_sleep_mode: true}]
- [{<<: *colocated, vllm_importance_sampling_correction: false}, *colocated, {vllm_importance_sampling_mode: token_mask}]
- [*colocated, {}, {use_transformers_continuous_batching: true, use_transformers_paged: true, cache_implementation: static}]
- [{}, {use_transformers_continuous_batching: true}, {transformers_continuous_batching_config: {block_size: 16}}]
- [{generation_kwargs: {top_p: 0.5}}, {generation_kwargs: {top_k: 5}}, {top_p: 0.9}]
- [{generation_kwargs: '{"top_k": 6}'}, {}, {top_k: 5}]
- [{generation_kwargs: {min_p: 0.5}}, {}, {min_p: 0.1}]
- [{generation_kwargs: {repetition_penalty: 1.2}}, {}, {repetition_penalty: 1.1}]
- [{generation_kwargs: {max_new_tokens: 9}}, {}, {max_completion_length: 99}]
- [{multi_objective_aggregation: normalize_then_sum}, {}, {scale_rewards: batch}]
- [{loss_type: sapo, <<: *moving}, *moving, {delta: 1.5, epsilon_high: 0.3}]
- [{}, *moving, {delta: 1.5}]
- [{loss_type: vespo, <<: *moving}, *moving, {epsilon: 0.3}]
- [{loss_type: cispo, epsilon_high: 5.0}, {loss_type: cispo}, {epsilon: 0.3}]
- [{}, {gradient_accumulation_steps: 2, steps_per_generation: 4}, {epsilon: 0.3}]
- [{loss_type: dapo}, {loss_type: cispo}, {epsilon_high: 0.3}]
- [*moving, {loss_type: sapo, <<: *moving}, {sapo_temperature_neg: 2.0}]
- [{loss_type: sapo}, {loss_type: sapo, <<: *moving}, {sapo_temperature_pos: 2.0}]
- [{}, {loss_type: vespo}, {vespo_k_pos: 1.0, vespo_k_neg: 1.0, vespo_lambda_pos: 1.0, vespo_lambda_neg: 1.0}]
- [{}, {beta: 0.1}, {use_bias_correction_kl: false}]
- [{beta: 0.1}, {beta: 0.1, sync_ref_model: true}, {ref_model_mixup_alpha: 0.5}]
- [{}, {beta: 0.1, sync_ref_model: true}, {ref_model_sync_steps: 5}]
- [{entropy_coef: 0.2}, *adaptive, {entropy_coef_min: 0.1}]
- [{}, *adaptive, {entropy_coef_max: 0.5, entropy_coef_delta: 0.5, entropy_target: 0.5}]
- [{}, always, {ds3_gather_for_generation: false, prediction_loss_only: true, eval_accumulation_steps: 2,
    eval_do_concat_batches: false, eval_use_gather_object: true, include_for_metrics: [loss], batch_eval_metrics: true,
    label_names: [a], label_smoothing_factor: 0.1, average_tokens_across_devices: false, data_seed: 3, do_train: true,
    train_sampling_strategy: group_by_length, length_column_name: size, do_predict: true, local_rank: 0,
    liger_kernel_config: {rope: false}, fsdp_config: {min_num_params: 3}, ddp_find_unused_parameters: false,
    ddp_bucket_cap_mb: 5, ddp_broadcast_buffers: true, ddp_static_graph: true, ddp_timeout: 9,
    optim_target_modules: [all-linear]}]  # the optimizers that read the last are not installed
- [{}, *evaluating, {num_generations_eval: 4, per_device_eval_batch_size: 16, bf16_full_eval: true, eval_delay: 3,
    eval_verifiers: [exact], do_eval: true}]
- [{}, {eval_on_start: true}, {fp16_full_eval: true}]
- [{eval_strategy: epoch}, {eval_strategy: steps}, {eval_steps: 3}]
- [{max_steps: 5}, {}, {num_train_epochs: 2.0}]
- [{lr_scheduler_type: constant}, {lr_scheduler_type: constant_with_warmup}, {warmup_steps: 5}]
- [{optim: sgd}, {}, {adam_beta1: 0.5}]
- [{optim: adafactor}, {}, {adam_beta2: 0.5}]
- [{optim: rmsprop}, {optim: lion_32bit}, {adam_epsilon: 0.5}]
- [{gradient_checkpointing: false}, {}, {gradient_checkpointing_kwargs: &plain {use_reentrant: false},
    activation_checkpointing_kwargs: *plain}]
- [{}, {dataloader_num_workers: 1}, {dataloader_in_order: false}]
- [{save_strategy: epoch}, {}, {save_steps: 5}]
- [{save_strategy: "no"}, {}, {save_total_limit: 2}]
- [{}, {save_strategy: best, <<: *evaluating}, {metric_for_best_model: eval_reward}]
- [{}, {lr_scheduler_type: reduce_lr_on_plateau, <<: *evaluating}, {greater_is_better: true}]
- [{logging_strategy: epoch}, {}, {logging_steps: 5}]
- [{}, {log_completions: true}, {num_completions_to_print: 5, log_unique_prompts: true, log_multimodal: false}]
- [{}, {push_to_hub: true}, {hub_strategy: end, hub_always_push: true, hub_revision: mine}]
- [{}, {log_completions: true, log_completions_hub_repo: a/b}, {hub_private_repo: true}]
- [{}, {report_to: trackio}, {trackio_space_id: a/b, trackio_bucket_id: a/b, trackio_static_space_id: a/b, run_name: mine,
    project: mine}]
read: reward_model tools environment hacking_monitor stop_on selection selection_kwargs dead_groups dead_groups_kwargs
  rounds critic output_dir per_device_train_batch_size max_steps learning_rate lr_scheduler_type lr_scheduler_kwargs optim
  optim_args weight_decay gradient_accumulation_steps max_grad_norm bf16 fp16 tf32 activation_checkpointing
  gradient_checkpointing torch_compile torch_compile_backend torch_compile_mode use_liger_kernel use_cache
  neftune_noise_alpha torch_empty_cache_steps auto_find_batch_size logging_strategy logging_first_step log_on_each_node
  logging_nan_inf_filter include_num_input_tokens_seen log_level log_level_replica disable_tqdm report_to eval_strategy
  eval_on_start save_only_model save_strategy save_on_each_node enable_jit_checkpoint push_to_hub hub_token hub_model_id
  load_best_model_at_end ignore_data_skip restore_callback_states_from_checkpoint full_determinism seed use_cpu
  accelerator_config parallelism_config dataloader_drop_last dataloader_num_workers dataloader_pin_memory
  dataloader_persistent_workers dataloader_prefetch_factor dataloader_multiprocessing_context remove_unused_columns fsdp
  deepspeed debug skip_memory_metrics resume_from_checkpoint model_init_kwargs trust_remote_code router_aux_loss_coef
  disable_dropout cast_lm_head_to_fp32 num_generations shuffle_dataset pad_to_multiple_of generation_batch_size
  steps_per_generation temperature generation_kwargs chat_template_kwargs use_vllm beta num_iterations
  importance_sampling_level reward_weights multi_objective_aggregation loss_type mask_truncated_completions sync_ref_model
  top_entropy_quantile entropy_coef use_adaptive_entropy max_tool_calling_iterations off_policy_mask_threshold
  log_completions log_completions_hub_repo advantage advantage_kwargs objective objective_kwargs verifiers verifier_column
  plugins record ddp_backend
""")
"""Settings under which nobody reads some fields, settings under which somebody does, and the fields with a value.

To read are the fields that somebody reads whatever else is set, or that have a refusal of their own where nobody would.
"""
CASES = [(name, value, idle, active) for idle, active, some in TABLE["rows"] for name, value in some.items()]


def made(tmp_path, owner=GRPOPlusConfig, **settings):
    return owner(**{**BASE, **settings, "output_dir": str(tmp_path)})


def said(config, name):
    return [note for note in config_notes(config) if note.startswith(f"{name} (")]


def unread(config, name):
    return [note for note in said(config, name) if "is not read: " in note]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "value", "idle", "active"), CASES, ids=[f"{case[0]} {place}" for place, case in enumerate(CASES)])  # fmt: skip
def test_a_field_is_remarked_upon_where_nobody_reads_it_and_only_there(tmp_path, name, value, idle, active):
    known = GRPOPlusConfig.__dataclass_fields__
    active = None if active == "always" else active
    if name not in known or not known.keys() >= {*idle, *(active or {})}:
        pytest.skip("another version of TRL")
    (_note,) = unread(made(tmp_path, **{**idle, name: value}), name)
    assert not unread(made(tmp_path, **idle), name)
    if active is not None:
        assert not unread(made(tmp_path, **{**active, name: value}), name)


def test_the_table_and_these_cases_know_every_field():
    table = {name for row in (*NOTES, *PROBLEMS) for name in row.fields}
    known = {spec.name for spec in dataclasses.fields(GRPOPlusConfig)}
    read = set(TABLE["read"].split())
    assert known - table - read == set()  # a new field: who reads it, and when does nobody?
    assert not table & read
    ours = {"rollout", "rollout_rows", "engine", "engine_tokens_per_pass", "report_steps"}
    assert {case[0] for case in CASES} == {name for row in NOTES for name in row.fields} - ours
    model = {name for row in MODEL_NOTES for name in row.fields}
    free = {"model_name_or_path", "model_revision", "dtype", "attn_implementation"}
    free |= {"use_peft", "load_in_8bit", "load_in_4bit"}
    assert {spec.name for spec in dataclasses.fields(ModelConfig)} - model == free


@pytest.mark.sample(14, 20)
@pytest.mark.parametrize(("name", "value", "idle"), [case[:3] for case in CASES if case[0] != "eval_verifiers"], ids=str)  # fmt: skip
def test_a_config_of_trls_fields_alone_is_refused_only_where_trl_refuses_it(tmp_path, name, value, idle):
    known = GRPOConfig.__dataclass_fields__
    if name not in known or not known.keys() >= set(idle):
        pytest.skip("another version of TRL")
    made(tmp_path, GRPOConfig, **{**idle, name: value})
    made(tmp_path, **{**idle, name: value})


def test_a_plain_config_has_no_remarks(tmp_path):
    assert config_notes(made(tmp_path)) == []
    parts = {"advantage": "sign", "objective": "dapo", "verifiers": ["math"], "engine": "packed"}
    assert config_notes(made(tmp_path, **parts, report_steps=5, rollout_rows=4, engine_tokens_per_pass=64)) == []
    made(tmp_path, report_steps=5, record=True)
    made(tmp_path, report_steps=0)


def test_several_processes_and_deepspeed_have_settings_and_bounds_of_their_own(tmp_path):
    with launching(processes=2):
        assert not said(made(tmp_path, ddp_timeout=9), "ddp_timeout")
        with pytest.raises(ConfigError, match=r"engine_tokens_per_pass \(64\).* single device"):
            made(tmp_path, engine_tokens_per_pass=64)
    config = made(tmp_path, engine="packed", engine_tokens_per_pass=64)
    assert unread_problems(config) == []
    config.deepspeed = {"zero_optimization": {"stage": 2}}  # which is not installed here
    (problem,) = unread_problems(config)
    assert problem.startswith("engine_tokens_per_pass")
    assert "it works on a single device only" in problem


OURS = [
    ({"engine": "trimmed", "neftune_noise_alpha": 0.1}, "engine ('trimmed')", "neftune_noise_alpha"),
    ({"engine_tokens_per_pass": 64, "neftune_noise_alpha": 0.1}, "engine_tokens_per_pass (64)", "neftune_noise_alpha"),
    ({"engine_tokens_per_pass": 64, "fsdp": "full_shard"}, "engine_tokens_per_pass (64)", "single device"),
    ({"report_steps": 5}, "report_steps (5)", "needs the record"),
    ({"report_steps": 5, "record": False, "verifiers": ["math"]}, "report_steps (5)", "record is false"),
    ({"rollout": "auto", "use_vllm": True}, "rollout is 'auto'", "use_vllm"),
    ({"rollout_rows": 5}, "rollout_rows (5)", "rollout: auto"),
    ({"vllm_sync": "files"}, "vllm_sync ('files')", "use_vllm: true"),
    ({"vllm_sync": "adapter", "use_vllm": True, "vllm_mode": "colocate"}, "vllm_sync ('adapter')", "'colocate'"),
    ({"rollout_rows": 5, "verifiers": ["math"], "use_vllm": True}, "rollout_rows (5)", "rollout: auto"),
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
    notes = said(config, "rollout")
    assert notes == [] if drawn else "the parameters are sharded" in notes[0]


@pytest.mark.parametrize(
    "settings",
    [{"rollout": "auto"}, {"rollout": "auto", "rollout_rows": 4}],
    ids=str,
)
def test_a_rollout_function_beside_a_setting_of_rollouts_is_refused(build, settings):
    def rollout(prompts, trainer):
        raise AssertionError("never asked")

    with pytest.raises(ConfigError, match="rollout_func draws the completions"):
        build(trainer={"rollout_func": rollout}, **settings)


def test_remarks_about_clipping_sampling_and_the_models_options(tmp_path):
    inner = {"surrogate": {"name": "clip", "epsilon_low": 0.1}}
    for keywords, said_so in (({"epsilon_high": 0.3}, "epsilon_high (0.3)"), (inner, "epsilon_low (0.1)")):
        notes = config_notes(made(tmp_path, objective="grpo", objective_kwargs=keywords))
        assert any(said_so in note for note in notes)
    moving = made(tmp_path, objective="grpo", objective_kwargs={"epsilon_high": 0.3}, num_iterations=2)
    assert config_notes(moving) == []
    (note,) = config_notes(made(tmp_path, generation_kwargs={"temperature": 0.5}))
    assert all(words in note for words in ("0.5", "1.0"))
    notes = unread_notes(ModelConfig(lora_r=8, bnb_4bit_quant_type="fp4"), MODEL_NOTES)
    assert [note.partition(" ")[0] for note in notes] == ["lora_r", "bnb_4bit_quant_type"]
    for model in (ModelConfig(), ModelConfig(lora_r=8, use_peft=True, load_in_4bit=True)):
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


INERT = [
    ({"loss_type": "grpo"}, {"epsilon": 0.01, "epsilon_high": 0.01}), ({}, {"epsilon": 0.5, "delta": 1.5}),
    ({"loss_type": "sapo"}, {"sapo_temperature_neg": 3.0, "sapo_temperature_pos": 2.0, "epsilon": 0.5, "delta": 1.1}),
    ({"loss_type": "cispo", "epsilon_high": 5.0}, {"epsilon": 0.5}),
    ({"multi_objective_aggregation": "normalize_then_sum"}, {"scale_rewards": "none"}),
    ({"lr_scheduler_type": "constant"}, {"warmup_steps": 2}), ({"generation_kwargs": {"top_p": 0.9}}, {"top_p": 0.2}),
    ({}, {"entropy_target": 5.0, "use_bias_correction_kl": False, "data_seed": 7, "label_smoothing_factor": 0.5}),
]  # fmt: skip


@pytest.mark.sample(0, 3)
@pytest.mark.parametrize(("settings", "unread"), INERT, ids=str)
def test_training_is_bit_for_bit_the_same_whatever_an_unread_field_says(trained, tmp_path, settings, unread):
    assert all(said(made(tmp_path, **settings, **unread), name) for name in unread)
    assert torch.equal(weights(trained(**settings)), weights(trained(**settings, **unread)))


def test_training_says_its_remarks_once_before_it_starts(trained, caplog):
    trained(vllm_mode="server")
    said_so = [record for record in caplog.records if "vllm_mode ('server') is not read" in record.message]
    assert len(said_so) == 1
