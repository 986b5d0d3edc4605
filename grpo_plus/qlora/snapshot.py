"""What a failed pass may have left half done, and how to undo it."""

import random
from collections.abc import Callable, Iterable, MutableMapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn


@dataclass(frozen=True)
class Snapshot:
    """Gradients, random state, metrics and counters as they were before a pass.

    Attributes:
        undo: what puts each of them back.
    """

    undo: tuple[Callable[[], None], ...]

    @classmethod
    def take(
        cls,
        model: nn.Module,
        lists: MutableMapping[str, list[Any]],
        objects: Iterable[Any] = (),
        names: Iterable[tuple[Any, Iterable[str]]] = (),
    ) -> "Snapshot":
        """Note the state before a pass.

        Args:
            model: whose gradients; they are kept in main memory, where there is room when there is none on the card.
            lists: of metrics, which a pass only appends to.
            objects: whose attributes a pass may change: numbers, tensors, lists and mappings of them.
            names: objects of which only the named attributes count.
        """
        whole = [_attributes(thing, tuple(vars(thing))) for thing in objects]
        parts = [_attributes(thing, tuple(some)) for thing, some in names]
        return cls((_gradients(model), _random(), _lengths(lists), *whole, *parts))

    def restore(self) -> None:
        """Put everything back."""
        for undo in self.undo:
            undo()


def _gradients(model: nn.Module) -> Callable[[], None]:
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    kept = [None if p.grad is None else p.grad.detach().to("cpu", copy=True) for p in trained]

    def undo() -> None:
        for parameter, gradient in zip(trained, kept, strict=True):
            parameter.grad = None if gradient is None else gradient.to(parameter.device, copy=True)

    return undo


def _random() -> Callable[[], None]:
    python, cpu = random.getstate(), torch.get_rng_state()
    cards = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else None

    def undo() -> None:
        random.setstate(python)
        torch.set_rng_state(cpu)
        if cards is not None:
            torch.cuda.set_rng_state_all(cards)

    return undo


def _lengths(lists: MutableMapping[str, list[Any]]) -> Callable[[], None]:
    kept = {name: len(values) for name, values in lists.items()}

    def undo() -> None:
        for name in list(lists):
            if name in kept:
                del lists[name][kept[name] :]
            else:
                del lists[name]

    return undo


def _attributes(thing: Any, names: tuple[str, ...]) -> Callable[[], None]:
    kept = {name: _copy(getattr(thing, name)) for name in names if hasattr(thing, name)}

    def undo() -> None:
        for name, value in kept.items():
            setattr(thing, name, _copy(value))

    return undo


def _copy(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.clone()
    return value.copy() if isinstance(value, list | dict | set) else value
