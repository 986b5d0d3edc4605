"""Modules that drop at random while they train."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from torch import nn


def drops(module: nn.Module) -> bool:
    """Return True for a dropout layer with a positive rate, or a module with a positive dropout attribute."""
    own = vars(module).items()
    kind = isinstance(module, nn.modules.dropout._DropoutNd)  # noqa: SLF001 - the base of all kinds of dropout
    return any(isinstance(rate, float) and rate > 0 for name, rate in own if "drop" in name or (kind and name == "p"))


def has_dropout(model: nn.Module) -> bool:
    """Return True if dropout is active in the model now."""
    return any(module.training and drops(module) for module in model.modules())


def unpacked(module: nn.Module) -> bool:
    """Return True unless the module has quantised weights, which evaluation mode may repack."""
    return not any(hasattr(weight, "quant_state") for weight in module.parameters(recurse=False))


@contextmanager
def without_dropout(model: nn.Module, chosen: Callable[[nn.Module], bool] = lambda _: True) -> Iterator[None]:
    """Put the ``chosen`` modules into evaluation mode inside the block and restore each mode afterwards.

    In training mode dropout (of the adapters, and of the attention in some checkpoints) is active while sampling: the
    log-probabilities of the update then belong to a different model.
    """
    modes = [(module, module.training) for module in model.modules() if chosen(module)]
    for module, _ in modes:
        module.training = False
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training
