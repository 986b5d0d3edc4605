"""TRL's vLLM path: another server or engine, other weight updates, sampling parameters."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

from grpo_plus.trl.host import Generation, Host, temporary_attribute

if TYPE_CHECKING:
    import torch


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
