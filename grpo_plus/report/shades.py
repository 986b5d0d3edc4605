"""One rule for the colour of a token: how far its advantage is from zero, by the largest of its group."""

from collections.abc import Iterable, Sequence

LEVELS = 4
"""Shades on either side of zero, which has none."""


def scale_of(advantages: Iterable[float]) -> float:
    """The largest advantage of a group, by size."""
    return max((abs(value) for value in advantages), default=0.0)


def level(advantage: float, scale: float) -> int:
    """From -4 to 4; 0 for exactly no advantage, so that what is trained on never looks like what is not."""
    if advantage == 0 or scale <= 0:
        return 0
    size = min(LEVELS, max(1, round(LEVELS * abs(advantage) / scale)))
    return size if advantage > 0 else -size


def stretches(advantages: Sequence[float], scale: float) -> list[tuple[int, int, float]]:
    """Neighbouring tokens of one advantage as (tokens, level, advantage)."""
    found: list[tuple[int, int, float]] = []
    for value in advantages:
        if found and found[-1][2] == value:
            found[-1] = (found[-1][0] + 1, found[-1][1], value)
        else:
            found.append((1, level(value, scale), value))
    return found
