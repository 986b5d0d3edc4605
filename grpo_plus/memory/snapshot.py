"""Snapshots of the state that a pass changes, to be restored any number of times."""

import random
from collections.abc import Callable, Iterable, MutableMapping
from typing import Any

import numpy as np
import torch
from torch import nn

Undo = Callable[[], object]
"""Restores a snapshot."""


def together(*undos: Undo) -> Undo:
    """Return one undo of several."""

    def undo() -> None:
        for each in undos:
            each()

    return undo


def gradients(model: nn.Module) -> Undo:
    """Snapshot the gradients of the trained parameters.

    Gradients are copied to main memory. At the start of an accumulation window there are none, which costs nothing.
    """
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    saved = [None if p.grad is None else p.grad.detach().to("cpu", copy=True) for p in trained]

    def undo() -> None:
        for parameter, gradient in zip(trained, saved, strict=True):
            parameter.grad = None if gradient is None else gradient.to(parameter.device, copy=True)

    return undo


def random_state(devices: Iterable[torch.device]) -> Undo:
    """Snapshot the random generators of Python, NumPy, PyTorch on the CPU, and of ``devices``."""
    python, cpu = random.getstate(), torch.get_rng_state()
    numpy = np.random.get_state()  # noqa: NPY002 - the one that reward functions draw from
    modules = [(torch.get_device_module(device), device) for device in devices if device.type in ("cuda", "xpu")]
    states = [(module, device, module.get_rng_state(device)) for module, device in modules]

    def undo() -> None:
        random.setstate(python)
        np.random.set_state(numpy)  # noqa: NPY002
        torch.set_rng_state(cpu)
        for module, device, state in states:
            module.set_rng_state(state, device)

    return undo


def lengths(lists: MutableMapping[str, list[Any]]) -> Undo:
    """Snapshot the lengths of lists that a pass only appends to."""
    saved = {name: len(values) for name, values in lists.items()}

    def undo() -> None:
        for name in list(lists):
            if name in saved:
                del lists[name][saved[name] :]
            else:
                del lists[name]

    return undo


def attributes(target: Any, names: Iterable[str] | None = None) -> Undo:
    """Snapshot attributes of an object, by default all: numbers, tensors, lists and mappings of them."""
    chosen = tuple(vars(target)) if names is None else names
    saved = {name: _copy(getattr(target, name)) for name in chosen if hasattr(target, name)}

    def undo() -> None:
        for name, value in saved.items():
            setattr(target, name, _copy(value))

    return undo


def _copy(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.clone()
    return value.copy() if isinstance(value, list | dict | set) else value
