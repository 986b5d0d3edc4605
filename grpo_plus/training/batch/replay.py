"""Replay in a trainer: groups in main memory on every rank, which return as a round of their own."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from operator import itemgetter
from typing import Any, NamedTuple

import torch
from torch import Tensor

from grpo_plus.memory.snapshot import random_state
from grpo_plus.selection.dead_groups.assemble import PROMPT_WIDTH, join
from grpo_plus.selection.dead_groups.replay import GroupBuffer
from grpo_plus.training.batch.reward_table import step_scores
from grpo_plus.training.batch.subbatches import SubBatch, SubRow, rows_of
from grpo_plus.training.hooks import CompletionRow, Completions, ScoredBatch
from grpo_plus.training.resume import UnstorableError, packed, unpacked
from grpo_plus.training.scoring import NO_STATE
from grpo_plus.trl.host import Host
from grpo_plus.trl.logs import CompletionTable, map_column
from grpo_plus.trl.ranks import gather_objects
from grpo_plus.trl.scoring import score_without_gradient
from grpo_verifiers.redaction import get_logger
from grpo_verifiers.turns import Call, Turn
from grpo_verifiers.verdict import Step, Verdict

logger = get_logger(__name__)
OLD = "old_per_token_logps"
Steps = Sequence[tuple[Any, ...]]
"""First token, one past the last, score, state."""


def with_old_logps(one: SubBatch, host: Host) -> SubBatch:
    """Return the round with the log-probabilities of the sampling policy, computed if the host has not."""
    if OLD in one.scored.output:
        return one
    undo = random_state([host.accelerator.device])  # dropout may use it
    logps = score_without_gradient(host, dict(one.scored.output))
    undo()
    return replace(one, scored=one.scored.adding(**{OLD: logps}))


class StoredRow(NamedTuple):
    """One row of any rank: its part of a batch, scores and metadata."""

    sampled: SubRow
    rewards: Tensor
    truncated: bool
    steps: Steps | None
    trainable: Tensor
    table: CompletionTable


def store_groups(one: SubBatch, groups: Sequence[int], size: int, *, rank: int) -> list[list[StoredRow]]:
    """Return groups of a round, over all ranks. Every rank takes part and has all of them."""
    first, here = rank * one.rows, rows_of(one)
    places = [group * size + member for group in groups for member in range(size)]
    mine = {place: _cloned(here[place - first].on_cpu()) for place in places if first <= place < first + one.rows}
    sampled = {place: row for part in gather_objects([mine]) for place, row in part.items()}
    scored, steps = one.scored, _steps_by_row(one.scored)
    assert scored.truncated is not None
    rewards, truncated, trainable = scored.rewards.cpu(), scored.truncated.tolist(), one.trainable.cpu()
    rows = [
        StoredRow(
            sampled[place],
            rewards[place].clone(),
            bool(truncated[place]),
            None if steps is None else steps.get(place, []),
            trainable[place, : max(1, len(sampled[place].completion.ids))].clone(),
            {name: map_column(itemgetter(slice(place, place + 1)), column) for name, column in one.table.items()},
        )
        for place in places
    ]
    return [rows[number * size : (number + 1) * size] for number in range(len(groups))]


def _cloned(row: SubRow) -> SubRow:
    """Clone the tensors: a view would keep the batch's storage in memory."""
    return row._replace(values={n: one.clone() if isinstance(one, Tensor) else one for n, one in row.values.items()})


def _steps_by_row(scored: ScoredBatch) -> dict[int, list[tuple[Any, ...]]] | None:
    steps = scored.steps
    if steps is None:
        return None
    by_row: dict[int, list[tuple[Any, ...]]] = {}
    states = [NO_STATE] * len(steps) if steps.states is None else steps.states.tolist()
    columns = (steps.rows.tolist(), steps.spans.tolist(), steps.scores.tolist(), states)
    for row, (start, end), score, state in zip(*columns, strict=True):
        by_row.setdefault(row, []).append((start, end, score, state))
    return by_row


