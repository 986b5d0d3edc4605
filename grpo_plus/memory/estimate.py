"""Estimates of the memory of a step, part by part; pure arithmetic on the sizes of a model and a run's settings.

The formulas are estimates for bitsandbytes NF4 with double quantisation, adapters of PEFT, TRL's fused head and the
attention of PyTorch without a square matrix. Countable parts (weights, adapters, optimizer, cache) are exact up to
tables of a few kilobytes; activations and the allowance for the allocator are rounded up.
"""

from dataclasses import dataclass, fields, replace
from typing import Any

from grpo_plus.memory.shape import ModelShape

GIB = 1 << 30
NF4_BITS = 4 + 8 / 64 + 32 / (64 * 256)
"""Four bits a weight, an 8-bit scale for 64 weights, a 32-bit scale for 256 scales."""
NF4_SIMPLE_BITS = 4 + 32 / 64
"""The same without double quantisation."""
INT8_BYTES = 1.001
"""One byte a weight, and a 32-bit scale for each row (of 4096 weights in a model of 8e9)."""
HEAD_TILE = 256 << 20
"""Logits of one chunk of the fused head, with their gradient."""
SAVED_SHARE = 0.75
"""The part of a layer's backward memory that is stored in the forward pass; the rest is gradients."""
ALLOCATOR = 1.08
"""Factor for fragmentation."""
RUNTIME = 0.6 * GIB
"""CUDA's context and libraries."""

OPTIMIZER_BYTES = {"adamw_8bit": 2.03, "paged_adamw_8bit": 2.03, "sgd": 0.0, "adafactor": 0.1, "lion_8bit": 1.02}
"""Bytes of state for each trained weight, by optimizer; Adam's two float32 moments unless listed."""


@dataclass(frozen=True)
class Settings:
    """The settings of a run that memory depends on.

    Lengths are the most tokens of a prompt (P) and a completion (C). ``micro_batch`` are the completions of one forward
    and backward pass, ``rollout_rows`` those decoded at once, of so many distinct ``prompts``. ``rank`` and ``targets``
    are the adapters', as in PEFT; the optimizer has TRL's name. Linear layers are NF4 (``four_bit``), LLM.int8
    (``eight_bit``) or as wide as all other weights. ``width`` is the bytes of a number in the compute type: 2, or 4 for
    float32. A critic and a reward model are not counted.
    """

    micro_batch: int = 1
    rollout_rows: int = 8
    prompt_length: int = 256
    completion_length: int = 1024
    prompts: int = 1
    rank: int = 16
    targets: Any = None
    checkpointing: bool = True
    optimizer: str = "paged_adamw_8bit"
    four_bit: bool = True
    eight_bit: bool = False
    double_quantisation: bool = True
    width: int = 2

    def but(self, **changes: Any) -> "Settings":
        """Return a copy with changed values."""
        return replace(self, **changes)


ASSUMED = {"train": (ALLOCATOR, RUNTIME), "rollout": (ALLOCATOR, RUNTIME)}
"""Factor and constant of the card memory for the parts of each phase of a step.

Assumed, until `python -m benchmarks.gpu --only fit` has measured it on a card.
"""


@dataclass(frozen=True)
class MemoryEstimate:
    """Bytes, part by part; the ``head``'s tile of logits never exists at the same time as a layer's activations."""

    weights: float
    adapters: float
    optimizer: float
    checkpoints: float
    activations: float
    head: float
    cache: float
    prefill: float
    dequantised: float

    @property
    def train(self) -> float:
        """The peak of the update."""
        return self._resident + self.checkpoints + max(self.activations + self.dequantised, self.head)

    @property
    def rollout(self) -> float:
        """The peak of the rollout."""
        return self._resident + self.cache + self.prefill + self.dequantised

    @property
    def peak(self) -> float:
        """The card memory that the step needs."""
        phases = {"train": self.train, "rollout": self.rollout}
        return max(factor * phases[phase] + constant for phase, (factor, constant) in ASSUMED.items())

    @property
    def _resident(self) -> float:
        return self.weights + self.adapters + self.optimizer

    def parts(self) -> dict[str, float]:
        """Return the parts by name, in order."""
        return {spec.name: getattr(self, spec.name) for spec in fields(self)}


def estimate(shape: ModelShape, settings: Settings) -> MemoryEstimate:
    """Return the memory of one training step."""
    tokens = settings.micro_batch * (settings.prompt_length + settings.completion_length)
    trained = shape.lora_weights(settings.rank, settings.targets)
    quantised = settings.four_bit or settings.eight_bit
    return MemoryEstimate(
        weights=weights(shape, settings),
        adapters=(4 + 4) * trained,
        optimizer=OPTIMIZER_BYTES.get(settings.optimizer, 8) * trained,
        checkpoints=saved_activations(shape, tokens, settings.width, checkpointing=settings.checkpointing),
        activations=layer_activations(shape, tokens, settings.width),
        head=HEAD_TILE + 6 * tokens * shape.hidden,
        cache=cache(shape, settings),
        prefill=prefill(shape, settings),
        dequantised=2 * settings.width * shape.hidden * shape.intermediate if quantised else 0,
    )


def weights(shape: ModelShape, settings: Settings) -> float:
    """Return the bytes of the base: linear layers quantised, with their scales; all else in the compute type."""
    bits = NF4_BITS if settings.double_quantisation else NF4_SIMPLE_BITS
    linear = bits / 8 if settings.four_bit else INT8_BYTES if settings.eight_bit else settings.width
    return linear * shape.linear_weights + settings.width * shape.other_weights


def cache(shape: ModelShape, settings: Settings) -> float:
    """Return the bytes of keys and values of all rows at full length."""
    length = settings.prompt_length + settings.completion_length
    tokens = sum(length if window is None else min(window, length) for window in shape.windows)
    return 2 * settings.width * shape.kv_heads * shape.head_dim * settings.rollout_rows * tokens


def prefill(shape: ModelShape, settings: Settings) -> float:
    """Return the larger of: one layer over all prompt tokens; the logits of a step, in float32, sorted once."""
    layer = forward_layer(shape, settings.prompts * settings.prompt_length, settings.width)
    return max(layer, 12 * settings.rollout_rows * shape.vocabulary)


def layer_activations(shape: ModelShape, tokens: int, width: int) -> float:
    """Return the bytes that one layer stores for its backward pass, and its gradients."""
    return width * tokens * (8 * shape.hidden + 3 * shape.attention_width + 8 * shape.intermediate)


def forward_layer(shape: ModelShape, tokens: int, width: int) -> float:
    """Return the peak of a layer without a gradient."""
    return width * tokens * (3 * shape.hidden + 2 * shape.attention_width + 3 * shape.intermediate)


def saved_activations(shape: ModelShape, tokens: int, width: int, *, checkpointing: bool) -> float:
    """Return the bytes that all layers store for the backward pass, a share of their activations unless recomputed."""
    if checkpointing:
        return width * shape.layers * tokens * shape.hidden
    return SAVED_SHARE * (shape.layers - 1) * layer_activations(shape, tokens, width)
