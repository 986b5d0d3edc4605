"""The reference policy of a full model: its refreshing in rounds, and in checkpoints once something has moved it."""

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from grpo_plus import _trl
from grpo_plus._trl import Host
from grpo_plus.training.hooks import Hook
from grpo_plus.training.pieces import on_disk, piece, release
from grpo_verifiers.redaction import get_logger

logger = get_logger(__name__)


class ModelReference(Hook):
    """Keeps the weights that TRL or a round refreshes; ``refreshed`` is the optimizer step of the last time.

    A reference that has not moved is what the model was loaded from, and takes no room. One that FSDP or ZeRO-3 has
    sharded is kept rank by rank.
    """

    name = "reference_model"

    def __init__(self, *, by_rounds: bool = False) -> None:
        self.refreshed = 0
        self._by_rounds = by_rounds
        self._active = False
        self._away = False

    def after_loading(self, host: Host) -> None:
        """Look for a second model, and at how it is held."""
        super().after_loading(host)
        if host.ref_model is None or not (host.args.sync_ref_model or self._by_rounds):
            return
        self._active = True
        self.rank_local = host.is_fsdp_enabled or _trl.zero_stage(host) == 3
        self._away = any(on_disk(weight) for weight in host.ref_model.parameters())
        if self._away and host.accelerator.is_main_process:
            logger.warning(
                "%s: DeepSpeed ZeRO-3 keeps the reference model on a disk (offload_param: nvme), so checkpoints cannot "
                "hold it. A resumed run starts with the reference as it was loaded, until the next refresh; "
                "offload_param_device cpu and none keep it.",
                self._field,
            )

    @property
    def _field(self) -> str:
        return "rounds reference" if self._by_rounds else "sync_ref_model"

    @torch.no_grad()
    def refresh(self) -> None:
        """π_ref ← π_θ, where there is a second model."""
        if self._active:
            _trl.refresh_reference(self.host)
            self.refreshed = int(self.host.state.global_step)

    def on_step_end(self, *_: Any, **__: Any) -> None:
        """Note a refresh: TRL's callback makes it after the same step."""
        step = int(self.host.state.global_step)
        if self._active and self.host.args.sync_ref_model and step % self.host.args.ref_model_sync_steps == 0:
            self.refreshed = step

    def _weights(self) -> dict[str, Tensor]:
        """The weights of the reference by name, this rank's part where they are sharded."""
        return {name: piece(weight) for name, weight in self._named()}

    def _named(self) -> Iterator[tuple[str, Parameter]]:
        assert self.host.ref_model is not None
        return self.host.ref_model.named_parameters()

    @property
    def _kept(self) -> bool:
        return self._active and self.refreshed > 0 and not self._away and not self.host.args.save_only_model

    def tensors(self) -> dict[str, Tensor]:
        """The weights, where they have moved."""
        return self._weights() if self._kept else {}

    @torch.no_grad()
    def load_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        """Go on with these weights."""
        weights = self._weights()
        if weights.keys() != tensors.keys():
            raise ValueError("it is that of another model")
        for name, weight in weights.items():
            told, expected = ((tuple(one.shape), one.dtype) for one in (tensors[name], weight))
            if told != expected:
                raise ValueError(f"{name} is {told[0]} of {told[1]}, expected {expected[0]} of {expected[1]}")
            weight.copy_(tensors[name])
        for _, whole in self._named():
            release(whole)

    def state_dict(self) -> dict[str, Any]:
        """The step of the last refresh, where there is any; are the weights beside it?"""
        return {"refreshed": self.refreshed, "kept": self._kept} if self._active else {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from there; one line where the checkpoint lacks the weights."""
        if not self._active:
            raise ValueError("no second model is refreshed without sync_ref_model or rounds, or with an adapter")
        moved, self.refreshed = self.refreshed, int(state["refreshed"])
        if (moved or self.refreshed) and not state["kept"] and self.host.accelerator.is_main_process:
            logger.warning(
                "%s: the checkpoint does not hold the reference of step %d, so the run goes on with the one that is "
                "loaded. The KL term differs until the reference is refreshed.",
                self._field,
                self.refreshed,
            )
