"""Exact treatments of a model's rows, derived from its config.

Packing needs full causal attention with explicit positions and masks. The config shows limits that affect only long
rows; the reason is a sentence for the log. `probe` checks the rest by running the model.
"""

import inspect
import sys
from dataclasses import dataclass
from typing import Any

from grpo_plus.engine.probe import LENGTH
from grpo_plus.memory.shape import layer_values

_STATIC_ROPE = {"default", "linear", "llama3", "yarn", "proportional"}
_CAUSAL_LAYERS = {"full_attention", "sliding_attention"}
_OTHER_LAYERS = {"sparse", "dense"}  # kinds of feed-forward layers
_LAYERED_WINDOWS = ("use_sliding_window", "max_window_layers", "sliding_window_pattern")  # they act by layer_types
_MASKED = ("sdpa", "eager", "flex_attention")


@dataclass(frozen=True)
class Treatments:
    """Treatments that are exact for a model.

    Attributes:
        refusal: the reason to run TRL's own path unchanged, or None.
        packing: rows may be packed, each with its own positions and a causal mask.
        sharing: completions may share their prompt, which takes an explicit mask.
        branching: several trees may be joined into one row, separated by `branches`.
        joining: several rows may be joined into one, separated by their positions alone.
        trimming: columns that pad all prompts may be dropped; true after a test that positions are relative.
        window: attention window in tokens; a shared prompt is exact only for rows up to this length.
        note: the reason why the best layout is not possible, or None.
    """

    refusal: str | None = None
    packing: bool = False
    sharing: bool = False
    branching: bool = False
    joining: bool = False
    trimming: bool = False
    window: int | None = None
    note: str | None = None


def text_config(config: Any) -> Any:
    """Return the config of the language model inside a model's config."""
    return config.get_text_config() if hasattr(config, "get_text_config") else config


def treatments_of(model: Any) -> Treatments:
    """Return the exact treatments of an unwrapped transformers model."""
    config = getattr(model, "config", None)
    if config is None:
        return Treatments(refusal="the model has no config to judge its attention by")
    text = text_config(config)
    refusal = f"{type(model).__name__} is multimodal" if text is not config else _refusal(model, text)
    if refusal is not None:
        return Treatments(refusal=refusal)
    attention = getattr(text, "_attn_implementation", None)
    backbone = getattr(model, "base_model", model)
    if "position_ids" not in inspect.signature(type(backbone).forward).parameters:
        return Treatments(note=f"{type(backbone).__name__} takes no position ids")
    window = _window(text)
    if attention not in _MASKED:
        note = f"attention {attention!r} takes no explicit mask, so completions cannot share their prompt"
        return Treatments(packing=True, joining=str(attention).startswith("flash_attention"), note=note)
    if window is not None and window < LENGTH:
        note = f"an attention window of {window} tokens leaves no row short enough to share its prompt"
        return Treatments(packing=True, note=note)
    return Treatments(packing=True, sharing=True, branching=attention == "sdpa", window=window)


def _refusal(model: Any, text: Any) -> str | None:
    name = type(model).__name__
    if getattr(text, "is_encoder_decoder", False):
        return f"{name} is an encoder-decoder"
    if getattr(type(model), "_is_stateful", False):
        return f"{name} has recurrent layers, whose state depends on padding"
    kinds = set(getattr(text, "layer_types", None) or ()) - _CAUSAL_LAYERS - _OTHER_LAYERS
    if kinds:
        return f"{name} has layers of kind {', '.join(sorted(kinds))}, not causal attention"
    if getattr(text, "use_bidirectional_attention", False) or getattr(text, "is_prefix_lm", False):
        return f"{name} reads its prompt in both directions"
    if any(layer_values(text, "attention_chunk_size")):
        return f"{name} attends in chunks"
    windows = sorted(key for key, value in vars(text).items() if "window" in key and isinstance(value, int) and value)
    unknown = [key for key in windows if key != "sliding_window" and not key.endswith(_LAYERED_WINDOWS)]
    if unknown:
        return f"{name} has an attention window of its own making ({', '.join(unknown)})"
    if getattr(text, "output_router_logits", False):
        return f"{name} computes router logits over all tokens of a pass (output_router_logits)"
    changing = sorted(_rope_types(getattr(text, "rope_parameters", None)) - _STATIC_ROPE)
    if changing:
        return f"{name} has positions of type {', '.join(changing)}, which depend on the length of a pass"
    # FSDP2 swaps a module's class for a subclass of its own making, so the model's own may be further up.
    homes = [sys.modules.get(kind.__module__) for kind in type(getattr(model, "base_model", model)).__mro__]
    if not any(hasattr(home, "create_causal_mask") for home in homes):
        return f"{name} builds its attention mask in an unsupported way"
    return None


def _window(text: Any) -> int | None:
    windows = [size for size in layer_values(text, "sliding_window") if isinstance(size, int) and size > 0]
    window = min(windows, default=None)
    if window is None or getattr(text, "use_sliding_window", True) is False:
        return None
    kinds = getattr(text, "layer_types", None)
    return None if kinds and "sliding_attention" not in kinds else window


def _rope_types(parameters: Any) -> set[str]:
    if not isinstance(parameters, dict):
        return set()
    if parameters.keys() & {"rope_type", "rope_theta"}:
        return {str(parameters.get("rope_type", "default"))}
    return set().union(*map(_rope_types, parameters.values()))
