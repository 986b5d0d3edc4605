"""Pairs of completions of one prompt in a generation batch, ordered by the verifiers' scores.

After DeepSeekMath (arXiv 2402.03300, algorithm 1), which trains its reward model on the policy's completions. Only
completions of one group are compared, as Bradley–Terry scores have no common level across prompts. Equal scores make no
pair; a group without contrast has none. Degenerate case: one completion a prompt.

`History` is a bounded store of earlier pairs by reservoir sampling (Vitter 1985, algorithm R): after n pairs each is in
it with probability capacity/n, so replayed pairs are a sample of the full run.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

Ids = tuple[int, ...]


class Comparison(NamedTuple):
    """A prompt with a better and a worse completion, as sampled ids."""

    prompt: Ids
    chosen: Ids
    rejected: Ids


class Labelled(NamedTuple):
    """A prompt and a completion with the last token of each step, and the step's label: 1 is good, 0 is bad."""

    prompt: Ids
    completion: Ids
    ends: Ids
    labels: Ids


def ordered_pairs(scores_N: Tensor, groups_N: Tensor) -> Tensor:
    """Return the indices, (Q, 2), of the better and the worse completion of each pair.

    >>> ordered_pairs(torch.tensor([1.0, 0.0, 1.0, 0.0]), torch.tensor([0, 0, 0, 1])).tolist()
    [[0, 1], [2, 1]]

    Scores that are not finite are in no pair.
    """
    finite_N = scores_N.isfinite()
    scores_N = scores_N.double()
    margins_NN = scores_N[:, None] - scores_N[None, :]
    same_NN = (groups_N[:, None] == groups_N[None, :]) & finite_N[:, None] & finite_N[None, :]
    return (same_NN & (margins_NN > 0)).nonzero()


def few_of_each(pairs_Q2: Tensor, groups_N: Tensor, most: int, generator: torch.Generator) -> Tensor:
    """Return at most ``most`` random pairs of each group, in their order."""
    groups_Q = groups_N[pairs_Q2[:, 0]]
    shuffled = torch.randperm(len(pairs_Q2), generator=generator)
    counts: dict[int, int] = {}
    places = []
    for place in shuffled.tolist():
        group = int(groups_Q[place])
        counts[group] = counts.get(group, 0) + 1
        if counts[group] <= most:
            places.append(place)
    return pairs_Q2[torch.tensor(sorted(places), dtype=torch.long)]


def step_labels(steps: Sequence[tuple[int, int, float]], threshold: float) -> tuple[Ids, Ids]:
    """Return the last token and the label of each judged step with at least one token.

    >>> step_labels([(0, 3, 1.0), (3, 3, 1.0), (3, 5, 0.2), (5, 6, float("nan"))], 0.5)
    ((2, 4), (1, 0))
    """
    judged = [(end - 1, int(score >= threshold)) for start, end, score in steps if end > start and score == score]  # noqa: PLR0124 - NaN
    return tuple(end for end, _ in judged), tuple(label for _, label in judged)


def is_held_out(prompt: Any, share: float) -> bool:
    """Return True for this share of all prompts, by a checksum of the text or the messages."""
    text = prompt if isinstance(prompt, str) else json.dumps(prompt, sort_keys=True, default=str)
    first = hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()[:8]
    return int.from_bytes(first, "big") < share * 2**64


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
