"""A linear head with one output, and the state of a head, its trunk and its optimizer as tensors of one file."""

from collections.abc import Mapping
from typing import Protocol

import torch
from torch import Tensor, nn


class ScalarHead(nn.Module):
    """w · h + b for hidden states (…, H), in the head's own dtype at any precision of the pass.

    Weights are initially 0, so every value is 0 before the first update. With ``spread`` they are random normal with
    this standard deviation, from a separate generator.
    """

    def __init__(
        self, hidden_size: int, dtype: torch.dtype = torch.float32, *, spread: float = 0.0, device: str = "cpu"
    ) -> None:
        super().__init__()
        weight_H = torch.zeros(hidden_size, dtype=dtype)
        if spread:
            weight_H.normal_(0.0, spread, generator=torch.Generator().manual_seed(0))
        self.weight = nn.Parameter(weight_H.to(device))
        self.bias = nn.Parameter(torch.zeros((), dtype=dtype, device=device))

    def forward(self, hidden: Tensor) -> Tensor:
        """Return one number for each hidden state."""
        with torch.autocast(hidden.device.type, enabled=False):
            return hidden.to(self.weight.dtype) @ self.weight + self.bias

    def tensors(self) -> dict[str, Tensor]:
        """Return copies of the weights on the CPU."""
        return copies(dict(self.named_parameters()))

    def load_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore the weights that `tensors` returned."""
        load_into(dict(self.named_parameters()), tensors)


class Stored(Protocol):
    """Weights or moments that can be saved and restored."""

    def tensors(self) -> dict[str, Tensor]:
        """Return copies on the CPU."""

    def load_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore what `tensors` returned; raises a ValueError if the tensors do not fit."""


def tensors_of(parts: Mapping[str, Stored]) -> dict[str, Tensor]:
    """Return the tensors of all parts under names ``part/name``."""
    return {f"{part}/{name}": tensor for part, owner in parts.items() for name, tensor in owner.tensors().items()}


def load_parts(parts: Mapping[str, Stored], tensors: Mapping[str, Tensor]) -> None:
    """Restore each part from the result of `tensors_of`; raises a ValueError if the tensors do not fit."""
    for part, owner in parts.items():
        before = f"{part}/"
        own = {name.removeprefix(before): one for name, one in tensors.items() if name.startswith(before)}
        owner.load_tensors(own)


def copies(parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return copies of named tensors on the CPU."""
    return {name: tensor.detach().cpu().clone() for name, tensor in parameters.items()}


@torch.no_grad()
def load_into(parameters: Mapping[str, Tensor], tensors: Mapping[str, Tensor]) -> None:
    """Copy tensors into parameters of the same names and shapes."""
    shapes = {name: tuple(tensor.shape) for name, tensor in parameters.items()}
    stored = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    if shapes != stored:
        name = min(name for name in shapes.keys() | stored.keys() if shapes.get(name) != stored.get(name))
        here, there = shapes.get(name, "none"), stored.get(name, "none")
        raise ValueError(f"the weight {name!r} has the shape {there} there and {here} here")
    for name, parameter in parameters.items():
        parameter.copy_(tensors[name])
