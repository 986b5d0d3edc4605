"""Russian roulette: a group that is tied after a few completions stops, or continues with a larger weight.

A tied group continues with probability q and then weighs 1/q; one that stops weighs 0. The coin is independent of the
remaining completions, so the expected gradient is that of sampling all of them, for every estimator whose scope
is the group. `over_tokens` (objectives) does the same for a quotient by tokens, which stopped groups never show.

Use it when sampling is the main cost (long completions, many prompts always dead) and the objective must not change.

Degenerate case: q = 1 stops none. With a small q a tied group that continues weighs as much as 1/q groups.
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
        after: completions of a prompt in the first part; None for a quarter of them, at least 2.
        keep: probability that a tied group continues.
    """

    after: Annotated[int, Range(2)] | None = None
    keep: Annotated[float, Range(0, 1, open_low=True)] = 0.25


class Coins:
    """A sequence of numbers from 0 to 1, the same on all processes; the global random state does not change.

    Attributes:
        count: the numbers so far; a sequence of the same seed resumes from it.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self.count = 0

    def next(self) -> float:
        """Return the next number."""
        digest = hashlib.sha256(f"coins/{self._seed}/{self.count}".encode()).digest()
        self.count += 1
        return int.from_bytes(digest[:6], "big") / (1 << 48)


def shares(live: Sequence[bool], coins: Coins, keep: float) -> list[float]:
    """Return the weight of each group: 1 with contrast; after a tie 1/keep if it continues, 0 if it stops."""
    return [1.0 if lives else 1 / keep if coins.next() < keep else 0.0 for lives in live]
