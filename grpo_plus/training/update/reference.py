"""Refreshed reference policies: a frozen copy of a LoRA adapter, or the weights of a second model."""

import copy
import re
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch
from peft import PeftConfig, load_peft_weights, set_peft_model_state_dict
from torch import Tensor
from torch.nn import Parameter

from grpo_plus.training.hooks import Setup, TrainerStage
from grpo_plus.trl.host import Host, temporary_attribute
from grpo_plus.trl.ranks import (
    gathered,
    is_fsdp2,
    on_disk,
    piece,
    release,
    spread_like,
    unwrapped_model,
    whole,
    zero_stage,
)
from grpo_verifiers.errors import ConfigError, raise_all
from grpo_verifiers.redaction import get_logger

logger = get_logger(__name__)

NAME = "ref"
"""TRL uses an adapter of this name for reference passes."""
_OF_DEFAULT = re.compile(r"\.default(?=\.|\Z)")


def adapter_problems(model: Any, args: Any, *, flat: bool) -> list[str]:
    """Return the reasons why the reference of this adapter cannot be refreshed."""
    problems = []
    kind = str(getattr(model.peft_config.get("default"), "peft_type", "missing")).rpartition(".")[2]
    if kind != "LORA":
        problems.append(
            f"sync_ref_model needs a frozen copy of a LoRA adapter named 'default', and this one is {kind}: use LoRA, "
            "train all weights, or remove sync_ref_model."
        )
    if args.ref_model_mixup_alpha != 1.0:
        problems.append(
            f"ref_model_mixup_alpha is {args.ref_model_mixup_alpha:g}: with LoRA it must be 1.0. An adapter's weight "
            "is a product of two factors, and mixing factors is not mixing policies."
        )
    if flat:
        problems.append(
            "sync_ref_model with LoRA copies adapter weights, and FSDP1 lays all weights out in one row, whose pieces "
            "do not fit each other: use FSDP2, or remove sync_ref_model."
        )
    return problems


def add_copy(model: Any) -> None:
    """Add an adapter for reference passes, like the trained one but with random weights."""
    config = copy.deepcopy(model.peft_config["default"])
    config.init_lora_weights = True  # other ways to start an adapter change the base weights
    model.add_adapter(NAME, config)
    model.set_adapter("default")
    for weight, copied in pairs_of(model).values():  # PEFT makes float32 of half precision, TRL not always
        copied.data = copied.data.to(weight.dtype)


@torch.no_grad()
def copy_weights(model: Any) -> None:
    """Set π_ref ← π_θ, and no gradient for π_ref."""
    pairs = pairs_of(model)
    sources, copies = zip(*pairs.values(), strict=True)
    with whole(sources), whole(copies, change=True):
        for weight, copied in pairs.values():
            copied.copy_(weight)
    for copied in copies:
        copied.requires_grad_(requires_grad=False)


def pairs_of(model: Any) -> dict[str, tuple[Tensor, Tensor]]:
    """Return the weights of the trained adapter, each with its copy, by the name of the copy."""
    weights = dict(model.named_parameters())
    names = {name: _OF_DEFAULT.sub(f".{NAME}", name) for name in weights if _OF_DEFAULT.search(name)}
    return {copied: (weights[name], weights[copied]) for name, copied in names.items()}


