"""TRL's sampling: sizes, the buffer of micro-batches, step counts, token ids of prompts and texts, and vLLM."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

from grpo_plus.trl.host import Generation, Host, Repeats, temporary_attribute

if TYPE_CHECKING:
    import torch


STEP_STATE = ("_current_train_step_time", "_entropy_window_stats", "_last_world_entropy", "_step", "entropy_coef")
"""Attributes of the trainer that a micro-batch changes."""


def current_group_size(host: Host) -> int:
    """Completions per prompt in the current mode."""
    return host.num_generations if host.model.training else host.num_generations_eval


def sampler_sizes(sampler: Repeats) -> tuple[int, int, int, int]:
    """Prompts per batch, copies per prompt, repeats per batch, and batches per pass of TRL's sampler."""
    prompts, copies, repeats = sampler.batch_size, sampler.mini_repeat_count, sampler.repeat_count
    return prompts, copies, repeats, len(sampler) // (prompts * copies * repeats)


def micro_step(host: Host) -> int:
    """Number of micro-batches trained on since the trainer was created."""
    return int(host._step)


def skip_step(host: Host) -> None:
    """Count a micro-batch without training on it, which keeps generation in phase; switch to training mode as TRL."""
    host.model_wrapped.train()
    host._step += 1


def buffered_batches(host: Host) -> list[dict[str, Any]] | None:
    """Micro-batches of the current generation batch; None before the first one."""
    return host._buffered_inputs


def unfinished_batches(host: Host) -> list[dict[str, Any]] | None:
    """Micro-batches of a generation batch with steps left; None between two generation batches."""
    block = host.args.steps_per_generation * host.num_iterations
    return host._buffered_inputs if host._step % block else None


def restore_batches(host: Host, step: int, batches: list[dict[str, Any]] | None) -> None:
    """Set the micro-batch count and the micro-batches of the current generation batch."""
    host._step, host._buffered_inputs = step, batches
    host._current_train_step_time = 0.0


def reorder_buffer(host: Host, inputs: Any, arrange: Callable[[Any], None]) -> Any:
    """Reorder TRL's buffer in place with ``arrange``; returns the micro-batch now at the position of ``inputs``."""
    if not host.model.training:
        return inputs
    arrange(host._buffered_inputs)
    assert host._buffered_inputs is not None
    return host._buffered_inputs[host._step % host.args.steps_per_generation]


def mark_optimizer_step(optimizer: Any, *, skipped: bool, by: str) -> None:
    """Mark the last optimizer step as skipped or not: the learning rate schedule advances only if it was not.

    Uses accelerate's mark for overflows of the gradient scaler; raises an error naming the settings ``by`` without it.
    """
    optimizer._is_overflow = skipped
    if optimizer.step_was_skipped is not skipped:
        raise RuntimeError(f"the learning rate's schedule cannot be held with this version of accelerate: remove {by}.")


def last_entropy(host: Host) -> float:
    """The entropy that drives TRL's adaptive entropy bonus."""
    return float(host._last_world_entropy)


def set_last_entropy(host: Host, entropy: float) -> None:
    """Set the entropy that drives TRL's adaptive entropy bonus."""
    host._last_world_entropy = entropy


def stop_token_ids(host: Host) -> list[int]:
    """Tokens that end or pad a completion; a completion whose last token is none of these was cut off."""
    return [*host.eos_token_ids, host._tokenizer.pad_token_id]


def padding_token_id(host: Host) -> int:
    """The token that pads prompts and completions."""
    token: int = host._tokenizer.pad_token_id
    return token


def encode_prompt(host: Host, prompt: Any) -> list[int]:
    """Token ids of a row's prompt without tools; empty if it contains more than text."""
    if isinstance(prompt, str):
        return [int(token) for token in host._tokenizer(prompt)["input_ids"]]
    messages = isinstance(prompt, list) and all(isinstance(message.get("content"), str) for message in prompt)
    if not messages or host._tokenizer.chat_template is None:
        return []
    keywords = host.args.chat_template_kwargs or {}
    ids: Any = host._tokenizer.apply_chat_template(prompt, add_generation_prompt=True, return_dict=True, **keywords)
    return [int(token) for token in ids["input_ids"]]


def use_vllm_server(host: Host, server: Any) -> None:
    """Connect TRL's vLLM path to ``server``, which implements the two methods that TRL calls.

    TRL then applies its importance sampling correction, as to completions of its own vLLM client.
    """
    host.use_vllm = True
    host.vllm_generation = server
    host._last_loaded_step = -1


def build_vllm_with(make: Callable[..., Any]) -> AbstractContextManager[Any]:
    """Inside the block, TRL calls ``make`` in place of vLLM's ``LLM``, with the same keywords."""
    import trl.generation.vllm_generation as trl_vllm

    imported = getattr(trl_vllm, "LLM", None) is not None  # without vLLM, TRL reports that itself
    return temporary_attribute(trl_vllm, "LLM", make) if imported else nullcontext()


def sync_weights_with(host: Host, push: Callable[[], None]) -> None:
    """Replace TRL's weight update of the vLLM in this process by ``push``."""
    host.vllm_generation.sync_weights = push


def weights_for_vllm(host: Host) -> "Iterator[tuple[str, torch.Tensor]]":
    """All policy weights in the form that TRL sends to vLLM, gathered and merged; every rank must consume them all."""
    generation: Generation = host.vllm_generation
    yield from generation._iter_named_params()


def vllm_sampling_parameters(host: Host) -> dict[str, Any]:
    """The sampling options as fields of a completion request to vLLM."""
    args = host.args
    parameters = {
        "temperature": args.temperature,
        "top_p": args.top_p,
        "top_k": args.top_k,
        "min_p": args.min_p or 0.0,
        "repetition_penalty": args.repetition_penalty,
        "max_tokens": host.max_completion_length,
        "stop_token_ids": [token for token in host.eos_token_ids if token is not None],
    }
    if args.vllm_structured_outputs_regex is not None:
        parameters["structured_outputs"] = {"regex": args.vllm_structured_outputs_regex}
    return {**parameters, **(args.generation_kwargs or {})}
