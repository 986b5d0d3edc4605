"""A game of several turns for ``environment.yaml``: walk to a treasure on a board of 6 by 6 fields.

The player is told on which field it stands and where the treasure lies from there, and moves a field a turn:

    user:       12:2E1N
    assistant:  <tool_call>east{}</tool_call>
    tool:       22:1E1N
    assistant:  <tool_call>north{}</tool_call>
    tool:       23:1E
    assistant:  <tool_call>east{}</tool_call>
    tool:       found
    assistant:  done
"""

import random
from typing import TYPE_CHECKING, Any

from grpo_plus.cli.quickstart import is_held_out

if TYPE_CHECKING:
    from datasets import Dataset, DatasetDict

SIZE = 6
NEAR, FAR = 2, 4
"""Moves that the treasure is away at the start, least and most."""

MOVES = 5
"""Moves of a player in the warm start, as many as ``max_tool_calling_iterations`` allows."""

AIMED = 0.4
"""Share of the moves in the warm start that aim at the treasure; the others go anywhere."""

WAYS = {"north": (0, 1), "south": (0, -1), "east": (1, 0), "west": (-1, 0)}
SOLUTIONS = 8000

Field = tuple[int, int]


class Treasure:
    """Walk to a treasure; methods without an underscore are what the model calls."""

    def reset(self, start: str, treasure: str) -> None:
        """Put the player on the board, from the columns of the row; the prompt says all there is to see."""
        self.at, self.treasure = _field(start), _field(treasure)
        self.before = self.at

    def north(self) -> str:
        """Go a field north."""
        return self._go("north")

    def south(self) -> str:
        """Go a field south."""
        return self._go("south")

    def east(self) -> str:
        """Go a field east."""
        return self._go("east")

    def west(self) -> str:
        """Go a field west."""
        return self._go("west")

    def get_reward(self) -> float:
        """The outcome: 1 for a treasure that was found."""
        return float(self.at == self.treasure)

    def get_turn_reward(self) -> float:
        """How much nearer the turn came to the treasure: 1, -1, or 0 at the edge of the board."""
        nearer = distance(self.before, self.treasure) - distance(self.at, self.treasure)
        self.before = self.at
        return float(nearer)

    def state_key(self) -> str:
        """Turns that begin in equal states are the same task; read by ``gigpo``."""
        return seen(self.at, self.treasure)

    def _go(self, way: str) -> str:
        if self.at != self.treasure:
            self.at = moved(self.at, way)
        return "found" if self.at == self.treasure else seen(self.at, self.treasure)


def moved(at: Field, way: str) -> Field:
    """The field that a move leads to; the board's edge holds it back.

    >>> moved((1, 2), "east"), moved((5, 2), "east")
    ((2, 2), (5, 2))
    """
    x, y = (min(SIZE - 1, max(0, one + step)) for one, step in zip(at, WAYS[way], strict=True))
    return x, y


def distance(one: Field, other: Field) -> int:
    """Moves between two fields."""
    return abs(one[0] - other[0]) + abs(one[1] - other[1])


def seen(at: Field, treasure: Field) -> str:
    """What the player is told.

    >>> seen((1, 2), (3, 3)), seen((1, 2), (1, 0))
    ('12:2E1N', '12:2S')
    """
    east, north = treasure[0] - at[0], treasure[1] - at[1]
    away = ((east, "E"), (-east, "W"), (north, "N"), (-north, "S"))
    return f"{at[0]}{at[1]}:" + "".join(f"{fields}{way}" for fields, way in away if fields > 0)


def _field(text: str) -> Field:
    return int(text[0]), int(text[1])


def row(at: Field, treasure: Field) -> dict[str, Any]:
    """A game as a row: the prompt, and the columns that `Treasure.reset` takes."""
    start, end = ("".join(map(str, field)) for field in (at, treasure))
    return {"prompt": [{"role": "user", "content": seen(at, treasure)}], "start": start, "treasure": end}


def games(*, held_out: bool) -> list[tuple[Field, Field]]:
    """All games for training, or those held out from it."""
    fields = [(x, y) for x in range(SIZE) for y in range(SIZE)]
    pairs = [(at, end) for at in fields for end in fields if NEAR <= distance(at, end) <= FAR]
    return [pair for pair in pairs if is_held_out(seen(*pair)) == held_out]


def dataset() -> "DatasetDict":
    """Games: ``train``, and ``test``, held out from ``train`` and from the warm start."""
    from datasets import Dataset, DatasetDict

    splits = {"train": False, "test": True}
    return DatasetDict(
        {name: Dataset.from_list([row(*game) for game in games(held_out=held)]) for name, held in splits.items()}
    )


def solutions() -> "Dataset":
    """Games that were played with half an eye on the treasure, for the warm start: most are lost."""
    from datasets import Dataset

    rng, known = random.Random(0), games(held_out=False)  # noqa: S311 - a game
    found = []
    for _ in range(SOLUTIONS):
        at, treasure = rng.choice(known)
        found.append({"prompt": row(at, treasure)["prompt"], "solution": played(at, treasure, rng)})
    return Dataset.from_list(found)


def played(at: Field, treasure: Field, rng: random.Random) -> list[dict[str, Any]]:
    """A game as turns: calls with their results, and ``done`` where the treasure was found."""
    turns: list[dict[str, Any]] = []
    for _ in range(MOVES):
        aims = [way for way in WAYS if distance(moved(at, way), treasure) < distance(at, treasure)]
        way = rng.choice(aims if rng.random() < AIMED else list(WAYS))
        at = moved(at, way)
        found = at == treasure
        turns += [_call(way), {"role": "tool", "name": way, "content": "found" if found else seen(at, treasure)}]
        if found:
            return [*turns, {"role": "assistant", "content": "done"}]
    return [*turns, _call(rng.choice(list(WAYS)))]  # one too many, which is not carried out


def _call(way: str) -> dict[str, Any]:
    call = {"type": "function", "function": {"name": way, "arguments": "{}"}}
    return {"role": "assistant", "content": "", "tool_calls": [call]}
