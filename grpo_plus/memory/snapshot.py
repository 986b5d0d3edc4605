"""What a pass changes, noted so that it can be put back, as often as it takes."""

import random
from collections.abc import Callable, Iterable, MutableMapping
from typing import Any

import numpy as np
import torch
from torch import nn

Undo = Callable[[], object]
"""Puts back what was noted."""


def together(*undos: Undo) -> Undo:
    """Several as one."""

    def undo() -> None:
        for each in undos:
            each()

    return undo


def gradients(model: nn.Module) -> Undo:
    """The gradients of the trained parameters.

    Those that do not exist, as at the start of an accumulation window, cost nothing; others are copied to main memory.
    """
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    kept = [None if p.grad is None else p.grad.detach().to("cpu", copy=True) for p in trained]

    def undo() -> None:
        for parameter, gradient in zip(trained, kept, strict=True):
            parameter.grad = None if gradient is None else gradient.to(parameter.device, copy=True)

    return undo


def random_state(devices: Iterable[torch.device]) -> Undo:
    """The state of the generators of Python and NumPy, of PyTorch's on the CPU, and of those of ``devices``."""
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
    """The lengths of lists that a pass only appends to."""
    kept = {name: len(values) for name, values in lists.items()}

    def undo() -> None:
        for name in list(lists):
            if name in kept:
                del lists[name][kept[name] :]
            else:
                del lists[name]

    return undo


def attributes(thing: Any, names: Iterable[str] | None = None) -> Undo:
    """Attributes of an object, by default all: numbers, tensors, lists and mappings of them."""
    chosen = tuple(vars(thing)) if names is None else names
    kept = {name: _copy(getattr(thing, name)) for name in chosen if hasattr(thing, name)}

    def undo() -> None:
        for name, value in kept.items():
            setattr(thing, name, _copy(value))

    return undo


def _copy(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.clone()
    return value.copy() if isinstance(value, list | dict | set) else value
