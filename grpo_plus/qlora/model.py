"""The storage of a model's weights: bits, method, format and layout."""

from collections.abc import Iterator
from typing import Any

from torch import nn

from grpo_verifiers.redaction import get_logger

logger = get_logger(__name__)


def bits_of(model: Any) -> int | None:
    """Return 4 or 8 if the model has linear layers of bitsandbytes, else None."""
    if getattr(model, "is_loaded_in_4bit", False):
        return 4
    return 8 if getattr(model, "is_loaded_in_8bit", False) else None


def method_of(config: Any) -> str | None:
    """Return the quantisation method in a checkpoint's config: ``bitsandbytes``, ``gptq``, ``awq``, …, or None."""
    quantisation = getattr(config, "quantization_config", None)
    if quantisation is None:
        return None
    method = _read(quantisation, "quant_method")
    if method is None:
        return "bitsandbytes" if requested_bits(quantisation) else "an unnamed method"
    return str(getattr(method, "value", method))


def requested_bits(quantisation: Any) -> int | None:
    """Return 4 or 8 if a quantisation config or options (object or mapping) request it of bitsandbytes."""
    if _read(quantisation, "load_in_4bit"):
        return 4
    return 8 if _read(quantisation, "load_in_8bit") else None


def quantises_twice(quantisation: Any) -> bool:
    """Return True if a quantisation config (object or mapping) quantises the scales, too."""
    return bool(_read(quantisation, "bnb_4bit_use_double_quant"))


def format_of(quantisation: Any) -> str:
    """Return the format of 4-bit weights in a quantisation config (object or mapping)."""
    return str(_read(quantisation, "bnb_4bit_quant_type") or "nf4")


def _read(quantisation: Any, name: str) -> Any:
    return quantisation.get(name) if isinstance(quantisation, dict) else getattr(quantisation, name, None)


def linear_4bit(model: nn.Module) -> Iterator[nn.Module]:
    """Return the layers with bitsandbytes' 4-bit weights."""
    from bitsandbytes.nn import Linear4bit

    return (module for module in model.modules() if isinstance(module, Linear4bit))


def keep_layout(model: nn.Module) -> int:
    """Disable bitsandbytes' rearrangement of 4-bit weights on CPUs with AVX512-BF16; returns the rearranged layers.

    There, a forward pass in evaluation mode without gradients rewrites the weights in place for an operation without a
    derivative: every later backward pass is silently wrong (or fails, if the layer has a bias), and the scales lose
    precision. Training alternates the two kinds of passes, so the rearrangement, which only speeds up CPU inference, is
    disabled per layer and undone if it has happened.
    """
    rearranged = 0
    for layer in linear_4bit(model):
        layer.support_avx512bf16_for_cpu = False  # type: ignore[assignment]  # a flag of bitsandbytes' own
        if getattr(getattr(layer.weight, "quant_state", None), "packing_format_for_cpu", False):
            layer.state_dict()  # bitsandbytes restores the layout before it saves
            rearranged += 1
    if rearranged:
        logger.warning(
            "%d 4-bit layers had been rearranged for CPU inference by a forward pass before training; the layout is "
            "restored, but their scales were rounded to bfloat16. Load the model afresh to train the exact weights.",
            rearranged,
        )
    return rearranged
