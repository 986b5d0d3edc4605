"""A number read off the hidden states of a language model: the value of a state, or the reward of a text."""

from grpo_plus.heads.adamw import OwnAdamW
from grpo_plus.heads.adapter import AdapterTrunk
from grpo_plus.heads.own_model import ModelTrunk, compare_tokenizers
from grpo_plus.heads.passes import Passes, distributed_problems
from grpo_plus.heads.scalar import ScalarHead, Stored, load_parts, tensors_of
from grpo_plus.heads.trunk import FREEZABLE, HeadError, PolicyTrunk, Trunk

__all__ = [
    "FREEZABLE",
    "AdapterTrunk",
    "HeadError",
    "ModelTrunk",
    "OwnAdamW",
    "Passes",
    "PolicyTrunk",
    "ScalarHead",
    "Stored",
    "Trunk",
    "compare_tokenizers",
    "distributed_problems",
    "load_parts",
    "tensors_of",
]
