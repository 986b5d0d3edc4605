"""The data of mixed_difficulty.yaml: few sums, of one to six moves, and some with a wrong answer."""

from typing import Any


def rows() -> list[dict[str, Any]]:
    """A quarter is easy, a half in between or hard, a quarter impossible: its gold answer is wrong."""
    from grpo_plus.cli import quickstart

    found = []
    for low, high in ((1, 1), (2, 4), (5, 6), (2, 4)):
        chains = quickstart.distinct(quickstart.chains(len(found), low, high), 24)
        found += [quickstart.row(chain) for chain in chains]
    return [row | {"answer": str(int(row["answer"]) + 50 * (place >= 72))} for place, row in enumerate(found)]
