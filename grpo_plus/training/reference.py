"""A reference policy that is refreshed while a LoRA adapter trains: a frozen copy of the adapter, no second model."""

import copy
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from peft import PeftConfig, PeftModel
from transformers import TrainerCallback

from grpo_plus.recipe.parts import refresh_problems
from grpo_verifiers.errors import raise_all

NAME = "ref"
"""The adapter that TRL uses for reference passes, where there is one of this name."""

_OF_DEFAULT = re.compile(r"\.default(?=\.|\Z)")


@contextmanager
def hidden_sync(args: Any, *, hide: bool) -> Iterator[None]:
    """Keep `sync_ref_model` from a host that would refuse it, for the time of the block."""
    wanted = args.sync_ref_model
    if hide:
        args.sync_ref_model = False
    try:
        yield
    finally:
        args.sync_ref_model = wanted


def is_adapter(model: Any, arguments: Iterable[Any]) -> bool:
    """Whether a trainer made with these arguments will train an adapter."""
    return isinstance(model, PeftModel) or any(isinstance(argument, PeftConfig) for argument in arguments)


def adapter_problems(model: Any, args: Any, *, sharded: bool) -> list[str]:
    """Why the reference of this adapter cannot be refreshed; empty when it can."""
    problems = []
    kind = str(getattr(model.peft_config.get("default"), "peft_type", "missing")).rpartition(".")[2]
    if kind != "LORA":
        problems.append(
            f"sync_ref_model keeps a frozen copy of a LoRA adapter named 'default', and this one is {kind}: use LoRA, "
            "train all weights, or remove sync_ref_model."
        )
    if args.ref_model_mixup_alpha != 1.0:
        problems.append(
            f"ref_model_mixup_alpha is {args.ref_model_mixup_alpha:g}: with LoRA it must be 1.0. An adapter's weight "
            "is a product of two factors, and mixing factors is not mixing policies."
        )
    if sharded:
        problems.append(
            "sync_ref_model with LoRA copies adapter weights, which DeepSpeed ZeRO-3 has taken apart: use DDP, FSDP "
            "or ZeRO-2, or remove sync_ref_model."
        )
    return problems


class AdapterReference(TrainerCallback):
    """Adds the frozen copy, and makes it equal to the policy again every so many optimizer steps.

    Checkpoints hold it as one more adapter, in the folder ``ref``, and resuming reads it from there.

    Args:
        model: the unwrapped PEFT model; its adapter 'default' is what trains.
        every: optimizer steps between two refreshes.
    """

    def __init__(self, model: Any, *, every: int) -> None:
        self.model = model
        self.every = every
        if NAME not in model.peft_config:
            config = copy.deepcopy(model.peft_config["default"])
            config.init_lora_weights = True  # other ways to start an adapter change the base weights
            model.add_adapter(NAME, config)
            model.set_adapter("default")
            self.refresh()

    @torch.no_grad()
    def refresh(self) -> None:
        """π_ref ← π_θ."""
        weights = dict(self.model.named_parameters())
        for name, weight in weights.items():
            if _OF_DEFAULT.search(name):
                copied = weights[_OF_DEFAULT.sub(f".{NAME}", name)]
                copied.copy_(weight)
                copied.requires_grad_(requires_grad=False)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002 - the host's call
        """Refresh when it is time."""
        if state.global_step % self.every == 0:
            self.refresh()


def refresh_adapter(model: Any, args: Any, accelerator: Any) -> AdapterReference:
    """The callback that refreshes a LoRA reference.

    Raises:
        ConfigError: it cannot be refreshed here.
    """
    plugin = getattr(accelerator.state, "deepspeed_plugin", None)
    sharded = plugin is not None and plugin.zero_stage == 3
    raise_all(refresh_problems(args) + adapter_problems(model, args, sharded=sharded))
    return AdapterReference(model, every=args.ref_model_sync_steps)
