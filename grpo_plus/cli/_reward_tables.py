"""How a reward model did, as a table."""

import sys
from collections.abc import Mapping
from typing import Any

from grpo_plus.cli._reward_data import PAIRS
from grpo_plus.evaluation.intervals import Estimate, share
from grpo_plus.evaluation.tables import percent
from grpo_plus.reward_model.tasks import Judged

WIDTH = 100
"""Outside a terminal."""


def console() -> Any:
    """Where tables go."""
    from rich.console import Console

    return Console() if sys.stdout.isatty() else Console(width=WIDTH)


def accuracy(judged: Judged) -> Estimate:
    """The ranking accuracy of pairs, or the share of steps told right; prompts are the unit of its interval."""
    groups = judged.by_group()
    return share(groups, samples=len(judged.right) / len(groups))


def results_table(kind: str, found: Mapping[str, Judged]) -> Any:
    """One row for each part of the data."""
    from rich.table import Table

    pairs = kind == PAIRS
    table = Table("", kind, "prompts", "ranking accuracy" if pairs else "told right", "margin", "loss")
    if not pairs:
        table.add_column("good above bad")
    for name, judged in found.items():
        margin = "none" if judged.margin is None else f"{judged.margin:.3f}"
        cells = [str(len(judged.right)), str(len(judged.by_group())), percent(accuracy(judged)), margin]
        more = [] if pairs else ["none" if judged.separation is None else f"{judged.separation:.1%}"]
        table.add_row(name, *cells, f"{judged.loss:.4f}", *more)
    return table
