"""Data in tokens, its loss, and how well a model does on it: pairs of sequences, or steps with labels."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from grpo_plus.reward_model.bradley_terry import bradley_terry
from grpo_plus.reward_model.process_labels import label_grid, process_losses
from grpo_plus.reward_model.ranking import ranked_right, separation
from grpo_plus.reward_model.reading import padded


@dataclass(frozen=True)
class Judged:
    """How a model does on data: ``right`` has 1, ½ or 0 for each pair or labelled step, ``rows`` its row.

    ``losses`` are those of the same terms, ``groups`` the prompt of each row. ``scores`` are those of each row: both
    sides of a pair, or the probabilities of its steps. ``margins`` are differences of the scores of pairs, or logits of
    labelled steps, with their ``labels``.
    """

    right: tuple[float, ...]
    losses: tuple[float, ...]
    margins: tuple[float, ...]
    rows: tuple[int, ...]
    groups: tuple[str, ...]
    scores: tuple[tuple[float, ...], ...]
    labels: tuple[float, ...] | None = None

    @property
    def loss(self) -> float:
        """The mean over pairs, or over labels."""
        return sum(self.losses) / len(self.losses)

    @property
    def accuracy(self) -> float:
        """The share that is right, ties counted half; every prompt counts alike."""
        found = self.by_group()
        return sum(found) / len(found)

    @property
    def margin(self) -> float | None:
        """The mean difference of scores: of the sides of a pair, or of the logits of good and bad steps."""
        if self.labels is None:
            return sum(self.margins) / len(self.margins)
        good, bad = ([m for m, one in zip(self.margins, self.labels, strict=True) if one == label] for label in (1, 0))
        return sum(good) / len(good) - sum(bad) / len(bad) if good and bad else None

    @property
    def separation(self) -> float | None:
        """The share of all pairs of a good and a bad step in the right order; None for pairs, or without both."""
        if self.labels is None or len(set(self.labels)) < 2:
            return None
        return separation(*(torch.tensor(column, dtype=torch.float64) for column in (self.margins, self.labels)))

    def by_group(self) -> list[float]:
        """The mean of ``right`` of each prompt."""
        found: dict[str, list[float]] = {}
        for row, right in zip(self.rows, self.right, strict=True):
            found.setdefault(self.groups[row], []).append(right)
        return [sum(values) / len(values) for values in found.values()]

    def of_rows(self, chosen: Sequence[int]) -> "Judged | None":
        """The part of some rows; None if none of their steps has a label."""
        wanted = set(chosen)
        terms = [at for at, row in enumerate(self.rows) if row in wanted]
        if not terms:
            return None

        def pick(column: Sequence[Any]) -> tuple[Any, ...]:
            return tuple(column[at] for at in terms)

        labels = None if self.labels is None else pick(self.labels)
        right, losses, margins, rows = map(pick, (self.right, self.losses, self.margins, self.rows))
        return Judged(right, losses, margins, rows, self.groups, self.scores, labels)


class Task(Protocol):
    """Data that a model is trained on, row by row."""

    def __len__(self) -> int:
        """The number of rows."""
        ...

    def size(self, rows: Sequence[int]) -> int:
        """The number of terms of the loss of these rows."""
        ...

    def loss(self, model: Any, rows: Sequence[int]) -> Tensor:
        """The loss of these rows, summed over its terms."""
        ...

    def judge(self, model: Any, batch: int) -> Judged:
        """Loss and accuracy on all rows."""
        ...


@dataclass(frozen=True)
class PairTask:
    """Pairs in tokens; a model gives one score a sequence."""

    chosen: Sequence[Sequence[int]]
    rejected: Sequence[Sequence[int]]
    margins: Sequence[float | None]
    groups: Sequence[str]
    pad_token_id: int

    def __len__(self) -> int:
        return len(self.chosen)

    def size(self, rows: Sequence[int]) -> int:
        """One term a pair."""
        return len(rows)

    def loss(self, model: Any, rows: Sequence[int]) -> Tensor:
        """The Bradley–Terry loss, summed."""
        chosen, rejected = self._scores(model, rows)
        return bradley_terry(chosen, rejected, self._margins(rows).to(chosen.device)).sum()

    @torch.no_grad()
    def judge(self, model: Any, batch: int) -> Judged:
        """Loss and ranking accuracy."""
        found = [self._scores(model, rows) for rows in _batches(len(self), batch)]
        chosen_Q, rejected_Q = (torch.cat(column).double().cpu() for column in zip(*found, strict=True))
        losses_Q = bradley_terry(chosen_Q, rejected_Q, self._margins(range(len(self))).double())
        return Judged(
            right=tuple(ranked_right(chosen_Q, rejected_Q).tolist()),
            losses=tuple(losses_Q.tolist()),
            margins=tuple((chosen_Q - rejected_Q).tolist()),
            rows=tuple(range(len(self))),
            groups=tuple(self.groups),
            scores=tuple(zip(chosen_Q.tolist(), rejected_Q.tolist(), strict=True)),
        )

    def _scores(self, model: Any, rows: Sequence[int]) -> tuple[Tensor, Tensor]:
        batch = padded([side[row] for side in (self.chosen, self.rejected) for row in rows], self.pad_token_id)
        scores = model(**_on(model, batch)).logits[:, 0].float()
        return scores[: len(rows)], scores[len(rows) :]

    def _margins(self, rows: Sequence[int]) -> Tensor:
        return torch.tensor([self.margins[row] or 0.0 for row in rows])


@dataclass(frozen=True)
class StepTask:
    """Steps in tokens with labels; a model gives one logit a token."""

    ids: Sequence[Sequence[int]]
    ends: Sequence[Sequence[int]]
    labels: Sequence[Sequence[float]]
    groups: Sequence[str]
    pad_token_id: int

    def __len__(self) -> int:
        return len(self.ids)

    def size(self, rows: Sequence[int]) -> int:
        """One term a label."""
        return sum(label == label for row in rows for label in self.labels[row])  # noqa: PLR0124 - NaN is none

    def loss(self, model: Any, rows: Sequence[int]) -> Tensor:
        """The cross-entropy at the ends of steps, summed."""
        logits_BT = self._logits(model, rows)
        labels = label_grid([self.ends[row] for row in rows], [self.labels[row] for row in rows], logits_BT.shape[1])
        return process_losses(logits_BT, labels.to(logits_BT.device)).sum()

    @torch.no_grad()
    def judge(self, model: Any, batch: int) -> Judged:
        """Loss, share of steps on their side of one half, and how well good and bad ones are told apart."""
        scores = list[tuple[float, ...]]()
        for rows in _batches(len(self), batch):
            logits_BT = self._logits(model, rows).cpu()
            scores += [tuple(logits_BT[at, list(self.ends[row])].tolist()) for at, row in enumerate(rows)]
        logits = torch.tensor([logit for row in scores for logit in row], dtype=torch.float64)
        labels = torch.tensor([label for row in self.labels for label in row], dtype=torch.float64)
        rows_S = torch.tensor([at for at, row in enumerate(self.labels) for _ in row])
        told = ~labels.isnan()
        logits, labels, rows_S = logits[told], labels[told], rows_S[told]
        # The right side of 0 for each label, a logit of exactly 0 counted half.
        sides = torch.where(labels == 1, logits, -logits)
        return Judged(
            right=tuple(ranked_right(sides, torch.zeros_like(sides)).tolist()),
            losses=tuple(process_losses(logits, labels).tolist()),
            margins=tuple(logits.tolist()),
            rows=tuple(rows_S.tolist()),
            groups=tuple(self.groups),
            scores=tuple(tuple(torch.tensor(row).sigmoid().tolist()) for row in scores),
            labels=tuple(labels.tolist()),
        )

    def _logits(self, model: Any, rows: Sequence[int]) -> Tensor:
        batch = padded([self.ids[row] for row in rows], self.pad_token_id)
        logits: Tensor = model(**_on(model, batch)).logits[..., 0]
        return logits.float()


def _batches(count: int, batch: int) -> Iterator[range]:
    return (range(start, min(start + batch, count)) for start in range(0, count, batch))


def _on(model: Any, batch: dict[str, Tensor]) -> dict[str, Any]:
    found: dict[str, Any] = {name: tensor.to(model.device) for name, tensor in batch.items()}
    return found | {"use_cache": False}


def take(task: PairTask | StepTask, rows: Sequence[int]) -> PairTask | StepTask:
    """A task of some rows."""
    pick: Callable[[Sequence[Any]], list[Any]] = lambda column: [column[row] for row in rows]  # noqa: E731 - used at once
    if isinstance(task, PairTask):
        return PairTask(
            pick(task.chosen), pick(task.rejected), pick(task.margins), pick(task.groups), task.pad_token_id
        )
    return StepTask(pick(task.ids), pick(task.ends), pick(task.labels), pick(task.groups), task.pad_token_id)
