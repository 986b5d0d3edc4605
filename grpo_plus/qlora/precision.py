"""Float32 for trained weights, even if other code casts the model.

A bfloat16 number has eight significant bits: an update below 0.4% of a weight is rounded away, and at the learning
rates of reinforcement learning nearly all updates are. The base may have low precision, the trained weights may not.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import nn

_LOW = (torch.float16, torch.bfloat16)


def dtype_snapshot(model: nn.Module, *, trainable_only: bool = False) -> Callable[[], None]:
    """Return a function that restores the current floating-point tensors whose dtype has changed since.

    It restores the original tensors, so no precision is lost to a cast. Nothing is copied.
    """
    parameters = [
        (parameter, parameter.data)
        for parameter in model.parameters()
        if parameter.is_floating_point() and (parameter.requires_grad or not trainable_only)
    ]
    buffers = [
        (module, name, buffer)
        for module in (() if trainable_only else model.modules())
        for name, buffer in module.named_buffers(recurse=False)
        if buffer.is_floating_point()
    ]

    def restore() -> None:
        for parameter, data in parameters:
            if parameter.dtype != data.dtype:
                parameter.data = data.to(parameter.device)
        for module, name, buffer in buffers:
            present = getattr(module, name)
            if present.dtype != buffer.dtype:
                setattr(module, name, buffer.to(present.device))

    return restore


def float32_trainables(model: nn.Module) -> int:
    """Convert every trained parameter to float32; returns the number of converted ones.

    The parameters stay the same objects, so an existing optimizer still works.
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
def preserved_dtypes(model: nn.Module) -> Iterator[None]:
    """Undo, at the end of the block, every change of a parameter's or buffer's dtype in it."""
    restore = dtype_snapshot(model)
    try:
        yield
    finally:
        restore()
