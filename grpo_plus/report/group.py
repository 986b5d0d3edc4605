"""The rewards of a group as bars, for the terminal with rich."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Group
    from rich.text import Text

BAR = 24


def group_text(rewards: Sequence[float], advantages: Sequence[float]) -> "Group":
    """The group for ``rich.print``: for each completion a bar around the mean reward, the reward and the advantage."""
    from rich.console import Group
    from rich.text import Text

    rows = []
    for number, (reward, advantage) in enumerate(zip(rewards, advantages, strict=True), 1):
        signed = f"{advantage:+.3g}" if advantage else "0"
        rows.append(Text.assemble(f"{number:>3} ", _bar(reward, rewards), f" {reward:>8.4g}  A {signed:>7}"))
    return Group(*rows)


def _bar(reward: float, rewards: Sequence[float]) -> "Text":
    """A bar from the mean to the reward."""
    from rich.text import Text

    low, high, mean = min(rewards), max(rewards), sum(rewards) / len(rewards)

    def place(value: float) -> int:
        return round(BAR * (value - low) / (high - low)) if high > low else BAR // 2

    cells = [("·", "dim")] * (BAR + 1)
    centre, end = place(mean), place(reward)
    colour = "#4f93c8" if reward >= mean else "#dd6f3a"
    for cell in range(min(centre, end), max(centre, end) + 1):
        cells[cell] = ("━", colour)
    cells[centre] = ("┃", "bold")
    return Text.assemble(*cells)
