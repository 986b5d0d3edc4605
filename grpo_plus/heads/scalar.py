"""A linear head with one output, and how a head, its trunk and its optimizer are the tensors of one file."""

from collections.abc import Mapping
from typing import Protocol

import torch
from torch import Tensor, nn


class ScalarHead(nn.Module):
    """w · h + b for hidden states (…, H), in the head's own dtype, whatever precision the pass ran in.

    Weights start at 0, so that every value is 0 before the first update; with ``spread`` they are drawn from a normal
    distribution of this standard deviation, by a generator of their own.
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
        """One number for each hidden state."""
        with torch.autocast(hidden.device.type, enabled=False):
            return hidden.to(self.weight.dtype) @ self.weight + self.bias

    def tensors(self) -> dict[str, Tensor]:
        """Copies of the weights, on the CPU."""
        return copies(dict(self.named_parameters()))

    def load_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        """Go on with these weights."""
        load_into(dict(self.named_parameters()), tensors)


class Stored(Protocol):
    """Weights or moments that are saved and gone on with."""

    def tensors(self) -> dict[str, Tensor]:
        """Copies, on the CPU."""

    def load_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        """Go on with these; a ValueError says why they do not fit."""


def tensors_of(parts: Mapping[str, Stored]) -> dict[str, Tensor]:
    """The tensors of all parts, each name behind that of its part."""
    return {f"{part}/{name}": tensor for part, owner in parts.items() for name, tensor in owner.tensors().items()}


def load_parts(parts: Mapping[str, Stored], tensors: Mapping[str, Tensor]) -> None:
    """Give each part its own of what `tensors_of` gave; a ValueError says why they do not fit."""
    for part, owner in parts.items():
        before = f"{part}/"
        own = {name.removeprefix(before): one for name, one in tensors.items() if name.startswith(before)}
        owner.load_tensors(own)


def copies(parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copies of tensors by name, on the CPU."""
    return {name: tensor.detach().cpu().clone() for name, tensor in parameters.items()}


@torch.no_grad()
def load_into(parameters: Mapping[str, Tensor], tensors: Mapping[str, Tensor]) -> None:
    """Copy tensors into parameters of the same names and shapes."""
    shapes = {name: tuple(tensor.shape) for name, tensor in parameters.items()}
    found = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    if shapes != found:
        name = min(name for name in shapes.keys() | found.keys() if shapes.get(name) != found.get(name))
        here, there = shapes.get(name, "none"), found.get(name, "none")
        raise ValueError(f"the weight {name!r} has the shape {there} there and {here} here")
    for name, parameter in parameters.items():
        parameter.copy_(tensors[name])
