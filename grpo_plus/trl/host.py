"""Attributes and methods of TRL in use, as Protocols: mypy checks their use, `seam_problems` the installed TRL."""

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator, MutableMapping

    import torch
    from accelerate import Accelerator
    from torch import nn
    from transformers import PreTrainedTokenizerBase, TrainerCallback, TrainerControl, TrainerState
    from transformers.trainer_callback import CallbackHandler
    from trl import GRPOConfig


class Loop(Protocol):
    """Attributes and methods of transformers' ``Trainer`` in use: the training loop."""

    _globalstep_last_logged: int
    _total_loss_scalar: float
    _tr_loss: "torch.Tensor"
    accelerator: "Accelerator"
    args: "GRPOConfig"
    callback_handler: "CallbackHandler"
    control: "TrainerControl"
    current_gradient_accumulation_steps: int
    eval_dataset: Any
    hub_model_id: str | None
    is_deepspeed_enabled: bool
    is_fsdp_enabled: bool
    lr_scheduler: Any
    model: "nn.Module"
    model_wrapped: "nn.Module"
    optimizer: Any
    processing_class: "PreTrainedTokenizerBase"
    state: "TrainerState"
    train_dataset: Any

    def _determine_best_metric(self, metrics: dict[str, float], trial: Any) -> bool: ...
    def _evaluate(self, trial: Any, ignore_keys_for_eval: Any, skip_scheduler: bool = False) -> dict[str, float]: ...
    def _finalize_training(self, trial: Any, num_train_samples: int, start_time: float) -> Any: ...
    def _get_output_dir(self, trial: Any) -> str: ...
    def _init_training_state(
        self,
        max_steps: int,
        num_update_steps_per_epoch: int,
        num_train_epochs: int,
        resume_from_checkpoint: str | None,
        trial: Any,
    ) -> tuple[int, int]: ...
    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None: ...
    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None: ...
    def _load_rng_state(self, checkpoint: str | None) -> None: ...
    def _maybe_log_save_evaluate(self, tr_loss: Any, grad_norm: Any, *further: Any, **keywords: Any) -> None: ...
    def _push_from_checkpoint(self, checkpoint_folder: str) -> None: ...
    def _save(self, output_dir: str | None = None, state_dict: Any = None) -> None: ...
    def add_callback(self, callback: "TrainerCallback") -> None: ...
    def evaluation_loop(self, dataloader: Any, description: str) -> Any: ...
    def is_world_process_zero(self) -> bool: ...
    def log(self, logs: dict[str, float], start_time: float | None = None) -> None: ...
    def push_to_hub(self, **kwargs: Any) -> Any: ...
    def remove_callback(self, callback: "type[TrainerCallback]") -> None: ...
    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None: ...
    def train(self, resume_from_checkpoint: str | bool | None = None) -> Any: ...


class Card(Protocol):
    """Methods of ``_BaseTrainer`` in use: the base of TRL's trainers."""

    def create_model_card(self, model_name: Any = None, dataset_name: Any = None, tags: Any = None) -> None: ...


class Host(Loop, Card, Protocol):
    """Attributes and methods of ``GRPOTrainer`` and its bases in use."""

    _buffered_inputs: list[dict[str, Any]] | None
    _current_train_step_time: float
    _entropy_window_stats: "torch.Tensor | None"
    _last_loaded_step: int
    _last_world_entropy: float
    _logs: "dict[str, Any]"
    _metrics: "dict[str, MutableMapping[str, list[float]]]"
    _step: int
    _sync_tool_dicts: list[dict[str, Any]]
    _tokenizer: "PreTrainedTokenizerBase"
    aux_loss_enabled: bool
    beta: float
    chat_template: str | None
    chat_template_kwargs: dict[str, Any]
    entropy_coef: float
    eos_token_ids: list[int]
    loss_type: str
    max_completion_length: int | None
    max_tool_calling_iterations: int
    num_generations: int
    num_generations_eval: int
    num_iterations: int
    pad_to_multiple_of: int | None
    ref_model: "nn.Module | None"
    off_policy_mask_threshold: float | None
    reward_func_names: list[str]
    reward_funcs: list[Any]
    reward_weights: "torch.Tensor"
    rollout_func: Any
    router_aux_loss_coef: float
    shuffle_dataset: bool
    temperature: float
    tools: list[Any]
    top_entropy_quantile: float
    use_adaptive_entropy: bool
    use_vllm: bool
    vllm_generation: Any

    def _calculate_rewards(self, inputs: Any, prompts: Any, completions: Any, completion_ids_list: Any) -> Any: ...
    def _compute_loss(self, model: Any, inputs: Any) -> "torch.Tensor": ...
    def _generate(self, prompts: Any) -> Any: ...
    def _generate_and_score_completions(self, inputs: Any) -> dict[str, Any]: ...
    def _generate_single_turn(self, prompt_ids: Any) -> Any: ...
    def _get_per_token_logps_and_entropies(  # noqa: PLR0917 - the host's signature
        self,
        model: Any,
        input_ids: "torch.Tensor",
        attention_mask: "torch.Tensor",
        logits_to_keep: int,
        batch_size: int | None = None,
        compute_entropy: bool = False,
        **further: Any,
    ) -> Any: ...
    def _log_metric(self, name: str, value: float) -> None: ...
    def _get_train_sampler(self, dataset: Any = None) -> Any: ...
    def _prepare_inputs(self, generation_batch: Any) -> Any: ...
    def _tool_call_loop(self, prompts: Any, prompt_ids: Any, completion_ids: Any, completions: Any) -> Any: ...
    def _save_checkpoint(self, model: Any, trial: Any) -> None: ...
    def get_high_entropy_mask(
        self, entropies: "torch.Tensor", mask: "torch.Tensor", threshold: float
    ) -> "torch.Tensor": ...
    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any) -> "torch.Tensor": ...
    @staticmethod
    def get_off_policy_mask(
        advantages: "torch.Tensor",
        per_token_logps: "torch.Tensor",
        sampling_per_token_logps: "torch.Tensor",
        mask: "torch.Tensor",
        off_policy_threshold: float,
    ) -> "torch.Tensor": ...


class Generation(Protocol):
    """Attributes and methods of ``VLLMGeneration`` in use: TRL's client of vLLM."""

    llm: Any

    def _iter_named_params(self) -> "Iterator[tuple[str, torch.Tensor]]": ...
    def sync_weights(self) -> None: ...


class Repeats(Protocol):
    """Attributes of ``RepeatSampler`` in use: TRL's sampler of training rows."""

    batch_size: int
    mini_repeat_count: int
    repeat_count: int

    def __len__(self) -> int: ...


@contextmanager
def temporary_attribute(owner: Any, name: str, value: Any) -> "Iterator[Any]":
    """Set an attribute inside the block and restore it afterwards; yields the original value."""
    original = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield original
    finally:
        setattr(owner, name, original)
