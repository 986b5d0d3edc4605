"""Fields that nothing reads under some condition: one table for TRL's fields and ours.

A field of TRL makes a note, since TRL runs such a config too. A field of ours makes a problem: no option of ours is
silently ignored.
"""

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from grpo_plus.recipe.iterations import ratio_moves
from grpo_plus.recipe.launch import process_count
from grpo_plus.recipe.options import changed_fields, mapping, rollout_of, sets_parts

Condition = Callable[[Any], bool]


@dataclass(frozen=True)
class Unread:
    """A row of the table.

    Attributes:
        names: the fields, with blanks between them; those at their default are skipped.
        when: the condition on a config.
        why: ends the sentence "FIELD (VALUE) is not read: ".
        way_out: what to do about it; for problems.
    """

    names: str
    when: Condition
    why: str
    way_out: str = ""

    @property
    def fields(self) -> tuple[str, ...]:
        """The fields one by one."""
        return tuple(self.names.split())


def _word(config: Any, name: str) -> str:
    """The text of a field that holds a word or an enumeration's member."""
    value = getattr(config, name, None)
    return str(getattr(value, "value", value))


def _behind(switch: str, names: str) -> Unread:
    """Fields that are read only while a switch is on."""
    return Unread(names, lambda config: not getattr(config, switch, None), f"{switch} is false")


def _never(_config: Any) -> bool:
    return True


def _own_loss(*losses: str) -> Condition:
    """TRL's own loss runs and is none of these."""
    return lambda config: config.objective is None and config.loss_type not in losses


def _inert_clip(config: Any) -> bool:
    """TRL's own clipping never acts: the ratio is 1 at every update."""
    return config.objective is None and not ratio_moves(config)


def _evaluates(config: Any) -> bool:
    return _word(config, "eval_strategy") != "no" or bool(getattr(config, "eval_on_start", False))


def under_deepspeed(config: Any) -> bool:
    """The config or a launcher asks for DeepSpeed."""
    return bool(config.deepspeed) or os.environ.get("ACCELERATE_USE_DEEPSPEED", "").lower() == "true"


def _in_pieces(config: Any) -> bool:
    """ZeRO-3, and no process has the whole model while completions are drawn."""
    stage = getattr(getattr(config, "deepspeed_plugin", None), "zero_stage", 0)
    return under_deepspeed(config) and stage == 3 and not config.ds3_gather_for_generation


def under_fsdp(config: Any) -> bool:
    """The config or a launcher asks for FSDP."""
    return bool(config.fsdp) or os.environ.get("ACCELERATE_USE_FSDP", "").lower() == "true"


def _fsdp1(config: Any) -> bool:
    """The version before FSDP2: accelerate's default, and not transformers'."""
    given = config.fsdp_config if isinstance(config.fsdp_config, dict) else {}
    version = given.get("version", 2) if config.fsdp else os.environ.get("FSDP_VERSION", "1")
    return under_fsdp(config) and str(version) != "2"


def _trackers(config: Any) -> set[str]:
    given = config.report_to
    return {given} if isinstance(given, str) else set(given or ())


def _overridden(name: str, *keys: str) -> Unread:
    """``generation_kwargs`` goes before a field of its own."""
    keys = keys or (name,)

    def when(config: Any) -> bool:
        return any(key in mapping("generation_kwargs", config.generation_kwargs) for key in keys)

    return Unread(f"{name}", when, f"generation_kwargs sets {' or '.join(keys)}, which goes before it when drawing")


_IMPORTANCE = (
    "vllm_importance_sampling_mode vllm_importance_sampling_clip_max vllm_importance_sampling_clip_min "
    "vllm_importance_sampling_cap"
)
_SERVER = "vllm_server_base_url vllm_server_host vllm_server_port vllm_server_timeout vllm_group_port"
_COLOCATED = (
    "vllm_gpu_memory_utilization vllm_max_model_length vllm_tensor_parallel_size vllm_enable_sleep_mode vllm_model_impl"
)
_FRESH = "every update is on fresh completions (num_iterations, steps_per_generation), so the ratio is 1"
_CLIPPING = ("grpo", "bnpo", "dr_grpo", "dapo", "luspo")

