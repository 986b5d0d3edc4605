"""Dynamic sampling: extra prompts replace dead groups.

The direction of the expected sum over live groups is that without it; the divisor counts live groups.

Use it when the batch should always be full of signal and sampling is cheap compared with the update.

Paper: DAPO, arXiv:2503.14476.

Degenerate case: if all prompts are dead after the last round, the first ones stay.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from grpo_verifiers.options import Range


@dataclass(frozen=True)
class Resample:
    """Keywords of `resample`.

    Attributes:
        rounds: the most rounds of extra prompts.
    """

    rounds: Annotated[int, Range(1)] = 2


def replacements(dead: Sequence[int], live: Sequence[bool]) -> list[tuple[int, int]]:
    """Return pairs of a dead group's place and a live candidate, both in order.

    >>> replacements([1, 4], [False, True, True, True])
    [(1, 1), (4, 2)]
    """
    return list(zip(dead, (candidate for candidate, lives in enumerate(live) if lives), strict=False))


class PromptCursor:
    """Iterate over the places of a dataset, in a new random order for each pass.

    Without ``shuffle`` the order is that of the data. The global random state does not change.
    """

    def __init__(self, seed: int, *, shuffle: bool) -> None:
        self._seed, self._shuffle = seed, shuffle
        self._passes, self._place = 0, 0
        self._order: tuple[tuple[int, int], Sequence[int]] | None = None

    def take(self, count: int, size: int, accept: Callable[[int], bool]) -> list[int]:
        """Return the next ``count`` places of ``size`` that ``accept`` allows; after a full pass, any."""
        places: list[int] = []
        for walked in range(size + count):
            if len(places) == count:
                break
            place = self._next(size)
            if walked >= size or accept(place):
                places.append(place)
        return places

    def _next(self, size: int) -> int:
        if self._place >= size:
            self._passes, self._place = self._passes + 1, 0
        if self._order is None or self._order[0] != (self._passes, size):
            self._order = (self._passes, size), self._ordered(size)
        self._place += 1
        return self._order[1][self._place - 1]

    def _ordered(self, size: int) -> Sequence[int]:
        if not self._shuffle:
            return range(size)
        import torch  # the checks of a config need this module only for its options

        digest = hashlib.sha256(f"fresh prompts/{self._seed}/{self._passes}".encode()).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(digest[:7], "big"))
        order: list[int] = torch.randperm(size, generator=generator).tolist()
        return order

    @property
    def moved(self) -> bool:
        """True after the first `take`."""
        return bool(self._passes or self._place)

    def state_dict(self) -> dict[str, Any]:
        """Return the position."""
        return {"passes": self._passes, "place": self._place}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a `state_dict`."""
        self._passes, self._place = int(state["passes"]), int(state["place"])
