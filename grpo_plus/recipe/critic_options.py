"""The keys of a config's ``critic``, with their ranges and defaults."""

from dataclasses import dataclass, field
from typing import Annotated, Literal

from grpo_verifiers.options import Range

RATES = {"trunk": 1e-4, "adapter": 5e-5, "model": 1e-5}
"""Default learning rates: smaller for more trained weights."""


@dataclass(frozen=True)
class CriticOptions:
    """Options of a critic.

    Attributes:
        on: the trunk of the value head: ``trunk``, the policy's own last hidden states, which are not trained;
            ``adapter``, a separate LoRA adapter on the policy's base; ``model``, a separate model. Unset: adapter if
            the run trains LoRA, else model.
        model: name or folder of its own model; unset: the policy's initial model.
        learning_rate: AdamW's constant learning rate; unset: `RATES`.
        updates: critic updates for each update of the policy, all on the rows of that update.
        warmup_steps: first optimizer steps, which train the critic alone.
        clip: largest change of a value before its gradient ends; null: no limit.
        lam: λ of the critic's returns; that of the advantages is the estimator's.
        freeze: parts of its model or adapter that are not trained.
        lora_r: rank of its adapter; unset: the policy's.
        lora_alpha: scale of its adapter; unset: with the policy's ratio to the rank.
        max_grad_norm: limit of the gradient norm; null: no limit.
        weight_decay: AdamW's weight decay.
    """

    on: Literal["trunk", "adapter", "model"] | None = None
    model: str | None = None
    learning_rate: Annotated[float, Range(0, open_low=True, finite=True)] | None = None
    updates: Annotated[int, Range(1)] = 1
    warmup_steps: Annotated[int, Range(0)] = 0
    clip: Annotated[float, Range(0, open_low=True, finite=True)] | None = 0.2
    lam: Annotated[float, Range(0, 1)] = 1.0
    freeze: list[Literal["attention", "embeddings", "mlp"]] = field(default_factory=list)
    lora_r: Annotated[int, Range(1)] | None = None
    lora_alpha: Annotated[float, Range(0, open_low=True, finite=True)] | None = None
    max_grad_norm: Annotated[float, Range(0, open_low=True, finite=True)] | None = 1.0
    weight_decay: Annotated[float, Range(0, finite=True)] = 0.0

    def kind(self, *, adapted: bool) -> str:
        """Return the trunk of the head in a run that trains LoRA adapters (``adapted``) or all weights."""
        return self.on or ("adapter" if adapted else "model")

    def rate(self, kind: str) -> float:
        """Return the learning rate of a critic of this kind."""
        return RATES[kind] if self.learning_rate is None else self.learning_rate