NOTES: tuple[Unread, ...] = (
    # what draws
    _behind(
        "use_vllm",
        f"vllm_mode vllm_structured_outputs_regex vllm_importance_sampling_correction {_SERVER} "
        f"{_COLOCATED} {_IMPORTANCE}",
    ),
    Unread(_SERVER, lambda c: c.use_vllm and c.vllm_mode != "server", "vllm_mode is 'colocate', so there is no server"),
    Unread(
        _COLOCATED,
        lambda c: c.use_vllm and c.vllm_mode == "server",
        "vllm_mode is 'server', and the server has settings of its own",
    ),
    Unread(
        "vllm_group_port",
        lambda c: c.use_vllm and getattr(c, "vllm_sync", None) in {"files", "adapter"},
        "vllm_sync takes the weights another way than through a group of processes",
    ),
    Unread(
        "vllm_server_host vllm_server_port",
        lambda c: c.use_vllm and c.vllm_mode == "server" and c.vllm_server_base_url is not None,
        "vllm_server_base_url names the server",
    ),
    Unread(
        _IMPORTANCE,
        lambda c: c.use_vllm and not c.vllm_importance_sampling_correction,
        "vllm_importance_sampling_correction is false",
    ),
    Unread(
        "use_transformers_continuous_batching use_transformers_paged transformers_continuous_batching_config",
        lambda c: c.use_vllm,
        "use_vllm draws the completions",
    ),
    Unread(
        "transformers_continuous_batching_config",
        lambda c: not c.use_vllm and not getattr(c, "use_transformers_continuous_batching", False),
        "use_transformers_continuous_batching is false",
    ),
    Unread("cache_implementation", lambda c: c.use_vllm, "use_vllm draws the completions"),
    Unread("ds3_gather_for_generation", lambda c: not under_deepspeed(c), "there is no DeepSpeed"),
    *(_overridden(name) for name in ("top_p", "top_k", "min_p", "repetition_penalty", "cache_implementation")),
    _overridden("max_completion_length", "max_new_tokens", "max_tokens"),
    # advantages and loss
    Unread(
        "scale_rewards",
        lambda c: c.advantage is None and c.multi_objective_aggregation == "normalize_then_sum",
        "multi_objective_aggregation 'normalize_then_sum' scales each reward by itself",
    ),
    Unread("delta", _own_loss(*_CLIPPING), "loss_type clips in another way"),
    Unread("epsilon", _own_loss(*_CLIPPING, "cispo"), "loss_type does not clip"),
    Unread(
        "epsilon",
        lambda c: c.objective is None and c.loss_type == "cispo" and c.epsilon_high is not None,
        "loss_type 'cispo' caps the ratio at epsilon_high only",
    ),
    Unread("epsilon_high", _own_loss(*_CLIPPING, "cispo"), "loss_type does not clip"),
    Unread("sapo_temperature_neg sapo_temperature_pos", _own_loss("sapo"), "loss_type is not 'sapo'"),
    Unread("vespo_k_pos vespo_k_neg vespo_lambda_pos vespo_lambda_neg", _own_loss("vespo"), "loss_type is not 'vespo'"),
    Unread(
        "epsilon epsilon_high",
        lambda c: _inert_clip(c) and c.loss_type in _CLIPPING and min(c.epsilon, c.epsilon_high or c.epsilon) > 0,
        f"{_FRESH} and nothing is clipped",
    ),
    Unread("delta", lambda c: _inert_clip(c) and c.loss_type in _CLIPPING and (c.delta or 0) > 1, _FRESH),
    Unread(
        "sapo_temperature_neg sapo_temperature_pos",
        lambda c: _inert_clip(c) and c.loss_type == "sapo",
        f"{_FRESH} and the gate fully open",
    ),
    Unread("use_bias_correction_kl", lambda c: c.beta == 0, "beta is 0, so there is no KL term"),
    _behind("sync_ref_model", "ref_model_mixup_alpha ref_model_sync_steps"),
    _behind("use_adaptive_entropy", "entropy_coef_min entropy_coef_max entropy_coef_delta entropy_target"),
    # fields of transformers that TRL's GRPO has no use for
    Unread(
        "prediction_loss_only eval_accumulation_steps eval_do_concat_batches eval_use_gather_object "
        "include_for_metrics batch_eval_metrics label_names",
        _never,
        "an evaluation of GRPO gathers rewards, no predictions",
    ),
    Unread(
        "label_smoothing_factor average_tokens_across_devices", _never, "GRPO has a loss of its own, without labels"
    ),
    Unread(
        "train_sampling_strategy length_column_name data_seed",
        _never,
        "GRPO's own sampler repeats prompts in an order that shuffle_dataset and seed decide",
    ),
    Unread("do_train do_predict local_rank", _never, "neither TRL nor this project looks at it"),
    # evaluation
    Unread(
        "num_generations_eval per_device_eval_batch_size bf16_full_eval fp16_full_eval eval_verifiers",
        lambda c: not _evaluates(c),
        "eval_strategy is 'no', so there is no evaluation but one that you start yourself",
    ),
    Unread(
        "eval_delay do_eval",
        lambda c: _word(c, "eval_strategy") == "no",
        "eval_strategy is 'no', so training does not stop to evaluate",
    ),
    Unread("eval_steps", lambda c: _word(c, "eval_strategy") != "steps", "only eval_strategy 'steps' counts steps"),
    # length of training, optimizer, schedule
    Unread("num_train_epochs", lambda c: c.max_steps > 0, "max_steps ends training"),
    Unread(
        "warmup_steps",
        lambda c: _word(c, "lr_scheduler_type") in {"constant", "reduce_lr_on_plateau", "greedy"},
        "this lr_scheduler_type has no warmup (constant_with_warmup does)",
    ),
    Unread(
        "adam_beta1 adam_beta2 adam_epsilon",
        lambda c: _word(c, "optim") in {"sgd", "adagrad", "adafactor", "rmsprop"},
        "optim is none of Adam's kind",
    ),
    Unread(
        "optim_target_modules",
        lambda c: not _word(c, "optim").startswith(("galore", "apollo")),
        "only the optimizers galore and apollo choose modules",
    ),
    Unread(
        "activation_checkpointing_kwargs gradient_checkpointing_kwargs",
        lambda c: not (c.gradient_checkpointing or getattr(c, "activation_checkpointing", False)),
        "gradient_checkpointing is false",
    ),
    _behind("use_liger_kernel", "liger_kernel_config"),
    Unread("dataloader_in_order", lambda c: c.dataloader_num_workers == 0, "dataloader_num_workers is 0"),
    Unread("fsdp_config", lambda c: not under_fsdp(c), "there is no FSDP (fsdp)"),
    Unread(
        "ddp_find_unused_parameters ddp_bucket_cap_mb ddp_broadcast_buffers ddp_static_graph ddp_timeout",
        lambda _: process_count() == 1,
        "there is one process",
    ),
    # saving, logging, the hub
    Unread("save_steps", lambda c: _word(c, "save_strategy") != "steps", "only save_strategy 'steps' counts steps"),
    Unread("save_total_limit", lambda c: _word(c, "save_strategy") == "no", "save_strategy is 'no': none are kept"),
    Unread(
        "metric_for_best_model greater_is_better",
        lambda c: (
            not c.load_best_model_at_end
            and _word(c, "save_strategy") != "best"
            and _word(c, "lr_scheduler_type") != "reduce_lr_on_plateau"
        ),
        "load_best_model_at_end is false and nothing else looks for the best one",
    ),
    Unread("logging_steps", lambda c: _word(c, "logging_strategy") != "steps", "only logging_strategy 'steps' counts"),
    _behind("log_completions", "num_completions_to_print log_unique_prompts log_multimodal"),
    _behind("push_to_hub", "hub_strategy hub_always_push hub_revision"),
    Unread(
        "hub_private_repo",
        lambda c: not c.push_to_hub and c.log_completions_hub_repo is None,
        "nothing goes to the hub (push_to_hub, log_completions_hub_repo)",
    ),
    Unread(
        "trackio_space_id trackio_bucket_id trackio_static_space_id",
        lambda c: not _trackers(c) & {"trackio", "all"},
        "report_to has no trackio",
    ),
    Unread("run_name project", lambda c: not _trackers(c) - {"none", "tensorboard"}, "report_to names no tracker"),
    # ours, where something else is known only while it runs
    Unread(
        "rollout rollout_rows",
        lambda c: _fsdp1(c) or _in_pieces(c),
        "the parameters are sharded (FSDP1, or ZeRO-3 without ds3_gather_for_generation), so TRL draws the "
        "completions, all rows at once",
    ),
)
"""Rows that make a note."""

