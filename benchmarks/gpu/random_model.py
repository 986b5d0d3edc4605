"""Shapes of models that people train, and random weights for them: no download."""

from typing import Any

import torch

from grpo_plus.memory.random_model import number_tokenizer as tokenizer
from grpo_plus.memory.random_model import random_model

__all__ = ["SHAPES", "config_of", "device_problem", "random_4bit_model", "tokenizer"]

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


def device_problem(name: str) -> str | None:
    """Why nothing can run on a device, with what can be done; None if it can."""
    if not name.startswith("cuda") or torch.cuda.is_available():
        return None
    return (
        f"--device is {name}, but this PyTorch ({torch.__version__}) sees no CUDA card. Run this where there is one; "
        "with a size of tiny and --device cpu it shows that the script works, and measures nothing."
    )


def random_4bit_model(size: str, device: torch.device, dtype: torch.dtype) -> Any:
    """A model of a shape, its linear layers in NF4 with double quantisation, on ``device``."""
    return random_model(config_of(size), device, dtype)
