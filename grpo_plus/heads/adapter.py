"""A separate LoRA adapter of a head on the policy's base, also in 4 bits: no second base model.

It is missing from PEFT's list of adapters and from the model's ``state_dict``, so saving, merging, vLLM and TRL's
reference do not see it. Its weights are in the checkpoints of its hook. The policy's optimizer and DDP skip it because
it requires a gradient only while it is `active`.
"""

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from peft.tuners.tuners_utils import BaseTunerLayer
from peft.utils import AuxiliaryTrainingWrapper
from torch import nn

from grpo_plus.engine.dropout import drops, without_dropout
from grpo_plus.heads.trunk import HeadError, Trunk, unfrozen


class AdapterTrunk(Trunk):
    """Hidden states of the policy's base with an adapter of this ``name``, which has no effect initially.

    It is on the same layers as the policy's LoRA adapter, in float32 and without dropout.

    Args:
        adapted: the policy, a PEFT model.
        name: a unique name of the adapter.
        rank: its rank; None: the policy's.
        alpha: its scale; None: the policy's ratio of scale to rank.
        freeze: parts of the model (`FREEZABLE`) whose adapter weights stay 0.
        seed: seed of its initial weights; the run's generators do not change.

    Raises:
        HeadError: the policy has no LoRA adapter, or has an adapter of this name.
    """

    def __init__(
        self,
        adapted: Any,
        name: str,
        *,
        rank: int | None = None,
        alpha: float | None = None,
        freeze: Sequence[str] = (),
        seed: int = 0,
    ) -> None:
        kind = str(getattr(getattr(adapted, "peft_type", None), "value", "none"))
        if kind != "LORA":
            raise HeadError(f"a separate adapter needs a LoRA adapter, and the policy has {kind}.")
        self.name = name
        self._adapted = adapted
        _add(adapted, name, rank, alpha, seed)
        pieces = f".{name}."
        self._all = {key: p for key, p in adapted.named_parameters() if pieces in f"{key}."}
        super().__init__(adapted.get_base_model(), unfrozen(self._all.items(), freeze))

    @contextmanager
    def active(self) -> Iterator[None]:
        """Replace the policy's adapter inside the block; the policy's weights require no gradient there."""
        with without_dropout(self.model, drops), preserved_adapters(self._adapted) as layers:
            for layer in layers:
                _activate(layer, self.name)
            own = {id(parameter) for parameter in self._own.values()}
            for parameter in self._adapted.parameters():
                if parameter.requires_grad is not (id(parameter) in own):
                    parameter.requires_grad_(id(parameter) in own)
            yield


@contextmanager
def preserved_adapters(model: nn.Module) -> Iterator[list[Any]]:
    """Restore active adapters and ``requires_grad`` flags at the end; yields the layers with adapters."""
    flags = [(parameter, parameter.requires_grad) for parameter in model.parameters()]
    layers = [m for m in model.modules() if isinstance(m, BaseTunerLayer | AuxiliaryTrainingWrapper)]
    states = [(layer, list(layer.active_adapters), layer.disable_adapters) for layer in layers]
    try:
        yield layers
    finally:
        for layer, names, disabled in states:
            layer.set_adapter(names)
            layer.enable_adapters(enabled=not disabled)
        before = {id(parameter): flag for parameter, flag in flags}
        for parameter in model.parameters():
            parameter.requires_grad_(before.get(id(parameter), False))


def _activate(layer: Any, name: str) -> None:
    if isinstance(layer, AuxiliaryTrainingWrapper):  # fully trained by the policy: the base module runs
        layer.set_adapter([])
        return
    if layer.disable_adapters:
        layer.enable_adapters(enabled=True)
    # Layers of separately trained tokens (trainable_token_indices) have no weights of this name.
    present = any(name in getattr(layer, part, ()) for part in layer.adapter_layer_names)
    layer.set_adapter([name] if present else [])


def _add(adapted: Any, name: str, rank: int | None, alpha: float | None, seed: int) -> None:
    policy = adapted.peft_config[adapted.active_adapters[0]]
    if any(f".{name}." in f"{key}." for key, _ in adapted.named_parameters()) or name in adapted.peft_config:
        raise HeadError(f"the policy has an adapter named {name!r} already, a name reserved for a head: rename it.")
    config: Any = copy.deepcopy(policy)
    config.r = policy.r if rank is None else rank
    config.lora_alpha = policy.lora_alpha * config.r / policy.r if alpha is None else alpha
    config.lora_dropout, config.bias, config.use_dora = 0.0, "none", False
    config.init_lora_weights = True  # other initializations change the base weights
    config.modules_to_save = config.trainable_token_indices = config.layer_replication = None
    config.rank_pattern, config.alpha_pattern, config.inference_mode = {}, {}, False
    with preserved_adapters(adapted), torch.random.fork_rng():
        torch.manual_seed(seed)
        adapted.add_adapter(name, config)
    del adapted.peft_config[name]
    for module in adapted.modules():
        if isinstance(module, BaseTunerLayer):
            module.register_state_dict_post_hook(partial(_leave_out, name))
    for key, parameter in adapted.named_parameters():
        if f".{name}." in f"{key}.":
            parameter.data = parameter.data.float()


def _leave_out(name: str, _module: nn.Module, state: dict[str, Any], prefix: str, _metadata: Any) -> None:
    for key in [key for key in state if key.startswith(prefix) and f".{name}." in f"{key}."]:
        del state[key]
