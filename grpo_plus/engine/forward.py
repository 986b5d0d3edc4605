"""One pass over packed rows, and the scoring of its hidden states."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch

from grpo_plus.engine.pack import IGNORED, Packed, sees, tree_mask
from grpo_plus.trl.scoring import score_positions_only
from grpo_verifiers.redaction import get_logger

logger = get_logger(__name__)

Autocast = Callable[[], AbstractContextManager[Any]]
"""Returns the context of a pass, that of TRL's passes."""

Scores = tuple[torch.Tensor, torch.Tensor | None]
"""Log-probabilities of the scored tokens and, if the head returns them, the entropies at their positions."""


@dataclass(frozen=True)
class Head:
    """The step from a model's hidden states to log-probabilities.

    Attributes:
        fused: the model itself scores shifted labels at the sampling temperature (TRL 1.16); otherwise it returns
            logits (TRL 1.14).
        temperature: the divisor of logits.
        entropy_gradient: entropies have a gradient.
    """

    fused: bool = True
    temperature: float = 1.0
    entropy_gradient: bool = False


def score_labels(
    model: Any, inputs: dict[str, Any], labels_TL: torch.Tensor, autocast: Autocast, head: Head
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return log-probabilities (T, L) of shifted labels, and entropies; zero for ignored ones."""
    if head.fused:
        with autocast(), score_positions_only((labels_TL != IGNORED).reshape(-1)):
            outputs = model(**inputs, shift_labels=labels_TL, fused_lm_head=True)
        return outputs.log_probs, outputs.entropy
    logits = model(**inputs, use_cache=False).logits  # TRL 1.14 leaves the precision to the wrapped forward
    scored = labels_TL != IGNORED
    logps_NV = (logits[scored].float() / head.temperature).log_softmax(-1)
    logps = logps_NV.gather(-1, labels_TL[scored][:, None])[:, 0]
    with torch.set_grad_enabled(torch.is_grad_enabled() and head.entropy_gradient):
        entropies = -(logps_NV.exp() * logps_NV).sum(-1)
    zeros = torch.zeros_like(labels_TL, dtype=torch.float32)
    return zeros.masked_scatter(scored, logps), zeros.masked_scatter(scored, entropies)


def score_packed(model: Any, packed: Packed, autocast: Autocast, *, attention: str, head: Head) -> Scores:
    """Run a batch of trees; the form of the mask depends on ``attention``, transformers' name of the implementation.

    Scores of shared tokens are in float32 at least, so that the gradients of all rows are not added in half precision.
    """
    inputs = {
        "input_ids": packed.input_ids,
        "attention_mask": _mask(model, packed, attention),
        "position_ids": packed.position_ids,
    }
    if packed.branches is not None:
        inputs["branches"] = packed.branches
    logps_TL, entropies_TL = score_labels(model, inputs, packed.labels, autocast, head)
    return _read(logps_TL, packed), None if entropies_TL is None else _read(entropies_TL, packed)


def _read(scores_TL: torch.Tensor, packed: Packed) -> torch.Tensor:
    return scores_TL.to(torch.promote_types(scores_TL.dtype, torch.float32)).reshape(-1)[packed.scored]


def _mask(model: Any, packed: Packed, attention: str) -> Any:
    """Return the mask of the trees; None without branching, for which models build a causal mask.

    Rows are then padded right only, which causal attention never sees. Joined trees have masks of their own.
    """
    if packed.branches is not None:
        return packed.branches.mask()
    if not packed.branching:
        return None
    if attention == "flex_attention":
        from torch.nn.attention.flex_attention import create_block_mask

        trees, length = packed.until.shape
        device = packed.until.device
        return create_block_mask(sees(packed.until), trees, None, length, length, device=str(device))
    visible = tree_mask(packed.until)
    if attention != "eager":
        return visible
    dtype = next((p.dtype for p in model.parameters() if p.is_floating_point()), torch.float32)
    return torch.zeros_like(visible, dtype=dtype).masked_fill(~visible, torch.finfo(dtype).min)


def leave_out_cudnn(device: torch.device) -> None:
    """Disable cuDNN's kernels in PyTorch's attention for this process.

    PyTorch 2.11 and later prefer them on a Hopper or Blackwell card. With a mask, as for padded and packed rows,
    their gradient is NaN for some models and lengths (pytorch/pytorch#196678), and each new length costs a plan.
    """
    if device.type == "cuda" and torch.backends.cuda.cudnn_sdp_enabled():  # type: ignore[no-untyped-call]
        torch.backends.cuda.enable_cudnn_sdp(enabled=False)
        logger.info("Attention runs without cuDNN's kernels, whose gradient with a mask may be NaN.")
