"""Verifiers that check nothing: those that no row names, and those that did not apply to any completion of a run.

Also columns that nothing reads and whose name is nearly that of one that a verifier would read.
"""

import difflib
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from grpo_plus.training.live_verifier import LiveVerifier

NEAR = 0.75
"""Likeness of two names, from 0 to 1, from which one may be a slip for the other."""


def unnamed_problems(column: str, labels: Sequence[str], values: Mapping[str, Sequence[Any]]) -> list[str]:
    """Verifiers that no row of any dataset names; ``values`` has the routing column of each dataset that tells it."""
    named = {value for rows in values.values() for value in rows}
    idle = [label for label in labels if label not in named]
    if not idle or not any(values.values()):
        return []
    counted = "; ".join(
        f"{where} has {len(rows):,} rows: {', '.join(f'{value!r} {count:,}' for value, count in Counter(rows).items())}"
        for where, rows in values.items()
    )
    whose = "the verifier" if len(idle) == 1 else "the verifiers"
    remedy = "remove it from verifiers, or correct the rows" if len(idle) == 1 else "remove them, or correct the rows"
    text = f"verifier_column is {column!r}, and no row names {whose} {', '.join(map(repr, idle))}"
    return [f"{text}, which would never be applied ({counted}): {remedy}."]


def nearly_read(columns: Sequence[str], absent: Mapping[str, Sequence[str]], read: Collection[str]) -> list[str]:
    """A sentence for each column that nobody reads and that is nearly one of the ``absent`` ones (column to labels)."""
    found = []
    for column in columns:
        near = difflib.get_close_matches(column, absent, n=1, cutoff=NEAR) if column not in read else []
        found += [
            f"nothing reads the column {column!r}, but {', '.join(absent[name])} would read {name!r}, which is not "
            "there: rename the column if that is meant."
            for name in near
        ]
    return found


def never_applied(live: Iterable[LiveVerifier], *, routed: bool) -> list[str]:
    """A sentence for each verifier that gave no completion of this process a score, with the count.

    ``routed``: rows choose their verifier, and this process has seen all of them.
    """
    told = []
    for each in live:
        label, asked = each.verifier.label, each.asked
        if each.seen and not asked and routed:
            told.append(f"the verifier {label!r} was never applied: none of {each.seen:,} completions was its.")
        elif asked and not each.applied:
            told.append(f"the verifier {label!r} applied to none of the {asked:,} completions that it was asked about.")
    return told