class AdapterReference(TrainerStage):
    """Adds the frozen copy for `sync_ref_model`, and refreshes it every ``ref_model_sync_steps`` optimizer steps.

    Checkpoints have it as one more adapter, in the folder ``ref``, and resuming reads it from there. FSDP and DeepSpeed
    load only trained weights: there it is among the tensors of the hooks, too. ``refreshed`` is the optimizer step of
    the last refresh.
    """

    name = "reference"

    def __init__(self) -> None:
        self.refreshed = 0
        self._adapts = False
        self._active = False

    def before_loading(self, setup: Setup) -> None:
        self._adapts = setup.adapted

    def loading(self, args: Any) -> AbstractContextManager[Any]:
        """Hide `sync_ref_model` from the host, which refuses it with adapters."""
        return temporary_attribute(args, "sync_ref_model", args.sync_ref_model and not self._adapts)

    def after_loading(self, host: Host) -> None:
        super().after_loading(host)
        if not (self._adapts and host.args.sync_ref_model):
            return
        self._active = True
        model = unwrapped_model(host)
        flat = host.is_fsdp_enabled and not is_fsdp2(host)
        raise_all(adapter_problems(model, host.args, flat=flat))
        if NAME not in model.peft_config:
            add_copy(model)
            self.refresh()

    @torch.no_grad()
    def refresh(self) -> None:
        """Set π_ref ← π_θ, if it is a copy of an adapter."""
        if not self._active:
            return
        copy_weights(unwrapped_model(self.host))
        self.refreshed = int(self.host.state.global_step)

    def _copies(self) -> dict[str, Tensor]:
        return {name: copied for name, (_, copied) in pairs_of(unwrapped_model(self.host)).items()}

    def tensors(self) -> dict[str, Tensor]:
        """The copy under FSDP and DeepSpeed. All ranks gather it."""
        sharded = self.host.is_deepspeed_enabled or self.host.is_fsdp_enabled
        if not (self._active and sharded) or self.host.args.save_only_model:
            return {}
        copies = self._copies()
        with whole(copies.values()):
            return {name: gathered(copied).detach().cpu().clone() for name, copied in copies.items()}

    @torch.no_grad()
    def load_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        copies = self._copies()
        if copies.keys() != tensors.keys():
            raise ValueError("it is that of another adapter")
        with whole(copies.values(), change=True):
            for name, copied in copies.items():
                copied.copy_(spread_like(tensors[name], copied))

    def on_step_end(self, *_: Any, **__: Any) -> None:
        args = self.host.args
        if args.sync_ref_model and self.host.state.global_step % args.ref_model_sync_steps == 0:
            self.refresh()

    def state_dict(self) -> dict[str, Any]:
        """Step of the last refresh; the weights are in the folder ``ref``."""
        return {"refreshed": self.refreshed} if self._active else {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if not self._active:
            raise ValueError("no reference is refreshed without an adapter and sync_ref_model")
        self.refreshed = int(state["refreshed"])


class ModelReference(TrainerStage):
    """Saves the reference model that TRL refreshes; ``refreshed`` is the optimizer step of the last refresh.

    Before the first refresh it equals the loaded model and is not saved. FSDP and ZeRO-3 shards are saved by rank.
    """

    name = "reference_model"

    def __init__(self) -> None:
        self.refreshed = 0
        self._active = False

    def after_loading(self, host: Host) -> None:
        super().after_loading(host)
        if host.ref_model is None or not host.args.sync_ref_model:
            return
        self._active = True
        self.rank_local = host.is_fsdp_enabled or zero_stage(host) == 3
        if any(on_disk(weight) for weight in host.ref_model.parameters()):
            text = (
                "sync_ref_model: DeepSpeed ZeRO-3 stores the reference model on a disk (offload_param: nvme), so "
                "checkpoints could not contain it: set offload_param_device to cpu or none."
            )
            raise ConfigError([text])

    def on_step_end(self, *_: Any, **__: Any) -> None:
        """Count a refresh: TRL's callback makes it after the same step."""
        step = int(self.host.state.global_step)
        if self._active and step % self.host.args.ref_model_sync_steps == 0:
            self.refreshed = step

    def _weights(self) -> dict[str, Tensor]:
        """Return the weights of the reference by name, this rank's shard of each."""
        return {name: piece(weight) for name, weight in self._named()}

    def _named(self) -> Iterator[tuple[str, Parameter]]:
        assert self.host.ref_model is not None
        return self.host.ref_model.named_parameters()

    @property
    def _is_saved(self) -> bool:
        return self._active and self.refreshed > 0 and not self.host.args.save_only_model

    def tensors(self) -> dict[str, Tensor]:
        return self._weights() if self._is_saved else {}

    @torch.no_grad()
    def load_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        weights = self._weights()
        if weights.keys() != tensors.keys():
            raise ValueError("it is that of another model")
        for name, weight in weights.items():
            actual, expected = ((tuple(one.shape), one.dtype) for one in (tensors[name], weight))
            if actual != expected:
                raise ValueError(f"{name} is {actual[0]} of {actual[1]}, expected {expected[0]} of {expected[1]}")
            weight.copy_(tensors[name])
        for _, parameter in self._named():
            release(parameter)

    def state_dict(self) -> dict[str, Any]:
        return {"refreshed": self.refreshed, "kept": self._is_saved} if self._active else {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if not self._active:
            raise ValueError("no second model is refreshed without sync_ref_model, or with an adapter")
        moved, self.refreshed = self.refreshed, int(state["refreshed"])
        if (moved or self.refreshed) and not state["kept"] and self.host.accelerator.is_main_process:
            logger.warning(
                "sync_ref_model: the checkpoint does not contain the reference of step %d, so the run continues with "
                "the loaded one. The KL term differs until the reference is refreshed.",
                self.refreshed,
            )


def load_adapter(host: Host, folder: Path) -> None:
    """Load a warm-started adapter into a new trainer's adapter; its float32 weights stay in float32.

    TRL's reference is the base without adapter, not the model at the start of the run: with a KL term it gets a frozen
    copy of the warm-started adapter.
    """
    model = unwrapped_model(host)
    adapter = [weight for weight in model.parameters() if weight.requires_grad]
    with whole(adapter, change=True):
        _load_weights(model, folder)
    if host.beta != 0.0 and NAME not in model.peft_config:
        add_copy(model)
    if NAME in model.peft_config:
        copy_weights(model)


def _load_weights(model: Any, folder: Path) -> None:
    try:
        set_peft_model_state_dict(model, load_peft_weights(str(folder), device="cpu"))
    except RuntimeError as error:
        if "size mismatch" not in str(error):
            raise
        then, now = PeftConfig.from_pretrained(str(folder)).to_dict(), model.peft_config["default"].to_dict()
        other = ", ".join(
            f"{key} {then[key]} then, {now[key]} now" for key in ("r", "target_modules") if then[key] != now[key]
        )
        text = f"warm_start: this run began with the adapter in {folder}, whose shapes are not this config's"
        raise ConfigError([f"{text} ({other or 'another model'}): put the options of LoRA back."]) from error
