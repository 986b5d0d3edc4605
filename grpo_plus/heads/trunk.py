"""What a head stands on: the policy as it is, an adapter of its own on the policy's base, or a model of its own."""

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
"""Parts of a model that need not be trained, and the names that transformers' models have for such a module."""


class HeadError(ValueError):
    """A head cannot stand on this model."""


class Trunk:
    """Last hidden states, and the weights that are trained to make them.

    Attributes:
        model: the plain transformers model, without wrappers.
        trains: whether a gradient flows into weights below the head.
    """

    trains = True

    def __init__(self, model: Any, own: Mapping[str, nn.Parameter]) -> None:
        self.model = model
        self._own = dict(own)

    @property
    def hidden_size(self) -> int:
        """Numbers in a hidden state."""
        return int(text_config(self.model.config).hidden_size)

    def hidden(self, **inputs: Any) -> Tensor:
        """The hidden states that the model's own head would read, with the inputs of transformers' models."""
        found: Tensor = self.model.base_model(**inputs, use_cache=False).last_hidden_state
        return found

    @contextmanager
    def active(self) -> Iterator[None]:
        """Context of passes, backward passes included: what they change is put back, also after an exception.

        There is no dropout inside, and only the trunk's own weights require a gradient. Modules that do not drop keep
        their mode, as checkpointing and packed 4-bit weights go by it.
        """
        with without_dropout(self.model, drops):
            yield

    def named_parameters(self) -> dict[str, nn.Parameter]:
        """The weights that are trained, by name."""
        return dict(self._own)

    def tensors(self) -> dict[str, Tensor]:
        """Copies of the weights that are trained, on the CPU."""
        return copies(self._own)

    def load_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        """Go on with these weights; a ValueError says why they do not fit."""
        load_into(self._own, tensors)


class PolicyTrunk(Trunk):
    """The policy's own hidden states, as it is now; nothing below the head is trained."""

    trains = False

    def __init__(self, model: Any) -> None:
        super().__init__(model, {})

    def hidden(self, **inputs: Any) -> Tensor:
        """Without a gradient into the policy."""
        with torch.no_grad():
            return super().hidden(**inputs)


def unfrozen(parameters: Iterable[tuple[str, nn.Parameter]], freeze: Sequence[str]) -> dict[str, nn.Parameter]:
    """The parameters that are in none of the frozen parts."""
    given = dict(parameters)
    left = dict(given)
    for part in freeze:
        frozen = {name for name in given if any(FREEZABLE[part].search(piece) for piece in name.split("."))}
        if not frozen:
            raise HeadError(f"freeze has {part!r}, but no trained weight of this model is part of that: remove it.")
        left = {name: parameter for name, parameter in left.items() if name not in frozen}
    if given and not left:
        raise HeadError(f"freeze: {', '.join(freeze)} leaves nothing to train: freeze less, or set on: trunk.")
    return left
