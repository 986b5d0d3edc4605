"""The trunk of a head: the policy, a separate adapter on the policy's base, or a separate model."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from grpo_plus.engine.architecture import text_config
from grpo_plus.engine.dropout import drops, without_dropout
from grpo_plus.heads.scalar import copies, load_into

FREEZABLE: dict[str, re.Pattern[str]] = {
    "attention": re.compile(r"(?:^|_)(?:attn|attention)$"),
    "embeddings": re.compile(r"^(?:embed\w*|wte|wpe)$"),
    "mlp": re.compile(r"^(?:mlp|ffn|feed_forward|experts)$"),
}
"""Parts of a model that can be frozen, and the names of such modules in transformers."""


class HeadError(ValueError):
    """A head is impossible on this model."""


class Trunk:
    """Last hidden states and the trained weights below the head.

    Attributes:
        model: the plain transformers model, without wrappers.
        trains: a gradient flows into weights below the head.
    """

    trains = True

    def __init__(self, model: Any, own: Mapping[str, nn.Parameter]) -> None:
        self.model = model
        self._own = dict(own)

    @property
    def hidden_size(self) -> int:
        """The width of a hidden state."""
        return int(text_config(self.model.config).hidden_size)

    def hidden(self, **inputs: Any) -> Tensor:
        """Return the inputs of the model's own head, for the inputs of a transformers model."""
        hidden: Tensor = self.model.base_model(**inputs, use_cache=False).last_hidden_state
        return hidden

    @contextmanager
    def active(self) -> Iterator[None]:
        """Context of forward and backward passes; its changes are undone at the end, also after an exception.

        Inside, dropout is off and only the trunk's own weights require a gradient. Modules without dropout stay in
        their mode, as checkpointing and packed 4-bit weights depend on it.
        """
        with without_dropout(self.model, drops):
            yield

    def named_parameters(self) -> dict[str, nn.Parameter]:
        """Return the trained weights by name."""
        return dict(self._own)

    def tensors(self) -> dict[str, Tensor]:
        """Return copies of the trained weights on the CPU."""
        return copies(self._own)

    def load_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore the weights that `tensors` returned; raises a ValueError if they do not fit."""
        load_into(self._own, tensors)


class PolicyTrunk(Trunk):
    """The hidden states of the current policy; nothing below the head is trained."""

    trains = False

    def __init__(self, model: Any) -> None:
        super().__init__(model, {})

    def hidden(self, **inputs: Any) -> Tensor:
        """Return hidden states without a gradient."""
        with torch.no_grad():
            return super().hidden(**inputs)


def unfrozen(parameters: Iterable[tuple[str, nn.Parameter]], freeze: Sequence[str]) -> dict[str, nn.Parameter]:
    """Return the parameters outside the frozen parts."""
    trainable = dict(parameters)
    left = dict(trainable)
    for part in freeze:
        frozen = {name for name in trainable if any(FREEZABLE[part].search(piece) for piece in name.split("."))}
        if not frozen:
            raise HeadError(f"freeze has {part!r}, but no trained weight of this model is part of that: remove it.")
        left = {name: parameter for name, parameter in left.items() if name not in frozen}
    if trainable and not left:
        raise HeadError(f"freeze: {', '.join(freeze)} leaves nothing to train: freeze less, or set on: trunk.")
    return left
