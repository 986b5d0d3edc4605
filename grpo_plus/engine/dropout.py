"""Modules that drop at random while they train."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from torch import nn


def drops(module: nn.Module) -> bool:
    """Dropout changes what the module gives: as a layer of its own, or as a number that attention drops at."""
    own = vars(module).items()
    kind = isinstance(module, nn.modules.dropout._DropoutNd)  # noqa: SLF001 - the base of all kinds of dropout
    return any(isinstance(rate, float) and rate > 0 for name, rate in own if "drop" in name or (kind and name == "p"))


def has_dropout(model: nn.Module) -> bool:
    """Dropout changes what the model gives now."""
    return any(module.training and drops(module) for module in model.modules())


def unpacked(module: nn.Module) -> bool:
    """The module is no layer of quantised weights, which may repack them in evaluation mode."""
    return not any(hasattr(weight, "quant_state") for weight in module.parameters(recurse=False))


@contextmanager
def without_dropout(model: nn.Module, chosen: Callable[[nn.Module], bool] = lambda _: True) -> Iterator[None]:
    """Evaluation mode inside the block, of the ``chosen`` modules; each gets its own mode back afterwards.

    Sampling in training mode draws from a model with dropout (that of the adapters, and of the attention where a
    checkpoint has any): the log-probabilities that are trained on then belong to another model than the one that spoke.
    """
    modes = [(module, module.training) for module in model.modules() if chosen(module)]
    for module, _ in modes:
        module.training = False
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training
