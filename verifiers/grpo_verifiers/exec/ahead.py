"""Calls that were begun before anybody asked about them, found again by their question."""

import math
from collections.abc import Iterable, Iterator
from typing import Protocol

from grpo_verifiers.exec.outcome import Outcome
from grpo_verifiers.verdict import Ahead


class Ongoing(Protocol):
    """One call under way."""

    @property
    def ended(self) -> float:
        """When it ended, on the monotonic clock; 0 until then."""

    def wait(self) -> list[Outcome]:
        """Its outcome."""

    def cancel(self) -> None:
        """Give it up, without waiting."""


class Begun:
    """The calls of one check that were begun ahead."""

    def __init__(self) -> None:
        self._waiting: dict[bytes, list[Ongoing]] = {}
        self._taken: list[tuple[Ongoing, float]] = []

    def __contains__(self, question: bytes) -> bool:
        return question in self._waiting

    def __iter__(self) -> Iterator[Ongoing]:
        return (call for calls in self._waiting.values() for call in calls)

    def __len__(self) -> int:
        return sum(map(len, self._waiting.values()))

    def add(self, question: bytes, call: Ongoing) -> None:
        """Hold a call."""
        self._waiting.setdefault(question, []).append(call)

    def take(self, question: bytes, now: float) -> Ongoing | None:
        """A call with this very question, for the one that asks it ``now``; None: there is none."""
        calls = self._waiting.get(question)
        if not calls:
            return None
        call = calls.pop(0)
        if not calls:
            del self._waiting[question]
        self._taken.append((call, now))
        return call

    def drop(self) -> Ahead:
        """Give up all that nobody asked for; the sum of what was begun since the last time."""
        left = list(self)
        taken, self._taken, self._waiting = self._taken, [], {}
        for call in left:
            call.cancel()
        ran = [(call.ended - call.wait()[0].seconds, min(call.ended, now)) for call, now in taken if call.ended]
        return Ahead(len(taken), len(left), _covered(ran))


def _covered(spans: Iterable[tuple[float, float]]) -> float:
    """The length of the union of some spans."""
    whole, done = 0.0, -math.inf
    for start, end in sorted(spans):
        whole += max(0.0, end - max(start, done))
        done = max(done, end)
    return whole
