"""Models of real shapes with random weights, quantised on the fly: no download, and no 16-bit copy on the card."""

from typing import Any

import torch
from torch import nn

SHAPES: dict[str, dict[str, Any]] = {
    "tiny": {"hidden": 64, "intermediate": 128, "layers": 2, "heads": 4, "kv_heads": 2, "tied": True, "vocab": 512},
    "0.5B": {"hidden": 896, "intermediate": 4864, "layers": 24, "heads": 14, "kv_heads": 2, "tied": True},
    "1.5B": {"hidden": 1536, "intermediate": 8960, "layers": 28, "heads": 12, "kv_heads": 2, "tied": True},
    "3B": {"hidden": 2048, "intermediate": 11008, "layers": 36, "heads": 16, "kv_heads": 2, "tied": True},
    "8B": {"hidden": 4096, "intermediate": 12288, "layers": 36, "heads": 32, "kv_heads": 8, "tied": False},
    "14B": {"hidden": 5120, "intermediate": 17408, "layers": 40, "heads": 40, "kv_heads": 8, "tied": False},
}
"""Sizes of the Qwen 2.5 and Qwen 3 families."""


def config_of(size: str) -> Any:
    """The config of a shape."""
    from transformers import Qwen3Config

    shape = SHAPES[size]
    return Qwen3Config(
        vocab_size=shape.get("vocab", 151936),
        hidden_size=shape["hidden"],
        intermediate_size=shape["intermediate"],
        num_hidden_layers=shape["layers"],
        num_attention_heads=shape["heads"],
        num_key_value_heads=shape["kv_heads"],
        head_dim=shape["hidden"] // shape["heads"],
        tie_word_embeddings=shape["tied"],
        max_position_embeddings=32768,
    )


def random_4bit_model(size: str, device: torch.device, dtype: torch.dtype) -> Any:
    """A model of a shape, its linear layers in NF4 with double quantisation, on ``device``."""
    from transformers import AutoModelForCausalLM, BitsAndBytesConfig
    from transformers.initialization import no_init_weights
    from transformers.quantizers import AutoHfQuantizer

    config = config_of(size)
    with no_init_weights():
        model = AutoModelForCausalLM.from_config(config, dtype=dtype)
    noise = 0.02 * torch.randn(1 << 20, generator=torch.Generator().manual_seed(0))
    for name, parameter in model.named_parameters():
        if "norm" in name:
            nn.init.ones_(parameter)
        else:
            flat = parameter.data.view(-1)
            for start in range(0, flat.numel(), noise.numel()):  # drawing billions of numbers on a CPU takes minutes
                part = flat[start : start + noise.numel()]
                part.copy_(noise[: part.numel()])
    model.tie_weights()
    head = model.get_output_embeddings()
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, nn.Linear) and child is not head:
                setattr(module, name, _quantised(child, device, dtype))
    for module in model.modules():
        for tensors in (module._parameters, module._buffers):  # noqa: SLF001 - Module.to would touch the packed weights
            for name, tensor in tensors.items():
                if tensor is not None and tensor.device != device and not hasattr(tensor, "quant_state"):
                    moved = tensor.data.to(device)
                    tensors[name] = nn.Parameter(moved, requires_grad=False) if tensors is module._parameters else moved  # noqa: SLF001 - same
    model.tie_weights()
    quantisation = BitsAndBytesConfig(
        load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True, bnb_4bit_compute_dtype=dtype
    )
    model.hf_quantizer = AutoHfQuantizer.from_config(quantisation, pre_quantized=False)
    model.quantization_method = quantisation.quant_method
    model.config.quantization_config = quantisation
    model.is_quantized = model.is_loaded_in_4bit = True
    model.generation_config.eos_token_id = 1
    return model


def _quantised(linear: nn.Linear, device: torch.device, dtype: torch.dtype) -> nn.Module:
    from bitsandbytes.nn import Linear4bit, Params4bit

    layer = Linear4bit(
        linear.in_features, linear.out_features, linear.bias is not None, compute_dtype=dtype, quant_type="nf4",
        device="meta",
    )  # fmt: skip
    layer.weight = Params4bit(
        linear.weight.data, requires_grad=False, compress_statistics=True, quant_type="nf4", module=layer
    )
    if linear.bias is not None:
        layer.bias = nn.Parameter(linear.bias.data, requires_grad=False)
    linear.weight = None  # type: ignore[assignment]  # the 16-bit copy goes as soon as it is not needed
    return layer.to(device)


def tokenizer(vocabulary: int) -> Any:
    """A tokenizer with one word for each id, of which a benchmark only uses numbers."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = {"<pad>": 0, "<end>": 1} | {str(number): number + 2 for number in range(vocabulary - 2)}
    made = Tokenizer(models.WordLevel(words, unk_token="<pad>"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=made, pad_token="<pad>", eos_token="<end>", padding_side="left")
