"""A head, its trunk and its optimizer as the tensors of one file."""

from collections.abc import Mapping
from typing import Protocol

import torch
from torch import Tensor


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
