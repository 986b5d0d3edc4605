"""Modules that drop at random while they train."""

from torch import nn


def drops(module: nn.Module) -> bool:
    """Dropout changes what the module gives: as a layer of its own, or as a number that attention drops at."""
    own = vars(module).items()
    kind = isinstance(module, nn.modules.dropout._DropoutNd)  # noqa: SLF001 - the base of all kinds of dropout
    return any(isinstance(rate, float) and rate > 0 for name, rate in own if "drop" in name or (kind and name == "p"))
