"""Replay in a trainer: whole groups in main memory on every rank, which come back as a round of their own."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from operator import itemgetter
from typing import Any, NamedTuple

import torch
from torch import Tensor

from grpo_plus.memory.snapshot import random_state
from grpo_plus.selection.dead_groups.assemble import PROMPT_WIDTH, join
from grpo_plus.selection.dead_groups.replay import Buffer
from grpo_plus.training.batch.reward_table import step_scores
from grpo_plus.training.batch.subbatches import SubBatch, SubRow, rows_of
from grpo_plus.training.hooks import CompletionRow, Completions, ScoredBatch
from grpo_plus.training.resume.data_position import UnstorableError, packed, unpacked
from grpo_plus.training.scoring.turn_spans import NO_STATE
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
    """The same round with the log-probabilities that its completions were drawn with, made where the host made none.

    The generators of random numbers stand as they did: dropout may draw from them.
    """
    if OLD in one.scored.output:
        return one
    undo = random_state([host.accelerator.device])
    logps = score_without_gradient(host, dict(one.scored.output))
    undo()
    return replace(one, scored=one.scored.adding(**{OLD: logps}))


class StoredRow(NamedTuple):
    """One row, whatever rank drew it: its part of a batch, and what was found about it."""

    drawn: SubRow
    rewards: Tensor
    truncated: bool
    steps: Steps | None
    trainable: Tensor
    table: CompletionTable


def store_groups(one: SubBatch, groups: Sequence[int], size: int, *, rank: int) -> list[list[StoredRow]]:
    """Groups of a round, over all ranks. Every rank takes part and has all of them."""
    first, here = rank * one.rows, rows_of(one)
    places = [group * size + member for group in groups for member in range(size)]
    mine = {place: here[place - first].on_cpu() for place in places if first <= place < first + one.rows}
    mine = {place: row._replace(values=_apart(row.values)) for place, row in mine.items()}
    drawn = {place: row for part in gather_objects([mine]) for place, row in part.items()}
    scored, steps = one.scored, _steps_by_row(one.scored)
    assert scored.truncated is not None
    rewards, truncated, trainable = scored.rewards.cpu(), scored.truncated.tolist(), one.trainable.cpu()
    rows = {
        place: StoredRow(
            drawn[place],
            rewards[place].clone(),
            bool(truncated[place]),
            None if steps is None else steps.get(place, []),
            trainable[place, : max(1, len(drawn[place].completion.ids))].clone(),
            _row_of(one.table, place),
        )
        for place in places
    }
    return [[rows[group * size + member] for member in range(size)] for group in groups]


def _apart(values: Mapping[str, Any]) -> dict[str, Any]:
    """With storage of their own: a view would hold the whole batch in memory."""
    return {name: one.clone() if isinstance(one, Tensor) else one for name, one in values.items()}


def _steps_by_row(scored: ScoredBatch) -> dict[int, list[tuple[Any, ...]]] | None:
    steps = scored.steps
    if steps is None:
        return None
    found: dict[int, list[tuple[Any, ...]]] = {}
    states = [NO_STATE] * len(steps) if steps.states is None else steps.states.tolist()
    columns = (steps.rows.tolist(), steps.spans.tolist(), steps.scores.tolist(), states)
    for row, (start, end), score, state in zip(*columns, strict=True):
        found.setdefault(row, []).append((start, end, score, state))
    return found


def _row_of(table: CompletionTable, place: int) -> CompletionTable:
    """One row of a table: columns of one value, or of none."""
    return {name: map_column(itemgetter(slice(place, place + 1)), column) for name, column in table.items()}


def round_of(
    rows: Sequence[StoredRow], *, rank: int, ranks: int, pad: int, multiple: int | None, device: Any
) -> SubBatch:
    """Rows as if they had just been drawn, an equal part of them by each rank."""
    each = len(rows) // ranks
    mine = [row.drawn for row in rows[rank * each : (rank + 1) * each]]
    width = max(len(row.trainable) for row in rows)
    trainable = torch.zeros(len(rows), width, dtype=rows[0].trainable.dtype)
    for place, row in enumerate(rows):
        trainable[place, : len(row.trainable)] = row.trainable
    steps = [row.steps for row in rows if row.steps is not None]
    scored = ScoredBatch(
        Completions.of(row.completion for row in mine),
        torch.stack([row.rewards for row in rows]).to(device),
        [row.verdicts for row in mine],
        torch.tensor([len(row.drawn.completion.ids) for row in rows], device=device),
        torch.tensor([row.truncated for row in rows], device=device),
        step_scores(steps, device=device, dtype=torch.float32) if steps else None,
        join([row.values for row in mine], pad=pad, multiple=multiple, device=device),
    )
    return SubBatch(scored, trainable.to(device), _joined([row.table for row in rows]), {})


def _joined(rows: Sequence[CompletionTable]) -> CompletionTable:
    found: CompletionTable = {}
    for name, column in rows[0].items():
        if isinstance(column, dict):
            found[name] = {key: [(row[name].get(key) or [None])[0] for row in rows] for key in column}
        else:
            found[name] = [value for row in rows for value in row[name]]
    return found


def plain(row: StoredRow) -> dict[str, Any]:
    """A row as JSON values and tensors. The ids are those of its part of the batch."""
    values, completion, verdicts = row.drawn
    said = [
        [one.score, one.status.value, one.detail, [[s.start, s.end, s.score] for s in one.steps]] for one in verdicts
    ]
    found = {"values": values, "source": dict(completion.row), "prompt": completion.prompt, "text": completion.text}
    turns = None if completion.turns is None else [asdict(turn) for turn in completion.turns]
    found |= {"length": len(completion.ids), "turns": turns, "turn_tokens": completion.turn_tokens}
    found |= {"verdicts": said, "rewards": row.rewards, "truncated": row.truncated, "steps": row.steps}
    return found | {"trainable": row.trainable, "table": row.table}


def from_plain(row: Mapping[str, Any]) -> StoredRow:
    """What `plain` made a description of."""
    values, tokens = {PROMPT_WIDTH: torch.tensor(0), **row["values"]}, row.get("turn_tokens")
    ids, prompt_ids = values["completion_ids"][: row["length"]].tolist(), values["prompt_ids"].tolist()
    turn_tokens = None if tokens is None else [(first, last) for first, last in tokens]
    turns = _turns(row.get("turns"))
    completion = CompletionRow(row["source"], row["prompt"], row["text"], ids, prompt_ids, turns, turn_tokens)
    verdicts = [
        Verdict(score, status, detail, tuple(Step(*step) for step in steps))
        for score, status, detail, steps in row["verdicts"]
    ]
    drawn = SubRow(values, completion, verdicts)
    steps = None if row["steps"] is None else [tuple(step) for step in row["steps"]]
    return StoredRow(drawn, row["rewards"], row["truncated"], steps, row["trainable"], row["table"])


def _turns(rows: Sequence[Mapping[str, Any]] | None) -> list[Turn] | None:
    if rows is None:
        return None
    return [Turn(**{**row, "calls": tuple(Call(**call) for call in row["calls"])}) for row in rows]


class ReplayBuffer:
    """The buffer of a run, and its state in checkpoints: JSON values, and tensors."""

    def __init__(self, *, age: int, groups: int) -> None:
        self.buffer: Buffer[list[StoredRow]] = Buffer(age=age, groups=groups)
        self._said = False

    def packed(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """All there is; without the groups where one holds what a checkpoint cannot."""
        tensors: dict[str, Tensor] = {}
        held = [[held.batch, [plain(row) for row in held.group]] for held in self.buffer.held]
        try:
            return {"batch": self.buffer.batch, "held": packed(held, "replay", tensors)}, tensors
        except UnstorableError as error:
            if not self._said:
                logger.warning("a checkpoint cannot hold the groups to replay: %s. A resumed run has none.", error)
            self._said = True
            return {"batch": self.buffer.batch, "held": packed([], "replay", {})}, {}

    def load(self, state: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
        """Go on from it."""
        held = unpacked(state["held"], tensors, "cpu")
        self.buffer.load(
            int(state["batch"]), [(int(batch), [from_plain(row) for row in group]) for batch, group in held]
        )
