"""The storage of a model's weights: bits, method, format and layout."""

from collections.abc import Iterator
from typing import Any

from torch import nn

from grpo_verifiers.redaction import get_logger

logger = get_logger(__name__)


def bits_of(model: Any) -> int | None:
    """4 or 8 if bitsandbytes holds the model's linear layers, else None."""
    if getattr(model, "is_loaded_in_4bit", False):
        return 4
    return 8 if getattr(model, "is_loaded_in_8bit", False) else None


def method_of(config: Any) -> str | None:
    """How a checkpoint says it is quantised: ``bitsandbytes``, ``gptq``, ``awq``, …, or None."""
    quantisation = getattr(config, "quantization_config", None)
    if quantisation is None:
        return None
    found = _read(quantisation, "quant_method")
    if found is None:
        return "bitsandbytes" if requested_bits(quantisation) else "an unnamed method"
    return str(getattr(found, "value", found))


def requested_bits(quantisation: Any) -> int | None:
    """4 or 8 if a quantisation config asks bitsandbytes for it; takes objects and mappings."""
    if quantisation is None:
        return None
    if _read(quantisation, "load_in_4bit"):
        return 4
    return 8 if _read(quantisation, "load_in_8bit") else None


def quantises_twice(quantisation: Any) -> bool:
    """The scales are quantised, too; takes objects and mappings."""
    return bool(_read(quantisation, "bnb_4bit_use_double_quant"))


def format_of(quantisation: Any) -> str:
    """Of 4-bit weights, as a quantisation config asks for it; takes objects and mappings."""
    return str(_read(quantisation, "bnb_4bit_quant_type") or "nf4")


def _read(quantisation: Any, name: str) -> Any:
    return quantisation.get(name) if isinstance(quantisation, dict) else getattr(quantisation, name, None)


def linear_4bit(model: nn.Module) -> Iterator[nn.Module]:
    """The layers whose weights bitsandbytes holds in 4 bits."""
    from bitsandbytes.nn import Linear4bit

    return (module for module in model.modules() if isinstance(module, Linear4bit))


def keep_layout(model: nn.Module) -> int:
    """Keep bitsandbytes from rearranging 4-bit weights on a CPU with AVX512-BF16; returns in how many layers it had.

    There, a forward pass in evaluation mode without gradients rewrites the weights in place for an operation that has
    no derivative: every later backward pass is wrong without a word (or fails, where the layer has a bias), and the
    scales lose precision. Training alternates the two kinds of passes, so the rearrangement is switched off per layer,
    and undone where it happened; it only ever made CPU inference faster.
    """
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
