"""Live groups of earlier generation batches take the place of dead ones, with the log-probs that they were drawn with.

Whole groups come again, with advantages of their own. The ratio of the
objective corrects for the policy that drew them, as within the inner iterations on a batch. The gradient is biased all
the same: a clip bounds the ratio, more of it the older a group is, and prompts with contrast count more often. So the
age is bounded, and a group is replayed once at most: the newest goes first, and leaves.

Use it when verified completions are dear and nothing more is to be drawn.

Paper: after RePO, arXiv:2506.09340.

Degenerate case: an empty buffer leaves dead groups where they are.

Deviation: RePO replays completions, this whole groups.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Generic, NamedTuple, TypeVar

from grpo_verifiers.options import Range

Group = TypeVar("Group")


@dataclass(frozen=True)
class Replay:
    """Keywords of `replay`.

    Attributes:
        age: generation batches ago that a group was drawn, at most.
        groups: groups that are kept, at most.
    """

    age: Annotated[int, Range(1)] = 4
    groups: Annotated[int, Range(1)] = 64


class Held(NamedTuple, Generic[Group]):
    """A group, and the number of the generation batch it was drawn in."""

    batch: int
    group: Group


class Buffer(Generic[Group]):
    """Live groups, newest last; the oldest leave where there are too many.

    >>> buffer = Buffer(age=1, groups=2)
    >>> buffer.begin(), buffer.put(["a", "b", "c"]), buffer.begin()
    (None, None, None)
    >>> [held.group for held in buffer.take(1)], len(buffer)
    (['c'], 1)
    >>> buffer.begin()
    >>> buffer.take(1)
    []
    """

    def __init__(self, *, age: int, groups: int) -> None:
        self.batch = 0
        self._age = age
        self._held: deque[Held[Group]] = deque(maxlen=groups)

    def __len__(self) -> int:
        return len(self._held)

    def begin(self) -> None:
        """Begin a generation batch: what is too old for it leaves."""
        self.batch += 1
        while self._held and self.batch - self._held[0].batch > self._age:
            self._held.popleft()

    def take(self, count: int) -> list[Held[Group]]:
        """So many of the newest groups, or all there are; they leave."""
        return [self._held.pop() for _ in range(min(count, len(self._held)))]

    def put(self, groups: Iterable[Group]) -> None:
        """Keep groups of the present generation batch."""
        self._held.extend(Held(self.batch, group) for group in groups)

    @property
    def held(self) -> list[Held[Group]]:
        """All there is, oldest first."""
        return list(self._held)

    def load(self, batch: int, held: Iterable[tuple[int, Group]]) -> None:
        """Go on from what another buffer had."""
        self.batch = batch
        self._held.clear()
        self._held.extend(Held(number, group) for number, group in held)
