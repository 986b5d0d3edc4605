"""A bounded store of earlier pairs with equal probability, and its form in checkpoints.

Reservoir sampling (Vitter 1985, algorithm R): after n pairs each is in the store with probability capacity/n, so
replayed pairs are a sample of the full run. Degenerate case: fewer pairs than capacity, all stored.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from grpo_plus.heads.reward_pairs import Comparison, Ids, Labelled

Example = Comparison | Labelled


class History:
    """Earlier training examples; ``offered`` counts all calls of `add`.

    >>> store = History(2)
    >>> store.add([Comparison((1,), (2,), (3,))], torch.Generator())
    >>> len(store), store.offered
    (1, 1)
    """

    def __init__(self, capacity: int) -> None:
        self.items: list[Example] = []
        self.offered = 0
        self._capacity = capacity

    def __len__(self) -> int:
        return len(self.items)

    def add(self, examples: Iterable[Example], generator: torch.Generator) -> None:
        """Offer examples to the store."""
        for example in examples:
            self.offered += 1
            if len(self.items) < self._capacity:
                self.items.append(example)
            elif (place := int(torch.randint(self.offered, (), generator=generator))) < self._capacity:
                self.items[place] = example

    def sample(self, count: int, generator: torch.Generator) -> list[Example]:
        """Return ``count`` examples without repetition, or all if there are fewer."""
        chosen = torch.randperm(len(self.items), generator=generator)[:count]
        return [self.items[place] for place in chosen.tolist()]


def replayed(fresh: int, share: float) -> int:
    """Return the number of earlier examples for ``share`` of a training with so many fresh ones, rounded.

    >>> replayed(9, 0.1), replayed(90, 0.1), replayed(0, 0.1), replayed(7, 0.5)
    (1, 10, 0, 7)
    """
    return round(fresh * share / (1 - share))


def packed(stores: Mapping[str, Sequence[Example]]) -> dict[str, Tensor]:
    """Return lists of examples as tensors: every text once, and the indices of each example's texts."""
    texts: dict[Ids, int] = {}
    tensors = {}
    for name, examples in stores.items():
        places = [[texts.setdefault(text, len(texts)) for text in example] for example in examples]
        if places:
            tensors[f"{name}.places"] = torch.tensor(places, dtype=torch.int32)
    if texts:
        tensors["lengths"] = torch.tensor([len(text) for text in texts], dtype=torch.int32)
        tensors["tokens"] = torch.tensor([token for text in texts for token in text], dtype=torch.int32)
    return tensors


def unpacked(tensors: Mapping[str, Tensor], kind: type[Any], names: Iterable[str]) -> dict[str, list[Example]]:
    """Return the lists of `packed` as examples of the class ``kind``."""
    texts: list[Ids] = []
    if "lengths" in tensors:
        parts = torch.split(tensors["tokens"], tensors["lengths"].tolist())
        texts = [tuple(part.tolist()) for part in parts]
    stores = {}
    for name in names:
        places = tensors.get(f"{name}.places")
        rows = [] if places is None else places.tolist()
        if rows and len(rows[0]) != len(kind._fields):
            raise ValueError("it has pairs of a different kind of head")
        stores[name] = [kind(*(texts[place] for place in row)) for row in rows]
    return stores
