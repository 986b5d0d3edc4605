"""The boxes of one referee."""

from grpo_verifiers.sandbox.box import Box, BoxKind

_RECYCLE = 20_000
"""Programs after which a box is replaced: whatever a long life gathers ends there."""


class BoxSet:
    """One box for programs, and, from its first use on, one for tests."""

    def __init__(self) -> None:
        self._boxes: dict[tuple[BoxKind, str], Box] = {}
        self._uses: dict[tuple[BoxKind, str], int] = {}

    def box(self, plan: BoxKind, purpose: str = "programs") -> Box:
        """The box for a purpose, started where there is none."""
        key = (plan, purpose)
        self._uses[key] = self._uses.get(key, 0) + 1
        if self._uses[key] > _RECYCLE and key in self._boxes:
            self._boxes.pop(key).close()
            self._uses[key] = 1
        if key not in self._boxes:
            self._boxes[key] = Box(plan)
        return self._boxes[key]

    def end(self) -> None:
        """End the processes of them all, which `close` does, too; their folders stay."""
        for box in self._boxes.values():
            box.end()

    def close(self) -> None:
        """End them all; the next use starts new ones."""
        while self._boxes:
            self._boxes.popitem()[1].close()
