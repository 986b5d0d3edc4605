"""Adapters stay in float32, whatever passes over the model in between.

A bfloat16 number has eight significant bits: an update below 0.4% of a weight is rounded away, and at the learning
rates of reinforcement learning nearly all updates are. The base may be coarse, what is trained may not.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import nn

_LOW = (torch.float16, torch.bfloat16)


@dataclass(frozen=True)
class Kept:
    """The tensors that a model's parameters and buffers held at some time; holds them, copies nothing."""

    parameters: list[tuple[nn.Parameter, torch.Tensor]] = field(default_factory=list)
    buffers: list[tuple[nn.Module, str, torch.Tensor]] = field(default_factory=list)

    @classmethod
    def of(cls, model: nn.Module, *, trainable_only: bool = False) -> "Kept":
        """Note the floating-point tensors of ``model``."""
        parameters = [
            (parameter, parameter.data)
            for parameter in model.parameters()
            if parameter.is_floating_point() and (parameter.requires_grad or not trainable_only)
        ]
        if trainable_only:
            return cls(parameters)
        buffers = [
            (module, name, buffer)
            for module in model.modules()
            for name, buffer in module.named_buffers(recurse=False)
            if buffer.is_floating_point()
        ]
        return cls(parameters, buffers)

    def restore(self) -> int:
        """Give back the noted tensors wherever the type has changed since; returns how many there were.

        The noted tensor itself comes back, not a cast of the new one: what the cast rounded is not lost.
        """
        changed = 0
        for parameter, data in self.parameters:
            if parameter.dtype != data.dtype:
                parameter.data = data.to(parameter.device)
                changed += 1
        for module, name, buffer in self.buffers:
            now = getattr(module, name)
            if now.dtype != buffer.dtype:
                setattr(module, name, buffer.to(now.device))
                changed += 1
        return changed


def float32_trainables(model: nn.Module) -> int:
    """Hold every parameter that is trained in float32; returns how many were not.

    The parameters stay the same objects, so an optimizer that knows them goes on working.
    """
    changed = 0
    for parameter in model.parameters():
        if parameter.requires_grad and parameter.dtype in _LOW:
            parameter.data = parameter.data.float()
            if parameter.grad is not None:
                parameter.grad = parameter.grad.float()
            changed += 1
    return changed


@contextmanager
def dtypes_kept(model: nn.Module) -> Iterator[None]:
    """Undo, at the end of the block, every change of a parameter's or buffer's type that happened in it."""
    kept = Kept.of(model)
    try:
        yield
    finally:
        kept.restore()
