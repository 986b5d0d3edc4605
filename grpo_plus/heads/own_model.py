"""A model of a head's own: a second set of weights, none of which the policy shares."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from transformers import AutoModel

from grpo_plus.heads.trunk import Base, HeadError, unfrozen, without_dropout


class ModelTrunk(Base):
    """Hidden states of a model of its own, loaded without its language model head.

    Args:
        name: of the model, or its folder.
        vocabulary: tokens that it must be able to read: those of the policy.
        dtype: of its weights.
        freeze: parts of the model (`FREEZABLE`) that are not trained.
        checkpointing: whether activations are computed again in the backward pass, as for the policy.
        keywords: further ones of ``from_pretrained``.

    Raises:
        HeadError: it cannot be loaded, reads images, or has fewer tokens than the policy.
    """

    def __init__(
        self,
        name: str,
        *,
        vocabulary: int,
        dtype: torch.dtype = torch.float32,
        freeze: Sequence[str] = (),
        checkpointing: bool = False,
        device: Any = "cpu",
        keywords: Mapping[str, Any] | None = None,
    ) -> None:
        try:
            model = AutoModel.from_pretrained(name, dtype=dtype, **(keywords or {}))
        except (OSError, ValueError) as error:
            raise HeadError(f"model is {name!r}, which cannot be loaded: {error}") from error
        text = getattr(model.config, "get_text_config", lambda: model.config)()
        if text is not model.config:
            raise HeadError(f"model is {name!r}, a multimodal model: give one that reads texts alone.")
        size = int(text.vocab_size)
        if size < vocabulary:
            raise HeadError(
                f"model is {name!r}, which reads {size} tokens, and the policy writes {vocabulary}: give one with the "
                "policy's tokenizer."
            )
        model.to(device).train()
        if checkpointing:
            model.gradient_checkpointing_enable({"use_reentrant": False})
        own = unfrozen(model.named_parameters(), freeze)
        for key, parameter in model.named_parameters():
            parameter.requires_grad_(key in own)
        super().__init__(model, own)

    @contextmanager
    def active(self) -> Iterator[None]:
        """No dropout."""
        with without_dropout(self.model):
            yield
