"""Memory of a critic or a reward model beside the policy: pure arithmetic, as in `estimate`.

A trunk has a head and no pass with a gradient: it reads hidden states of the policy, which are made once, pass by pass,
and wait in main memory for the whole generation batch. An adapter adds its own float32 weights, gradients and moments
of Adam, and its pass has the policy's activations, not at the same time. A model of its own is held in float32 with
gradients and moments of all its weights. What is frozen counts as trained: the estimate is too large by that.
"""

from dataclasses import dataclass
from typing import Any

from grpo_plus.memory.shape import ModelShape

FULL = 4
"""Bytes of its weights and gradients: float32."""
ADAM = 8
"""Bytes of the two moments of a weight."""


@dataclass(frozen=True)
class Head:
    """What stands beside the policy.

    Attributes:
        name: ``critic`` or ``reward_model``.
        kind: where it stands: ``trunk``, ``adapter`` or ``model``.
        rank: of its adapter; None: the policy's.
        shape: of a model of its own; None: the policy's.
        least_rows: of a pass with a gradient; two where it compares completions.
    """

    name: str
    kind: str
    rank: int | None = None
    shape: ModelShape | None = None
    least_rows: int = 1


@dataclass(frozen=True)
class HeadMemory:
    """Bytes of a head: weights and moments that stay (``resident``), and its own update, apart from the policy's."""

    name: str
    kind: str
    resident: float
    update: float


def layer_activations(shape: ModelShape, tokens: int, width: int) -> float:
    """What one layer keeps for its backward pass, and its gradients."""
    return width * tokens * (8 * shape.hidden + 3 * shape.attention_width + 8 * shape.intermediate)


def forward_layer(shape: ModelShape, tokens: int, width: int) -> float:
    """The widest moment of a layer without a gradient."""
    return width * tokens * (3 * shape.hidden + 2 * shape.attention_width + 3 * shape.intermediate)


def kept_activations(shape: ModelShape, tokens: int, width: int, *, checkpointing: bool, share: float) -> float:
    """What all layers keep for the backward pass; ``share`` of a layer's activations where nothing is recomputed."""
    if checkpointing:
        return width * shape.layers * tokens * shape.hidden
    return share * (shape.layers - 1) * layer_activations(shape, tokens, width)


def head_memory(head: Head, shape: ModelShape, settings: Any, *, dequantised: float, share: float) -> HeadMemory:
    """Memory of a head beside a policy of this ``shape``; ``settings`` are those of `estimate`."""
    own = head.shape or shape
    one = own.hidden + 1
    if head.kind == "trunk":
        reading = FULL * one + _features(shape, settings) + dequantised
        return HeadMemory(head.name, head.kind, (FULL + ADAM) * one, reading)
    rows = max(head.least_rows, settings.micro_batch)
    tokens = rows * (settings.prompt_length + settings.completion_length)
    if head.kind == "adapter":
        trained = shape.lora_weights(head.rank or settings.rank, settings.targets) + one
        between, beside = settings.width, dequantised
    else:
        trained = own.linear_weights + own.other_weights - own.head_weights + one
        # Layers compute in the narrow type from copies of their weights; what is kept between them is float32.
        copied = own.linear_weights / (own.layers if settings.checkpointing else 1)
        between, beside = FULL, settings.width * copied if settings.width < FULL else 0.0
    kept = kept_activations(
        own,
        tokens,
        between if settings.checkpointing else settings.width,
        checkpointing=settings.checkpointing,
        share=share,
    )
    passing = kept + layer_activations(own, tokens, settings.width) + beside
    return HeadMemory(head.name, head.kind, (FULL + ADAM) * trained, FULL * trained + passing)


def _features(shape: ModelShape, settings: Any) -> float:
    """A pass without a gradient: its widest layer, or its hidden states beside those of the completions.

    The latter are there once more in float32 for the head to read. A micro-batch of them that is learned from takes no
    more than that.
    """
    width: int = settings.width
    read: int = settings.micro_batch * settings.completion_length
    tokens: int = settings.micro_batch * settings.prompt_length + read
    kept = width * (tokens + read) + (FULL * read if width < FULL else 0)
    return max(float(kept * shape.hidden), forward_layer(shape, tokens, width))