PROBLEMS: tuple[Unread, ...] = (
    Unread(
        "engine engine_tokens_per_pass",
        lambda c: c.engine != "stock" and c.neftune_noise_alpha is not None,
        "with noise on embeddings (neftune_noise_alpha) every pass is TRL's own",
        "leave it unset, or remove neftune_noise_alpha",
    ),
    Unread(
        "engine_tokens_per_pass",
        lambda c: process_count() > 1 or under_fsdp(c) or under_deepspeed(c),
        "it works on a single device only, where no other process waits for a pass",
        "leave it unset, or train in one process",
    ),
    Unread(
        "rollout_rows",
        lambda c: rollout_of(c) == "stock",
        "the completions are not drawn by rollout: auto",
        "set rollout: auto, or leave it unset",
    ),
    Unread(
        "vllm_sync",
        lambda c: not c.use_vllm,
        "no vLLM server draws the completions",
        "set use_vllm: true and vllm_mode: server, or leave it unset",
    ),
    Unread(
        "vllm_sync",
        lambda c: c.use_vllm and c.vllm_mode != "server",
        "vllm_mode is 'colocate', so there is no server",
        "set vllm_mode: server, or leave it unset",
    ),
    Unread(
        "report_steps",
        lambda c: bool(c.report_steps) and c.record is None and not sets_parts(c),
        "a report needs the record, which is kept where a part of ours is set",
        "set record: true, or remove report_steps",
    ),
)
"""Rows that refuse the config: certain, and about an option of ours."""

