"""Keep bitsandbytes from rearranging 4-bit weights on a CPU with AVX512-BF16.

There, a forward pass in evaluation mode without gradients rewrites the weights in place for an operation that has no
derivative: every later backward pass is wrong without a word (or fails, where the layer has a bias), and the scales
lose precision. Training alternates the two kinds of passes, so the rearrangement is switched off per layer; it only
ever made CPU inference faster.
"""

from torch import nn

from grpo_plus.qlora.model import linear_4bit
from grpo_verifiers.redaction import get_logger

logger = get_logger(__name__)


def keep_layout(model: nn.Module) -> int:
    """Switch the rearrangement off in every 4-bit layer, and take it back where it happened; returns in how many."""
    rearranged = 0
    for layer in linear_4bit(model):
        layer.support_avx512bf16_for_cpu = False  # type: ignore[assignment]  # a flag of bitsandbytes' own
        if getattr(getattr(layer.weight, "quant_state", None), "packing_format_for_cpu", False):
            layer.state_dict()  # bitsandbytes puts the layout back before it saves
            rearranged += 1
    if rearranged:
        logger.warning(
            "%d 4-bit layers had been rearranged for CPU inference by a forward pass before training; the layout is "
            "restored, but their scales were rounded to bfloat16. Load the model afresh to train the exact weights.",
            rearranged,
        )
    return rearranged
