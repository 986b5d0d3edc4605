"""Live groups of earlier generation batches replace dead ones, with their original log-probabilities.

Complete groups return, with their own advantages. The ratio of the objective corrects for the older policy, as in the
inner iterations on a batch. The gradient is biased nevertheless: a clip bounds the ratio, more of it the older a group
is, and prompts with contrast count more often. So the age is bounded, and a group is replayed at most once, the newest
first.

Use it when verified completions are expensive and no more should be sampled.

Paper: after RePO, arXiv:2506.09340.

Degenerate case: with an empty buffer dead groups stay.

Deviation: RePO replays completions, this complete groups.
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
        age: the most generation batches since a group was sampled.
        groups: the most groups in the buffer.
    """

    age: Annotated[int, Range(1)] = 4
    groups: Annotated[int, Range(1)] = 64


class StoredGroup(NamedTuple, Generic[Group]):
    """A group and the number of its generation batch."""

    batch: int
    group: Group


class GroupBuffer(Generic[Group]):
    """Live groups, newest last; the oldest are dropped when it is full.

    >>> buffer = GroupBuffer(age=1, groups=2)
    >>> buffer.begin(), buffer.put(["a", "b", "c"]), buffer.begin()
    (None, None, None)
    >>> [stored.group for stored in buffer.take(1)], len(buffer)
    (['c'], 1)
    >>> buffer.begin()
    >>> buffer.take(1)
    []
    """

    def __init__(self, *, age: int, groups: int) -> None:
        self.batch = 0
        self._age = age
        self._groups: deque[StoredGroup[Group]] = deque(maxlen=groups)

    def __len__(self) -> int:
        return len(self._groups)

    def begin(self) -> None:
        """Begin a generation batch and drop groups that are too old for it."""
        self.batch += 1
        while self._groups and self.batch - self._groups[0].batch > self._age:
            self._groups.popleft()

    def take(self, count: int) -> list[StoredGroup[Group]]:
        """Remove and return up to ``count`` of the newest groups."""
        return [self._groups.pop() for _ in range(min(count, len(self._groups)))]

    def put(self, groups: Iterable[Group]) -> None:
        """Add groups of the current generation batch."""
        self._groups.extend(StoredGroup(self.batch, group) for group in groups)

    @property
    def groups(self) -> list[StoredGroup[Group]]:
        """All groups, oldest first."""
        return list(self._groups)

    def load(self, batch: int, groups: Iterable[tuple[int, Group]]) -> None:
        """Restore the batch number and the groups of another buffer."""
        self.batch = batch
        self._groups.clear()
        self._groups.extend(StoredGroup(number, group) for number, group in groups)
