"""The sizes of a model, from its config alone: any architecture is built without memory and counted."""

import copy
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class ModelShape:
    """The sizes that memory depends on: widths, counts of heads and weights, the size of the vocabulary.

    ``windows`` has, for each layer with a cache, the most tokens in it; None for all. If layers differ, heads and
    widths are those of the largest. ``linear_weights`` are those that bitsandbytes quantises, ``other_weights``
    embeddings, head, norms, biases and fused experts. ``lora_units`` has, by the last part of a module's name, the
    inputs and outputs of all linear layers of that name; the adapters have rank times as many weights.
    """

    name: str
    layers: int
    hidden: int
    intermediate: int
    vocabulary: int
    heads: int
    kv_heads: int
    head_dim: int
    windows: tuple[int | None, ...]
    linear_weights: int
    other_weights: int
    lora_units: Mapping[str, int]

    @property
    def attention_width(self) -> int:
        """The total outputs of the query, key and value projections."""
        return (self.heads + 2 * self.kv_heads) * self.head_dim

    def lora_weights(self, rank: int, targets: Any = None) -> int:
        """Return the number of adapter weights; ``targets`` as in PEFT, a list of names or ``all-linear``."""
        if targets is None or isinstance(targets, str):
            return rank * sum(self.lora_units.values())
        names = {str(target).rsplit(".", maxsplit=1)[-1] for target in targets}
        return rank * sum(units for name, units in self.lora_units.items() if name in names)


def read_model_config(model: str, *, trust_remote_code: bool = False) -> Any:
    """Return the config of a model: a folder, a name on the hub, or the path of a ``config.json``."""
    from huggingface_hub.errors import StrictDataclassError
    from transformers import AutoConfig

    try:
        if model.endswith(".json"):
            values = json.loads(Path(model).read_text(encoding="utf-8"))
            return AutoConfig.for_model(values.pop("model_type"), **values)
        return AutoConfig.from_pretrained(model, trust_remote_code=trust_remote_code)
    except KeyError as error:
        raise ValueError(f"{model} names no model_type, so it is no config of transformers.") from error
    except (OSError, ValueError, TypeError, AttributeError, StrictDataclassError) as error:
        raise ValueError(f"the config of {model} cannot be read: {error}") from error


def shape_of(config: Any, name: str = "model") -> ModelShape:
    """Measure the model that a config describes, on the meta device: no weight exists, nothing is downloaded."""
    import torch
    from torch import nn
    from transformers import AutoModelForCausalLM
    from transformers.pytorch_utils import Conv1D

    text = config.get_text_config()
    if (getattr(text, "num_hidden_layers", None) or 0) < 1:
        raise ValueError(f"{name} cannot be planned for: its config has no layers.")
    if largest(text, "num_attention_heads") is None:
        raise ValueError(f"{name} cannot be planned for: its config names no attention heads (num_attention_heads).")
    plain = without_quantisation(config)
    try:
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(plain, dtype=torch.bfloat16)
    except (ValueError, ImportError, TypeError, AttributeError) as error:
        raise ValueError(
            f"{name} cannot be planned for: no causal language model can be built from its config ({error})"
        ) from error
    head = model.get_output_embeddings()
    linear, units = 0, dict[str, int]()
    for path, module in model.named_modules():
        if not isinstance(module, nn.Linear | Conv1D) or module is head:
            continue
        linear += module.weight.numel()
        leaf = path.rsplit(".", maxsplit=1)[-1]
        units[leaf] = units.get(leaf, 0) + sum(module.weight.shape)
    heads, kv_heads, head_dim = head_sizes(text)
    total = sum(parameter.numel() for parameter in model.parameters())
    experts = _expert_units(model, sum(units.values()))
    if experts:
        units["experts"] = experts
    return ModelShape(
        name=name,
        layers=text.num_hidden_layers,
        hidden=text.hidden_size,
        intermediate=_intermediate(text),
        vocabulary=text.vocab_size,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        windows=_windows(plain),
        linear_weights=linear,
        other_weights=total - linear,
        lora_units=units,
    )


def layer_values(config: Any, name: str) -> list[Any]:
    """Return the values of a config's attribute, one or one for each layer; [None] without the attribute."""
    try:
        value = getattr(config, name, None)
    except RuntimeError:  # raised by transformers if layers differ
        return [getattr(layer, name, None) for layer in config.per_layer_config]
    return list(value) if isinstance(value, list | tuple) else [value]


def largest(config: Any, *names: str) -> int | None:
    """Return the number under the first of these names in a config, the largest if layers differ."""
    for name in names:
        numbers = [value for value in layer_values(config, name) if isinstance(value, int) and value]
        if numbers:
            return max(numbers)
    return None


def head_sizes(config: Any) -> tuple[int, int, int]:
    """Return heads of queries, heads of keys and values, and their width, by `largest`; one head by default."""
    heads = largest(config, "num_attention_heads", "n_head") or 1
    width = largest(config, "head_dim") or (largest(config, "hidden_size", "n_embd") or 1) // heads
    return heads, largest(config, "num_key_value_heads") or heads, width


def without_quantisation(config: Any) -> Any:
    """Return the config without its quantisation, which does not change the number of weights."""
    if getattr(config, "quantization_config", None) is None:
        return config
    plain = copy.deepcopy(config)
    del plain.quantization_config
    return plain


def _intermediate(text: Any) -> int:
    expert = largest(text, "moe_intermediate_size")
    if expert:
        return expert * (largest(text, "num_experts_per_tok") or 1)
    return largest(text, "intermediate_size", "n_inner", "ffn_dim") or 4 * int(text.hidden_size)


def _windows(config: Any) -> tuple[int | None, ...]:
    from transformers.cache_utils import DynamicCache, DynamicLayer

    layers = [layer for layer in DynamicCache(config=config).layers if isinstance(layer, DynamicLayer)]
    return tuple(int(layer.sliding_window) if layer.is_sliding else None for layer in layers)


def _expert_units(model: Any, dense: int) -> int:
    """Return PEFT's adapter weights per rank on fused experts, without the ``dense`` ones of linear layers."""
    import warnings

    from peft import LoraConfig, get_peft_model

    if not any(parameter.dim() == 3 for parameter in model.parameters()):
        return 0
    rank = 16
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        adapted = get_peft_model(model, LoraConfig(r=rank, target_modules="all-linear", task_type="CAUSAL_LM"))
    total = sum(parameter.numel() for parameter in adapted.parameters() if parameter.requires_grad)
    return int(total // rank - dense)
