"""One pass over packed rows through TRL's fused head."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch

from grpo_plus.engine.pack import Packed, sees, tree_mask

Autocast = Callable[[], AbstractContextManager[Any]]
"""Makes the context that a pass runs in, as TRL's passes do."""

Scores = tuple[torch.Tensor, torch.Tensor | None]
"""Log-probabilities of the scored tokens and, where the head gives them, the entropies at their positions."""


def score_packed(model: Any, packed: Packed, autocast: Autocast, *, attention: str) -> Scores:
    """Run a batch of trees.

    Args:
        model: as TRL calls it, in whatever it is wrapped, with TRL's fused head, which applies the temperature.
        packed: the trees.
        autocast: makes the context around the pass.
        attention: transformers' name of the model's attention, which decides the form of its mask.
    """
    with autocast():
        outputs = model(
            input_ids=packed.input_ids,
            attention_mask=_mask(model, packed, attention),
            position_ids=packed.position_ids,
            shift_labels=packed.labels,
            fused_lm_head=True,
        )
    entropy_TL = outputs.entropy
    return (
        outputs.log_probs.reshape(-1)[packed.scored],
        None if entropy_TL is None else entropy_TL.reshape(-1)[packed.scored],
    )


def _mask(model: Any, packed: Packed, attention: str) -> Any:
    """The mask of the trees; None, for which models build a causal one of their own, where no tree branches.

    Rows are then padded right only, and nothing causal sees what comes after it.
    """
    if not packed.branching:
        return None
    if attention == "flex_attention":
        from torch.nn.attention.flex_attention import create_block_mask

        trees, length = packed.branch.shape
        device = packed.branch.device
        return create_block_mask(sees(packed.branch), trees, None, length, length, device=str(device))
    visible = tree_mask(packed.branch)
    if attention != "eager":
        return visible
    dtype = next((p.dtype for p in model.parameters() if p.is_floating_point()), torch.float32)
    return torch.zeros_like(visible, dtype=dtype).masked_fill(~visible, torch.finfo(dtype).min)
