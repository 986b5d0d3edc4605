"""The storage of a model's weights: bits, method and format."""

from collections.abc import Iterator
from typing import Any

from torch import nn


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
        return "bitsandbytes" if asked_bits(quantisation) else "an unnamed method"
    return str(getattr(found, "value", found))


def asked_bits(quantisation: Any) -> int | None:
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
