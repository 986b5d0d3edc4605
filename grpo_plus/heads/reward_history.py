"""A bounded store of earlier pairs, each equally likely to be in it, and its form in checkpoints.

Reservoir sampling (Vitter 1985, algorithm R): after n pairs each is kept with chance capacity/n, so what comes again is
a sample of the whole run, not of its end. Degenerate case: fewer pairs than room, where all are kept.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from grpo_plus.heads.reward_pairs import Comparison, Ids, Labelled

Example = Comparison | Labelled


class History:
    """Examples that were trained on; ``seen`` counts all that were ever offered.

    >>> store = History(2)
    >>> store.add([Comparison((1,), (2,), (3,))], torch.Generator())
    >>> len(store), store.seen
    (1, 1)
    """

    def __init__(self, capacity: int) -> None:
        self.items: list[Example] = []
        self.seen = 0
        self._capacity = capacity

    def __len__(self) -> int:
        return len(self.items)

    def add(self, examples: Iterable[Example], generator: torch.Generator) -> None:
        """Offer examples."""
        for example in examples:
            self.seen += 1
            if len(self.items) < self._capacity:
                self.items.append(example)
            elif (place := int(torch.randint(self.seen, (), generator=generator))) < self._capacity:
                self.items[place] = example

    def sample(self, count: int, generator: torch.Generator) -> list[Example]:
        """So many of them without repetition, or all there are."""
        chosen = torch.randperm(len(self.items), generator=generator)[:count]
        return [self.items[place] for place in chosen.tolist()]


def replayed(fresh: int, share: float) -> int:
    """How many earlier examples make up ``share`` of a training beside so many fresh ones, to the nearest whole number.

    >>> replayed(9, 0.1), replayed(90, 0.1), replayed(0, 0.1), replayed(7, 0.5)
    (1, 10, 0, 7)
    """
    return round(fresh * share / (1 - share))


def packed(stores: Mapping[str, Sequence[Example]]) -> dict[str, Tensor]:
    """Lists of examples as tensors: every text once, and the places of an example's texts among them."""
    texts: dict[Ids, int] = {}
    found = {}
    for name, examples in stores.items():
        places = [[texts.setdefault(text, len(texts)) for text in example] for example in examples]
        if places:
            found[f"{name}.places"] = torch.tensor(places, dtype=torch.int32)
    if texts:
        found["lengths"] = torch.tensor([len(text) for text in texts], dtype=torch.int32)
        found["tokens"] = torch.tensor([token for text in texts for token in text], dtype=torch.int32)
    return found


def unpacked(tensors: Mapping[str, Tensor], kind: type[Any], names: Iterable[str]) -> dict[str, list[Example]]:
    """The lists that `packed` was given, of examples of one class."""
    texts: list[Ids] = []
    if "lengths" in tensors:
        parts = torch.split(tensors["tokens"], tensors["lengths"].tolist())
        texts = [tuple(part.tolist()) for part in parts]
    stores = {}
    for name in names:
        places = tensors.get(f"{name}.places")
        rows = [] if places is None else places.tolist()
        if rows and len(rows[0]) != len(kind._fields):
            raise ValueError("it holds pairs of another kind of head")
        stores[name] = [kind(*(texts[place] for place in row)) for row in rows]
    return stores
