"""Passes of a trunk through the engine, packed like those of the policy."""

import inspect
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from grpo_plus.engine import Engine, Facts, facts_of
from grpo_plus.engine.facts import REPLICATED, SINGLE
from grpo_plus.engine.forward import Autocast, Head
from grpo_plus.engine.pack import IGNORED
from grpo_plus.heads.scalar import ScalarHead
from grpo_plus.heads.trunk import Trunk
from grpo_plus.trl.host import Host


def distributed_problems(host: Host, field: str) -> list[str]:
    """Return the problems of training separate weights in this kind of run."""
    if host.is_deepspeed_enabled or host.is_fsdp_enabled:
        name = "DeepSpeed" if host.is_deepspeed_enabled else "FSDP"
        text = f"{field} trains weights other than the policy's, which does not work with {name}"
        return [f"{text}: use DDP or one process."]
    if facts_of(host, None).kind not in {SINGLE, REPLICATED}:
        return [f"{field} trains weights other than the policy's, with DDP or in one process; this run is neither."]
    return []


class _Reader:
    """A trunk with the interface of a model that scores labels; the score of a label is the result of ``read``.

    ``read`` takes hidden states (T, L, H) and the mask of labels (T, L); it returns (T, L), zero without a label.
    """

    def __init__(self, trunk: Trunk, read: Callable[[Tensor, Tensor], Tensor]) -> None:
        self.trunk = trunk
        self._read = read
        backbone = type(trunk.model.base_model)
        self._takes_positions = "position_ids" in inspect.signature(backbone.forward).parameters

    def __getattr__(self, name: str) -> Any:
        return getattr(self.trunk.model, name)

    def __call__(self, *, shift_labels: Tensor, fused_lm_head: bool, **inputs: Any) -> SimpleNamespace:  # noqa: ARG002
        if "position_ids" not in inputs and self._takes_positions:
            inputs["position_ids"] = (inputs["attention_mask"].cumsum(1) - 1).clamp(min=0)
        log_probs = self._read(self.trunk.hidden(**inputs), shift_labels != IGNORED)
        return SimpleNamespace(log_probs=log_probs, entropy=None)  # of TRL's fused head


def _read_by(head: ScalarHead) -> Callable[[Tensor, Tensor], Tensor]:
    def read(hidden_TLH: Tensor, scored_TL: Tensor) -> Tensor:
        values: Tensor = head(hidden_TLH[scored_TL])
        return values.new_zeros(scored_TL.shape).masked_scatter(scored_TL, values)

    return read


class _Collector:
    """Applies a head to each pass and stores the hidden states in main memory.

    It returns the number of each label's hidden state, counted from 1.
    """

    def __init__(self, head: ScalarHead) -> None:
        self._head = head
        self._parts: list[Tensor] = []
        self._values: list[Tensor] = []
        self._count = 0

    def __call__(self, hidden_TLH: Tensor, scored_TL: Tensor) -> Tensor:
        part = hidden_TLH[scored_TL]
        first, self._count = self._count + 1, self._count + len(part)
        self._values.append(self._head(part))
        self._parts.append(part.cpu())
        # float32 counts to 2**24 without a gap; the result of the engine is float32
        numbers = torch.arange(first, self._count + 1, device=part.device, dtype=torch.float32)
        return numbers.new_zeros(scored_TL.shape).masked_scatter(scored_TL, numbers)

    def placed(self, numbers_BT: Tensor) -> tuple[Tensor, Tensor]:
        """Return values (B, T) and hidden states (B, T, H), in main memory, by their numbers; zero without one."""
        weight = self._head.weight
        values_BT = torch.cat([weight.new_zeros(1), *self._values])[numbers_BT].float()
        like = self._parts[0] if self._parts else weight.detach().cpu()
        hidden_BTH = like.new_zeros((*numbers_BT.shape, len(weight)))
        left_BT = numbers_BT.cpu() - 1
        while self._parts:  # each is freed once copied
            part = self._parts.pop(0)
            inside_BT = (left_BT >= 0) & (left_BT < len(part))
            hidden_BTH[inside_BT] = part[left_BT[inside_BT]]
            left_BT -= len(part)
        return values_BT, hidden_BTH


_MOST_PLACES = 2**24


