"""Sampling settings that change the distribution: probabilities of samples then differ from the model's."""

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import torch

from grpo_plus.recipe.values import mapping

_SCORED = frozenset(["TemperatureLogitsWarper", "TopKLogitsWarper", "TopPLogitsWarper", "MinPLogitsWarper"])
"""Processors of transformers that log-probabilities account for, or that have notes of their own."""
_SAME = frozenset(["LogitNormalization", "InfNanRemoveLogitsProcessor"])
"""Processors that leave probabilities as they are."""
UNSCORED = (
    "this changes the samples, and the loss scores tokens without it: log-probabilities are not those of the "
    "samples. To switch it off: a neutral value in generation_kwargs"
)
_NEUTRAL = {"top_p": (None, 1), "top_k": (None, 0, -1), "min_p": (None, 0)}


def truncation(config: Any) -> dict[str, Any]:
    """The settings of a config, by name, that leave tokens out when completions are sampled."""
    own = mapping("generation_kwargs", config.generation_kwargs)
    values = {name: own.get(name, getattr(config, name, None)) for name in _NEUTRAL}
    return {name: value for name, value in values.items() if value not in _NEUTRAL[name]}


def shown(config: Any) -> str:
    """These settings in words."""
    return ", ".join(f"{name} ({value!r})" for name, value in truncation(config).items())


def reshaping(values: Mapping[str, Any]) -> str:
    """The settings, with their values, that change the distribution of tokens and that log-probabilities leave out.

    >>> reshaping({"typical_p": 0.5, "top_p": 0.9, "use_cache": True})
    'typical_p (0.5)'
    """
    return ", ".join(
        f"{name} ({value!r})" for name, value in values.items() if value is not None and _reshapes(name, value)
    )


def _reshapes(name: str, value: Any) -> bool:
    try:
        config, chain = _processors({name: value})
        mode = str(getattr(config.get_generation_mode(), "value", ""))
    except Exception:  # noqa: BLE001 - reported where values are checked
        return False
    kinds = {type(one).__name__ for one in chain}
    return bool(kinds - _SCORED - _SAME) or mode not in ("sample", "assisted_generation")


def _processors(values: Mapping[str, Any]) -> tuple[Any, Any]:
    """A generation config of these values, and the logits processors that `generate` builds of it."""
    from transformers import GenerationConfig, GenerationMixin

    config = GenerationConfig(**{"max_new_tokens": 16, "do_sample": True, **values})
    for token in ("eos", "pad", "bos"):
        setattr(config, f"_{token}_token_tensor", torch.tensor([0]))
    model: Any = object.__new__(type("Unloaded", (GenerationMixin,), {}))
    model.config, model.generation_config = SimpleNamespace(vocab_size=2**31, is_encoder_decoder=False), config
    return config, model._get_logits_processor(config, input_ids_seq_length=1, device="cpu", model_kwargs={})  # noqa: SLF001 - the one place that builds them