def round_of(
    rows: Sequence[StoredRow], *, rank: int, ranks: int, pad: int, multiple: int | None, device: Any
) -> SubBatch:
    """Join rows into a round, an equal part of them on each rank."""
    each = len(rows) // ranks
    mine = [row.sampled for row in rows[rank * each : (rank + 1) * each]]
    width = max(len(row.trainable) for row in rows)
    trainable = torch.zeros(len(rows), width, dtype=rows[0].trainable.dtype)
    for place, row in enumerate(rows):
        trainable[place, : len(row.trainable)] = row.trainable
    steps = [row.steps for row in rows if row.steps is not None]
    scored = ScoredBatch(
        Completions.of(row.completion for row in mine),
        torch.stack([row.rewards for row in rows]).to(device),
        [row.verdicts for row in mine],
        torch.tensor([len(row.sampled.completion.ids) for row in rows], device=device),
        torch.tensor([row.truncated for row in rows], device=device),
        step_scores(steps, device=device, dtype=torch.float32) if steps else None,
        join([row.values for row in mine], pad=pad, multiple=multiple, device=device),
    )
    return SubBatch(scored, trainable.to(device), _joined([row.table for row in rows]), {})


def _joined(rows: Sequence[CompletionTable]) -> CompletionTable:
    joined: CompletionTable = {}
    for name, column in rows[0].items():
        if isinstance(column, dict):
            joined[name] = {key: [(row[name].get(key) or [None])[0] for row in rows] for key in column}
        else:
            joined[name] = [value for row in rows for value in row[name]]
    return joined


def plain(row: StoredRow) -> dict[str, Any]:
    """Return a row as JSON values and tensors. The ids are in ``values``."""
    values, completion, verdicts = row.sampled
    fields = [
        [one.score, one.status.value, one.detail, [[s.start, s.end, s.score] for s in one.steps]] for one in verdicts
    ]
    data = {"values": values, "source": dict(completion.row), "prompt": completion.prompt, "text": completion.text}
    turns = None if completion.turns is None else [asdict(turn) for turn in completion.turns]
    data |= {"length": len(completion.ids), "turns": turns, "turn_tokens": completion.turn_tokens}
    data |= {"verdicts": fields, "rewards": row.rewards, "truncated": row.truncated, "steps": row.steps}
    return data | {"trainable": row.trainable, "table": row.table}


def from_plain(row: Mapping[str, Any]) -> StoredRow:
    """Restore a row from `plain`."""
    values, tokens, turns = {PROMPT_WIDTH: torch.tensor(0), **row["values"]}, row.get("turn_tokens"), row.get("turns")
    ids, prompt_ids = values["completion_ids"][: row["length"]].tolist(), values["prompt_ids"].tolist()
    turn_tokens = None if tokens is None else [(first, last) for first, last in tokens]
    if turns is not None:
        turns = [Turn(**{**turn, "calls": tuple(Call(**call) for call in turn["calls"])}) for turn in turns]
    completion = CompletionRow(row["source"], row["prompt"], row["text"], ids, prompt_ids, turns, turn_tokens)
    verdicts = [
        Verdict(score, status, detail, tuple(Step(*step) for step in steps))
        for score, status, detail, steps in row["verdicts"]
    ]
    sampled = SubRow(values, completion, verdicts)
    steps = None if row["steps"] is None else [tuple(step) for step in row["steps"]]
    return StoredRow(sampled, row["rewards"], row["truncated"], steps, row["trainable"], row["table"])


class ReplayBuffer:
    """The buffer of a run, and its state in checkpoints: JSON values, and tensors."""

    def __init__(self, *, age: int, groups: int) -> None:
        self.buffer: GroupBuffer[list[StoredRow]] = GroupBuffer(age=age, groups=groups)
        self._warned = False

    def packed(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """Return state and tensors; without the groups if a value of one cannot be stored."""
        tensors: dict[str, Tensor] = {}
        groups = [[one.batch, [plain(row) for row in one.group]] for one in self.buffer.groups]
        try:
            return {"batch": self.buffer.batch, "held": packed(groups, "replay", tensors)}, tensors
        except UnstorableError as error:
            if not self._warned:
                logger.warning("%s: a resumed run has no groups to replay.", error)
            self._warned = True
            return {"batch": self.buffer.batch, "held": packed([], "replay", {})}, {}

    def load(self, state: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
        """Restore the groups."""
        groups = unpacked(state["held"], tensors, "cpu")
        groups = [(int(batch), [from_plain(row) for row in group]) for batch, group in groups]
        self.buffer.load(int(state["batch"]), groups)