class Passes:
    """The values of a head at the hidden states that predict the tokens of completions.

    Rows are (B, S), prompts padded left and completions padded right, the completions in the last ``width`` columns.
    Call the methods and their backward passes inside ``trunk.active()``. Ranks may make different numbers of passes, as
    none is inside DDP. ``layout`` and ``tokens_per_pass`` are those of `Engine`.
    """

    def __init__(
        self,
        trunk: Trunk,
        head: ScalarHead,
        *,
        layout: str = "auto",
        tokens_per_pass: int | None = None,
        facts: Callable[[], Facts] = Facts,
        autocast: Autocast,
    ) -> None:
        self.trunk = trunk
        self.head = head
        self._autocast = autocast
        self.engine = Engine(
            layout,
            tokens_per_pass,
            facts=lambda: replace(facts(), kind=SINGLE, head=Head()),
            autocast=autocast,
            unwrap=lambda reader: reader.trunk.model,
        )
        self._tried = layout == "stock"

    @classmethod
    def of(cls, host: Host, trunk: Trunk, head: ScalarHead, *, layout: str, tokens_per_pass: int | None) -> "Passes":
        """Return the passes of a trainer's run."""
        return cls(
            trunk,
            head,
            layout=layout,
            tokens_per_pass=tokens_per_pass if host.accelerator.num_processes == 1 else None,
            facts=lambda: facts_of(host, None),
            autocast=host.accelerator.autocast,
        )

    def values(self, input_ids: Tensor, attention_mask: Tensor, width: int, *, batch_size: int | None = None) -> Tensor:
        """Return values (B, width) in float32, zero for padding; with a gradient if gradients are enabled."""
        return self._run(_read_by(self.head), input_ids, attention_mask, width, batch_size)

    @torch.no_grad()
    def features(
        self, input_ids: Tensor, attention_mask: Tensor, width: int, *, batch_size: int | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return values as `values` does, and their hidden states (B, width, H) in main memory.

        Without a gradient; zero for padding. The device has the hidden states of one pass at a time.
        """
        if input_ids.shape[0] * width >= _MOST_PLACES:
            raise ValueError(f"features of {input_ids.shape[0]} rows of {width} tokens: pass fewer rows at a time")
        collect = _Collector(self.head)
        return collect.placed(self._run(collect, input_ids, attention_mask, width, batch_size).long())

    def _run(
        self,
        read: Callable[[Tensor, Tensor], Tensor],
        input_ids: Tensor,
        attention_mask: Tensor,
        width: int,
        batch_size: int | None,
    ) -> Tensor:
        if not self._tried:
            # The output of a head of zeros is constant: the trial uses a random head, which shows every difference.
            head = ScalarHead(self.trunk.hidden_size, spread=self.trunk.hidden_size**-0.5, device=input_ids.device.type)
            self.engine.try_out(_Reader(self.trunk, _read_by(head.to(input_ids.device))), input_ids.device)
            self._tried = True
        return self.engine.score(
            self._plain, _Reader(self.trunk, read), input_ids, attention_mask, width, batch_size=batch_size
        )[0]

    def _plain(  # noqa: PLR0917 - the engine calls it as TRL's method
        self,
        reader: Any,
        input_ids: Tensor,
        attention_mask: Tensor,
        width: int,
        batch_size: int | None = None,
        compute_entropy: bool = False,  # noqa: ARG002
    ) -> tuple[Tensor, None, None]:
        """Run rows unchanged, in place of TRL's method."""
        labels = torch.where(attention_mask[:, 1:].bool(), input_ids[:, 1:], IGNORED)
        labels[:, : labels.shape[1] - width] = IGNORED
        ids, mask = input_ids[:, :-1], attention_mask[:, :-1]
        parts = []
        for start in range(0, len(ids), batch_size or len(ids) or 1):
            part = slice(start, start + (batch_size or len(ids)))
            inputs = {"input_ids": ids[part], "attention_mask": mask[part]}
            with self._autocast():
                read = reader(**inputs, shift_labels=labels[part], fused_lm_head=True)
            parts.append(read.log_probs[:, -width:])
        return torch.cat(parts), None, None


def rows_of(inputs: Any) -> tuple[Tensor, Tensor, int]:
    """Return ids and mask of the rows of a TRL batch, and the number of completion columns."""
    ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], dim=1)
    mask = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], dim=1)
    return ids, mask, inputs["completion_ids"].shape[1]
