"""Models of any shape with random weights, quantised on the fly: no download, and no 16-bit copy on the card."""

import copy
from typing import Any

import torch
from torch import nn


def at_depth(config: Any, layers: int) -> Any:
    """A copy of a config, of its text part where there are others, with so many layers and no stored quantisation."""
    from grpo_plus.memory.shape import without_quantisation

    made = copy.deepcopy(without_quantisation(config).get_text_config())
    kinds = getattr(made, "layer_types", None)
    made.num_hidden_layers = layers
    if kinds:
        made.layer_types = (list(kinds) * layers)[:layers]
    return made


def random_model(config: Any, device: torch.device, dtype: torch.dtype, *, four_bit: bool = True) -> Any:
    """A causal language model on ``device``, its linear layers in NF4 with double quantisation if asked for."""
    from transformers import AutoModelForCausalLM
    from transformers.initialization import no_init_weights

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
    if not four_bit:
        return _ending(model.to(device))
    _quantise(model, device, dtype)
    return _ending(model)


def _ending(model: Any) -> Any:
    model.generation_config.eos_token_id = 1
    return model


def _quantise(model: Any, device: torch.device, dtype: torch.dtype) -> None:
    from transformers import BitsAndBytesConfig
    from transformers.pytorch_utils import Conv1D
    from transformers.quantizers import AutoHfQuantizer

    head = model.get_output_embeddings()
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, nn.Linear | Conv1D) and child is not head:
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


def _quantised(layer: Any, device: torch.device, dtype: torch.dtype) -> nn.Module:
    from bitsandbytes.nn import Linear4bit, Params4bit

    # A Conv1D of GPT-2 keeps its weight the other way round.
    weight = layer.weight.data if isinstance(layer, nn.Linear) else layer.weight.data.T.contiguous()
    made = Linear4bit(
        weight.shape[1], weight.shape[0], layer.bias is not None, compute_dtype=dtype, quant_type="nf4", device="meta"
    )
    made.weight = Params4bit(weight, requires_grad=False, compress_statistics=True, quant_type="nf4", module=made)
    if layer.bias is not None:
        made.bias = nn.Parameter(layer.bias.data, requires_grad=False)
    layer.weight = None  # the 16-bit copy goes as soon as it is not needed
    moved: nn.Module = made.to(device)
    return moved


def number_tokenizer(vocabulary: int) -> Any:
    """A tokenizer with one word for each id: a prompt of numbers has as many tokens as numbers."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    pad, end = "<pad>", "<end>"
    words = {pad: 0, end: 1} | {str(number): number + 2 for number in range(vocabulary - 2)}
    made = Tokenizer(models.WordLevel(words, unk_token=pad))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=made, pad_token=pad, eos_token=end, padding_side="left")
