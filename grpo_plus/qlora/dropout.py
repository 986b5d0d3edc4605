"""Sample from the model that is trained, not from one with parts of its adapters switched off at random."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


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
    """Dropout changes what the model gives now: in a layer of its own, or as a number that attention drops at."""

    def drops(module: nn.Module) -> bool:
        own = vars(module).items()
        kind = isinstance(module, nn.modules.dropout._DropoutNd)  # noqa: SLF001
        return any(
            isinstance(rate, float) and rate > 0 for name, rate in own if "drop" in name or (kind and name == "p")
        )

    return any(module.training and drops(module) for module in model.modules())
