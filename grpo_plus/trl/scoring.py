"""Log-probabilities by TRL's own forward pass, its fused head, and its masks of tokens and completions."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from grpo_plus.trl.host import Host, temporary_attribute
from grpo_plus.trl.versions import SCORING_FUNCTION, UnsupportedTRLError

if TYPE_CHECKING:
    import torch

FORWARD_INPUTS = (
    "pixel_values", "image_grid_thw", "num_images", "pixel_attention_mask", "spatial_shapes", "num_tiles",
    "image_sizes", "token_type_ids", "mm_token_type_ids", "image_position_ids",
)  # fmt: skip
"""Inputs of the forward pass other than tokens and masks."""

SUPPORT = "support"
"""Batch key of the tokens that each completion token was sampled from, one item per row; unknown to TRL."""


def score_micro_batch(
    host: Host, model: Any, inputs: Mapping[str, Any]
) -> "tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]":
    """Log-probabilities, entropies and, if the config weights it, the MoE auxiliary loss of a micro-batch."""
    aux = {"compute_aux_loss": True} if host.aux_loss_enabled else {}
    logps, entropies, aux_loss = _score(host, model, inputs, compute_entropy=True, **aux)
    return logps, entropies, aux_loss if aux else None


def score_without_gradient(host: Host, inputs: Mapping[str, Any]) -> "torch.Tensor":
    """Log-probabilities of a whole generation batch under the current policy."""
    import torch
    from trl.models.utils import disable_gradient_checkpointing

    args = host.args
    size = args.per_device_train_batch_size if host.model.training else args.per_device_eval_batch_size
    with torch.no_grad(), disable_gradient_checkpointing(host.model, args.gradient_checkpointing_kwargs):
        logps: torch.Tensor = _score(host, host.model, inputs, batch_size=size)[0]
    return logps


def _score(host: Host, model: Any, inputs: Mapping[str, Any], **keywords: Any) -> tuple[Any, Any, Any]:
    import torch

    scored: tuple[Any, Any, Any] = host._get_per_token_logps_and_entropies(
        model,
        torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], dim=1),
        torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], dim=1),
        inputs["completion_ids"].size(1),
        **keywords,
        **{name: inputs[name] for name in (*FORWARD_INPUTS, SUPPORT) if inputs.get(name) is not None},
    )
    return scored


@dataclass(frozen=True)
class FusedHead:
    """Parameters of the head of a model that scores its own hidden states (TRL 1.16)."""

    weight: "torch.Tensor"
    bias: "torch.Tensor | None"
    temperature: float
    softcap: float | None
    scale: float


@contextmanager
def replace_fused_head(
    score: "Callable[[torch.Tensor, torch.Tensor, FusedHead], tuple[torch.Tensor, torch.Tensor]]",
) -> Iterator[None]:
    """Replace the scoring function of a fused head inside the block.

    ``score`` takes hidden states, targets and the head, and returns log-probabilities and entropies.
    """
    import trl.trainer.utils as trl_utils

    called = False

    def apply(*arguments: Any) -> "tuple[torch.Tensor | None, ...]":
        nonlocal called
        called = True
        hidden, weight, bias, targets, temperature, _, softcap, scale, *outputs = arguments
        logps, entropies = score(hidden, targets, FusedHead(weight, bias, temperature, softcap, scale))
        return logps, entropies if not outputs or "entropy" in outputs[0] else None, None, None, None

    with temporary_attribute(trl_utils, SCORING_FUNCTION, type(SCORING_FUNCTION, (), {"apply": staticmethod(apply)})):
        yield
    if not called:
        raise UnsupportedTRLError(
            "log-probabilities within the support of top_p, top_k or min_p need a function of TRL that this release no "
            "longer calls. Set rollout: stock, or top_p 1.0, top_k 0 and min_p 0."
        )


@contextmanager
def score_positions_only(scored_M: "torch.Tensor") -> Iterator[None]:
    """Compute logits of a fused head at these positions only; TRL does so by itself on GPUs only."""
    import trl.trainer.utils as trl_utils

    original = getattr(trl_utils, SCORING_FUNCTION, None)
    if original is None:
        yield
        return

    def apply(hidden: "torch.Tensor", weight: Any, bias: Any, targets: "torch.Tensor", *rest: Any) -> Any:
        index = scored_M.to(hidden.device).nonzero()[:, 0]
        if len(hidden) != len(scored_M) or not len(index):  # selected already, or nothing to score
            return original.apply(hidden, weight, bias, targets, *rest)
        outputs = original.apply(hidden[index], weight, bias, targets[index], *rest)
        return tuple(None if one is None else one.new_zeros(len(hidden)).index_put((index,), one) for one in outputs)

    with temporary_attribute(trl_utils, SCORING_FUNCTION, type(SCORING_FUNCTION, (), {"apply": staticmethod(apply)})):
        yield


def high_entropy_mask(host: Host, entropies: "torch.Tensor", mask: "torch.Tensor") -> "torch.Tensor | None":
    """Mask of the tokens selected by TRL's `top_entropy_quantile`; None if it selects all."""
    if host.top_entropy_quantile >= 1.0:
        return None
    return host.get_high_entropy_mask(entropies, mask, 1 - host.top_entropy_quantile)


def off_policy_mask(
    host: Host, inputs: Mapping[str, Any], logps: "torch.Tensor", mask: "torch.Tensor"
) -> "torch.Tensor | None":
    """1 for completions that TRL's `off_policy_mask_threshold` retains; None if it is unset."""
    if host.off_policy_mask_threshold is None:
        return None
    sampled = inputs.get("sampling_per_token_logps", inputs.get("old_per_token_logps"))
    advantages = inputs["advantages"]
    return host.get_off_policy_mask(
        advantages=advantages if advantages.dim() == 2 else advantages.unsqueeze(1),
        per_token_logps=logps,
        sampling_per_token_logps=logps.detach() if sampled is None else sampled,
        mask=mask.long(),
        off_policy_threshold=host.off_policy_mask_threshold,
    )
