"""A separate model of a head: a second set of weights, not shared with the policy."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from transformers import AutoModel, AutoTokenizer

from grpo_plus.heads.trunk import HeadError, Trunk, unfrozen


class ModelTrunk(Trunk):
    """Hidden states of a separate model, loaded without its language model head.

    Args:
        name: name or folder of the model.
        vocabulary: the number of tokens of the policy, which it must support.
        dtype: dtype of its weights.
        freeze: parts of the model (`FREEZABLE`) that are not trained.
        checkpointing: recompute activations in the backward pass, as for the policy.
        keywords: further arguments of ``from_pretrained``.
        field: the name in messages.

    Raises:
        HeadError: it cannot be loaded, is quantised, multimodal, or has fewer tokens than the policy.
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
        field: str = "model",
    ) -> None:
        try:
            model = AutoModel.from_pretrained(name, dtype=dtype, **(keywords or {}))
        except (OSError, ValueError, ImportError) as error:
            raise HeadError(f"{field} is {name!r}, which cannot be loaded: {error}") from error
        if getattr(model, "is_quantized", False):
            raise HeadError(
                f"{field} is {name!r}, whose weights are stored quantised and cannot be trained: set model to one in "
                "full precision, or on: adapter."
            )
        text = getattr(model.config, "get_text_config", lambda: model.config)()
        if text is not model.config:
            raise HeadError(f"{field} is {name!r}, a multimodal model: set a text-only one.")
        size = int(text.vocab_size)
        if size < vocabulary:
            raise HeadError(
                f"{field} is {name!r}, which reads {size} tokens, and the policy writes {vocabulary}: set one with "
                "the policy's tokenizer."
            )
        model.to(device).train()
        if checkpointing:
            model.gradient_checkpointing_enable({"use_reentrant": False})
        own = unfrozen(model.named_parameters(), freeze)
        for key, parameter in model.named_parameters():
            parameter.requires_grad_(key in own)
        super().__init__(model, own)


def compare_tokenizers(name: str, own: Any, *, field: str = "model", may_differ: float = 0.0) -> None:
    """Refuse a model whose token ids differ from the policy's; a model without a tokenizer passes.

    ``may_differ`` is the allowed share of the policy's tokens with different ids.
    """
    try:
        theirs = AutoTokenizer.from_pretrained(name).get_vocab()
    except (OSError, ValueError, KeyError, ImportError):
        return
    policy_ids = own.get_vocab()
    wrong = sorted(token for token in policy_ids if theirs.get(token) != policy_ids[token])
    if len(wrong) > may_differ * len(policy_ids):
        there = theirs.get(wrong[0], "none")
        raise HeadError(
            f"{field} is {name!r}, which has another tokenizer than the policy: the token {wrong[0]!r} has the number "
            f"{policy_ids[wrong[0]]} in the policy's and {there} in this one. Set a model with the policy's tokenizer."
        )
