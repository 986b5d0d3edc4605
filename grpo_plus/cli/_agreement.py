"""How far two verifiers agree on the same completions."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

RIGHT = 1.0
"""The score from which a completion counts as right."""


@dataclass(frozen=True)
class Agreement:
    """Counts over the rows that both judged; ``apart`` are rows without a score by one of them.

    >>> found = Agreement.of([(1, 1), (1, 0), (0, 0), (0, None)])
    >>> found.both, found.first, found.second, found.neither, found.apart
    (1, 1, 0, 1, 1)
    >>> round(found.share, 3), round(found.kappa, 3)
    (0.667, 0.4)
    """

    both: int
    first: int
    second: int
    neither: int
    apart: int

    @classmethod
    def of(cls, scores: Iterable[tuple[float | None, float | None]]) -> "Agreement":
        """Count pairs of scores."""
        counts = Counter[tuple[bool, bool]]()
        apart = 0
        for one, other in scores:
            if one is None or other is None:
                apart += 1
            else:
                counts[one >= RIGHT, other >= RIGHT] += 1
        both, first, second = counts[True, True], counts[True, False], counts[False, True]
        return cls(both, first, second, counts[False, False], apart)

    @property
    def compared(self) -> int:
        """Rows that both judged."""
        return self.both + self.first + self.second + self.neither

    @property
    def share(self) -> float | None:
        """Share of the compared rows on which they agree."""
        return (self.both + self.neither) / self.compared if self.compared else None

    @property
    def kappa(self) -> float | None:
        """Cohen's kappa (1960): agreement beyond chance. None where chance alone agrees always."""
        if not self.compared:
            return None
        one, other = (self.both + self.first) / self.compared, (self.both + self.second) / self.compared
        chance = one * other + (1 - one) * (1 - other)
        share = (self.both + self.neither) / self.compared
        return None if chance == 1 else (share - chance) / (1 - chance)