MODEL_NOTES: tuple[Unread, ...] = (
    _behind(
        "use_peft",
        "lora_r lora_alpha lora_dropout lora_target_modules lora_target_parameters lora_task_type "
        "lora_modules_to_save use_rslora use_dora",
    ),
    _behind("load_in_4bit", "bnb_4bit_quant_type use_bnb_nested_quant bnb_4bit_quant_storage"),
)
"""The same for the model's options of a command line."""


def unread_notes(config: Any, rows: Iterable[Unread] = NOTES) -> list[str]:
    """One sentence for each field that is set and not read."""
    found = {}
    for row in rows:
        for name in _set(config, row.fields):
            if name not in found and row.when(config):
                found[name] = f"{name} ({_shown(config, name)}) is not read: {row.why}."
    return list(found.values())


def unread_problems(config: Any) -> list[str]:
    """The same for options of ours, which must be read."""
    return [
        f"{name} ({_shown(config, name)}) would be read by nobody: {row.why}. To go on: {row.way_out}."
        for row in PROBLEMS
        for name in _set(config, row.fields)
        if row.when(config)
    ]


def rollout_func_problems(config: Any) -> list[str]:
    """Rollout fields that are set beside a trainer's ``rollout_func``, which replaces them."""
    return [
        f"{name} ({_shown(config, name)}) would be read by nobody: rollout_func draws the completions. Remove one of "
        "the two."
        for name in _set(config, ("rollout", "rollout_rows"))
    ]


def why_unread(config: Any, name: str) -> str | None:
    """The reason why a field is not read, set or not; None if it is read."""
    rows = (row for row in (*NOTES, *PROBLEMS) if name in row.fields)
    return next((row.why for row in rows if row.when(config)), None)


def _set(config: Any, names: Sequence[str]) -> list[str]:
    empty: tuple[Any, ...] = ([], {})  # what an unset list or mapping of ours is normalised to
    return [name for name in changed_fields(config, names) if getattr(config, name) not in empty]


def _shown(config: Any, name: str) -> str:
    value = getattr(config, name)
    return repr(getattr(value, "value", value))
