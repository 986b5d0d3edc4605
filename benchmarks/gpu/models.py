"""Models with random weights, built on the device: any shape, in 4 bits too, without a download or a 16-bit copy."""

from typing import Any

import torch
from torch import nn

SHAPES: dict[str, dict[str, Any]] = {
    "tiny": {"hidden": 64, "intermediate": 128, "layers": 2, "heads": 4, "kv_heads": 2, "tied": True, "vocab": 512},
    "0.5B": {"hidden": 896, "intermediate": 4864, "layers": 24, "heads": 14, "kv_heads": 2, "tied": True},
    "1.5B": {"hidden": 1536, "intermediate": 8960, "layers": 28, "heads": 12, "kv_heads": 2, "tied": True},
    "3B": {"hidden": 2048, "intermediate": 11008, "layers": 36, "heads": 16, "kv_heads": 2, "tied": True},
    "8B": {"hidden": 4096, "intermediate": 12288, "layers": 36, "heads": 32, "kv_heads": 8, "tied": False},
}
"""Sizes of the Qwen 2.5 and Qwen 3 families."""


def config_of(size: str) -> Any:
    """The config of a shape; ``llama-8B`` is Llama 3.1's, all others are built as Qwen 3."""
    from transformers import LlamaConfig, Qwen3Config

    if size == "llama-8B":
        return LlamaConfig(
            vocab_size=128_256, hidden_size=4096, intermediate_size=14_336, num_hidden_layers=32,
            num_attention_heads=32, num_key_value_heads=8, max_position_embeddings=131_072,
            rope_parameters={"rope_type": "default", "rope_theta": 500_000.0},
        )  # fmt: skip
    shape = SHAPES[size]
    return Qwen3Config(
        vocab_size=shape.get("vocab", 151_936),
        hidden_size=shape["hidden"],
        intermediate_size=shape["intermediate"],
        num_hidden_layers=shape["layers"],
        num_attention_heads=shape["heads"],
        num_key_value_heads=shape["kv_heads"],
        head_dim=shape["hidden"] // shape["heads"],
        tie_word_embeddings=shape["tied"],
        max_position_embeddings=131_072,
    )


def random_model(config: Any, device: torch.device, dtype: torch.dtype, *, four_bit: bool = False) -> Any:
    """A causal language model on ``device``, its linear layers in NF4 with double quantisation if asked for.

    Weights are slices of one million normal numbers of deviation 0.02, the same each time. No completion ends by
    itself before its limit, but by chance.
    """
    from accelerate import init_empty_weights
    from transformers import AutoModelForCausalLM
    from transformers.initialization import no_init_weights

    with no_init_weights(), init_empty_weights(include_buffers=False):
        model = AutoModelForCausalLM.from_config(config, dtype=dtype)
    noise = (0.02 * torch.randn(1 << 20, generator=torch.Generator().manual_seed(0))).to(device)
    head = model.get_output_embeddings()
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if four_bit and _linear(child) and child is not head:
                setattr(module, name, _quantised(child, noise, dtype))
    done: dict[int, nn.Parameter] = {}
    for module in model.modules():
        for name, parameter in list(module.named_parameters(recurse=False)):
            if parameter.is_meta:
                if id(parameter) not in done:
                    made = _filled(parameter, noise, ones="norm" in type(module).__name__.lower())
                    done[id(parameter)] = nn.Parameter(made, requires_grad=parameter.requires_grad)
                setattr(module, name, done[id(parameter)])
        for name, buffer in list(module.named_buffers(recurse=False)):
            setattr(module, name, buffer.to(device))
    model.tie_weights()
    if four_bit:
        _say_quantised(model, dtype)
    model.generation_config.eos_token_id = 1
    return model


def _filled(like: torch.Tensor, noise: torch.Tensor, *, ones: bool) -> torch.Tensor:
    made = torch.ones(like.shape, dtype=like.dtype, device=noise.device)
    if not ones:
        flat = made.view(-1)
        for start in range(0, flat.numel(), noise.numel()):
            part = flat[start : start + noise.numel()]
            part.copy_(noise[: part.numel()])
    return made


def _linear(module: nn.Module) -> bool:
    from transformers.pytorch_utils import Conv1D

    return isinstance(module, nn.Linear | Conv1D)


def _quantised(layer: Any, noise: torch.Tensor, dtype: torch.dtype) -> nn.Module:
    from bitsandbytes.nn import Linear4bit, Params4bit

    weight = _filled(layer.weight.to(dtype), noise, ones=False)
    if not isinstance(layer, nn.Linear):  # a Conv1D of GPT-2 keeps its weight the other way round
        weight = weight.T.contiguous()
    made = Linear4bit(
        weight.shape[1], weight.shape[0], layer.bias is not None, compute_dtype=dtype, quant_type="nf4", device="meta"
    )
    made.weight = Params4bit(weight, requires_grad=False, compress_statistics=True, quant_type="nf4", module=made)
    if layer.bias is not None:
        made.bias = nn.Parameter(torch.zeros(layer.bias.shape, dtype=dtype, device=noise.device), requires_grad=False)
    moved: nn.Module = made.to(noise.device)
    return moved


def _say_quantised(model: Any, dtype: torch.dtype) -> None:
    """What loading a quantised model leaves on it."""
    from transformers import BitsAndBytesConfig
    from transformers.quantizers import AutoHfQuantizer

    quantisation = BitsAndBytesConfig(
        load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True, bnb_4bit_compute_dtype=dtype
    )
    model.requires_grad_(requires_grad=False)
    model.hf_quantizer = AutoHfQuantizer.from_config(quantisation, pre_quantized=False)
    model.quantization_method = quantisation.quant_method
    model.config.quantization_config = quantisation
    model.is_quantized = model.is_loaded_in_4bit = True


def number_tokenizer(vocabulary: int) -> Any:
    """A tokenizer with one word for each id: a prompt of numbers has as many tokens as numbers."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    pad, end = "<pad>", "<end>"
    words = {pad: 0, end: 1} | {str(number): number + 2 for number in range(vocabulary - 2)}
    made = Tokenizer(models.WordLevel(words, unk_token=pad))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=made, pad_token=pad, eos_token=end, padding_side="left")
