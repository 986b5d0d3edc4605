"""Sample from the model that is trained, not from one with parts of its adapters switched off at random."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

from grpo_plus.engine.dropout import drops


@contextmanager
def without_dropout(model: nn.Module) -> Iterator[None]:
    """Evaluation mode inside the block; every module gets its own mode back afterwards.

    Sampling in training mode draws from a model with dropout (that of the adapters, and of the attention where a
    checkpoint has any): the log-probabilities that are trained on then belong to another model than the one that spoke.
    """
    modes = [(module, module.training) for module in model.modules()]
    for module, _ in modes:
        module.training = False
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


def has_dropout(model: nn.Module) -> bool:
    """Dropout changes what the model gives now."""
    return any(module.training and drops(module) for module in model.modules())
