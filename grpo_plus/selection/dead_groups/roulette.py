"""Russian roulette: a group that is tied after a few completions stops, or goes on with a weight that makes up for it.

A tied group goes on with probability q and then weighs 1/q; one that stops weighs 0. The coin is independent of the
completions that would follow, so the expected gradient is that of drawing all of them, for every estimator whose scope
is the group. `over_tokens` (objectives) does the same for a quotient by tokens, which stopped groups never show.

Use it when drawing is the bill (long completions, many prompts always dead) and the objective must not change.

Degenerate case: q = 1 stops none. With a small q a tied group that goes on pulls as hard as 1/q others.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from grpo_verifiers.options import Range


@dataclass(frozen=True)
class Roulette:
    """Keywords of `roulette`.

    Attributes:
        after: completions of a prompt that are drawn first; None for a quarter of them, at least 2.
        keep: probability that a group which is tied then goes on.
    """

    after: Annotated[int, Range(2)] | None = None
    keep: Annotated[float, Range(0, 1, open_low=True)] = 0.25


class Coins:
    """A row of numbers from 0 to 1, the same on all processes; no other generator of random numbers is touched.

    Attributes:
        drawn: the count so far, from which another row of the same seed goes on.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self.drawn = 0

    def next(self) -> float:
        """The next one."""
        digest = hashlib.sha256(f"coins/{self._seed}/{self.drawn}".encode()).digest()
        self.drawn += 1
        return int.from_bytes(digest[:6], "big") / (1 << 48)


def shares(live: Sequence[bool], coins: Coins, keep: float) -> list[float]:
    """The weight of each group: 1 with contrast; after a tie 1/keep where it goes on, 0 where it stops."""
    return [1.0 if lives else 1 / keep if coins.next() < keep else 0.0 for lives in live]
