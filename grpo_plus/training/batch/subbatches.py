"""Rounds of sampling, and a batch joined from their rows."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch

from grpo_plus.advantages import StepScores
from grpo_plus.selection.dead_groups.assemble import Row, Source, cut, emptied, picked
from grpo_plus.training.hooks import CompletionRow, Completions, ScoredBatch
from grpo_plus.trl.logs import RUN_TOTAL, CompletionTable
from grpo_plus.trl.ranks import gather_objects
from grpo_verifiers.verdict import Status, Verdict

NOT_SAMPLED = Verdict(None, Status.NOT_APPLICABLE, "not sampled: its group stopped")
SUMMED = ("memory/retries", "rollout/row_steps", "rollout/prefills")
"""Cost metrics, summed over all rounds."""
AVERAGED = ("rollout/", "verifiers/")
"""Prefixes of metrics that are averaged over the rounds; of any other metric the first round counts."""


@dataclass(frozen=True)
class SubBatch:
    """A round of sampling, or rows of an earlier batch in place of one.

    Attributes:
        scored: its completions, rewards and tensors.
        trainable: (N, T) completion tokens that are trained on.
        table: rows of TRL's table of completions.
        metrics: TRL's lists of metrics; empty for rows of an earlier batch.
    """

    scored: ScoredBatch
    trainable: torch.Tensor
    table: CompletionTable
    metrics: Mapping[str, Sequence[float]]

    @property
    def rows(self) -> int:
        return len(self.scored.completions)  # of each rank


class SubRow(NamedTuple):
    """One row of any round and rank: its part of the output, completion and verdicts."""

    values: Row
    completion: CompletionRow
    verdicts: Sequence[Verdict]

    def without_completion(self) -> "SubRow":
        return SubRow(emptied(self.values), self.completion.without_completion(), [NOT_SAMPLED for _ in self.verdicts])

    def on_cpu(self) -> "SubRow":
        """Return the row on the CPU, ready to be sent."""
        moved = {name: one.cpu() if isinstance(one, torch.Tensor) else one for name, one in self.values.items()}
        return self._replace(values=moved)


def rows_of(one: SubBatch) -> list[SubRow]:
    """Return this rank's rows of a round."""
    completions = one.scored.completions
    values = cut(one.scored.output, [len(ids) for ids in completions.ids])
    return [SubRow(*parts) for parts in zip(values, completions.each(), one.scored.verdicts, strict=True)]


def local_rows(rounds: Sequence[SubBatch], sources: Sequence[Source], *, rank: int, ranks: int) -> list[SubRow]:
    """Return this rank's rows of the batch; rows that another rank sampled are sent."""
    each = len(sources) // ranks
    owners = [source.row // rounds[source.round].rows for source in sources]
    own = [rows_of(one) for one in rounds]
    mine: dict[int, SubRow] = {}
    leaving: dict[int, SubRow] = {}
    for place, (source, owner) in enumerate(zip(sources, owners, strict=True)):
        if owner == rank:
            row = own[source.round][source.row - rank * rounds[source.round].rows]
            row = row if source.has_completion else row.without_completion()
            if place // each == rank:
                mine[place] = row
            else:
                leaving[place] = row.on_cpu()
    if any(place // each != owner for place, owner in enumerate(owners)):
        for sent in gather_objects([leaving]):
            mine |= {place: row for place, row in sent.items() if place // each == rank}
    return [mine[place] for place in range(rank * each, (rank + 1) * each)]


def gather_scored(rounds: Sequence[SubBatch], sources: Sequence[Source], completions: Completions) -> ScoredBatch:
    """Return the scores of these rows, of all ranks, with this rank's ``completions``."""
    scored = [one.scored for one in rounds]
    rewards = picked([one.rewards for one in scored], sources, float("nan"))
    lengths = picked([one.lengths for one in scored if one.lengths is not None], sources, 0)
    truncated = picked([one.truncated for one in scored if one.truncated is not None], sources, 0)
    places = {(source.round, source.row): place for place, source in enumerate(sources) if source.has_completion}
    steps = [(number, one.steps) for number, one in enumerate(scored) if one.steps is not None]
    return ScoredBatch(
        completions, rewards, lengths=lengths, truncated=truncated, steps=_steps(steps, places) if steps else None
    )


def _steps(scored: Iterable[tuple[int, StepScores]], places: Mapping[tuple[int, int], int]) -> StepScores:
    """Renumber the rows of steps, and sort the steps by row."""
    parts = []
    for number, steps in scored:
        rows_S = steps.rows.new_tensor([places.get((number, row), -1) for row in steps.rows.tolist()])
        parts.append(replace(steps.select(rows_S >= 0), rows=rows_S[rows_S >= 0]))
    rows_S = torch.cat([steps.rows for steps in parts])
    order = torch.argsort(rows_S, stable=True)
    scores_S, spans_S = torch.cat([one.scores for one in parts]), torch.cat([one.spans for one in parts])
    states = [one.states for one in parts if one.states is not None]
    states_S = torch.cat(states)[order] if len(states) == len(parts) else None
    return StepScores(rows_S[order], scores_S[order], spans_S[order], states_S)


def trainable(rounds: Sequence[SubBatch], sources: Sequence[Source]) -> torch.Tensor:
    """Return the completion tokens of these rows that are trained on, over all ranks, (N, T)."""
    return picked([one.trainable for one in rounds], sources, 0)


def table(rounds: Sequence[SubBatch], sources: Sequence[Source]) -> CompletionTable:
    """Return these rows of TRL's table of completions."""
    tables = [one.table for one in rounds]
    counts = [len(one.scored.rewards) for one in rounds]

    def column(parts: Sequence[Sequence[Any]], nothing: Callable[[Any], Any]) -> list[Any]:
        filled = [[*part, *[None] * (count - len(part))] for part, count in zip(parts, counts, strict=True)]
        cells = [(filled[source.round][source.row], source.has_completion) for source in sources]
        return [value if sampled else nothing(value) for value, sampled in cells]

    empty: Mapping[str, Callable[[Any], Any]] = {
        "prompt": lambda prompt: prompt,
        "completion": lambda completion: type(completion)(),
        "advantages": lambda _: 0.0,
        "rewards": lambda _: math.nan,  # TRL formats it as a number
    }
    joined: CompletionTable = {}
    for name, first in tables[0].items():
        if isinstance(first, dict):
            names = dict.fromkeys(inner for one in tables for inner in one[name])
            parts = {key: [one[name].get(key, []) for one in tables] for key in names}
            joined[name] = {key: column(values, empty.get(name, lambda _: None)) for key, values in parts.items()}
        elif any(one[name] for one in tables):
            joined[name] = column([one[name] for one in tables], empty.get(name, lambda _: None))
    return joined


def metrics(rounds: Sequence[SubBatch]) -> dict[str, list[float]]:
    """Return the metrics of the first round, on the run's own prompts; cost metrics are summed over all rounds."""
    lists = {name: list(values) for name, values in rounds[0].metrics.items()}
    for later in rounds[1:]:
        for name, values in later.metrics.items():
            if name == RUN_TOTAL:
                lists[name] = list(values)
            elif name in SUMMED:
                lists[name] = [sum(lists.get(name, [])) + sum(values)]
            elif name.startswith(AVERAGED):
                lists[name] = [*lists.get(name, []), *values]
    return lists
