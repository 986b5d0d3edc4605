"""A selection in a trainer: prompts sampled by the history of their rewards.

The data loader samples a generation batch at least one batch ahead of training, by a history that is late by as much.
All ranks have all rewards and equal generators, so they sample the same prompts.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Sampler

from grpo_plus.objectives.batch import COIN, SHARE
from grpo_plus.recipe.recipe import Recipe, Selected
from grpo_plus.selection.checking import common_of, selection_weights
from grpo_plus.selection.contrast import contrast_chance
from grpo_plus.selection.drawing import distribution, sample_prompts, shares
from grpo_plus.selection.history import EVIDENCE, PromptHistory, digest_of
from grpo_plus.selection.part import SelectionFailedError, SelectionOutputError
from grpo_plus.selection.prompts import PICTURES, DatasetPrompts
from grpo_plus.training.hooks import PromptRow, ScoredBatch, Setup, TrainerStage, too_few_rows
from grpo_plus.training.resume import DataPosition, Geometry
from grpo_plus.trl.host import Repeats
from grpo_plus.trl.logs import log_metrics
from grpo_plus.trl.ranks import broadcast_from_main, gather_objects
from grpo_plus.trl.rollout import sampler_sizes
from grpo_verifiers.errors import Problem
from grpo_verifiers.errors.messages import show
from grpo_verifiers.redaction import get_logger

logger = get_logger("grpo_plus.selection")


class PromptSampler(TrainerStage):
    """Samples the prompts of generation batches by the recipe's selection, and stores the history of all prompts.

    Weights follow the history at every sample, or are fixed for ``every`` optimizer steps.
    """

    name = "selection"

    def __init__(self, recipe: Recipe, selected: Selected, position: DataPosition) -> None:
        self._recipe = recipe
        self.selection, self._keywords = selected
        common = common_of(self.selection, self._keywords)
        self._explore, self._decay = float(common["explore"]), float(common["decay"])
        self._weighted = selected.weighted
        self._every: int | None = common["every"]
        self._position = position
        self.prompts_of_data: DatasetPrompts | None = None
        self._begin()

    def _begin(self) -> None:
        self._history: PromptHistory | None = None
        self._generator = torch.Generator()
        self._round_weights: Tensor | None = None  # (P,) π of the optimizer step ``_since``, for `every` steps
        self._since = 0
        self._pass = -1
        self._rows: list[int] = []  # of the dataset, sampled in this pass
        self._shares: list[float] = []  # (1/N)/π of each of them when it was sampled
        self._extra: dict[int, float] = {}  # shares of this batch's extra prompts

    def problems(self, setup: Setup) -> list[Problem]:
        data = setup.train_dataset
        if data is None:
            return []  # TRL reports it
        if problem := _data_problem(data):
            return [f"selection ({self.selection.name!r}) {problem}"]
        self.prompts_of_data = DatasetPrompts(data)
        if too_few_rows(data, setup.args):
            return []  # reported by itself
        try:
            selection_weights(self.selection, self._empty(setup.args.num_generations), **self._keywords)
        except (SelectionOutputError, SelectionFailedError) as error:
            return [str(error)]
        return []

    def _empty(self, num_generations: int) -> PromptHistory:
        return PromptHistory.empty(self.data.rows, num_generations, self.data.columns)

    def training(self) -> AbstractContextManager[None]:
        self._begin()
        self._history = self._empty(self.host.num_generations)
        self._generator.manual_seed(self.host.args.seed)
        return nullcontext()

    @property
    def data(self) -> DatasetPrompts:
        """The prompts of the dataset."""
        assert self.prompts_of_data is not None
        return self.prompts_of_data

    @property
    def history(self) -> PromptHistory:
        """Rewards of the prompts so far."""
        assert self._history is not None
        return self._history

    def sampler(self, own: Repeats) -> Any:
        """Return the sampler in place of the host's ``own``; ``own`` if the selection samples nothing."""
        return SelectedSampler(self, own) if self.selection.draws else own

    def batch_of_pass(self, number: int, count: int) -> list[int]:
        """Return the rows of the dataset for the ``count`` prompts of generation batch ``number`` of this pass."""
        if self._position.current.passes != self._pass:
            self._pass, self._rows, self._shares = self._position.current.passes, [], []
        missing = (number + 1) * count - len(self._rows)
        if missing > 0:
            probabilities = self.probabilities()
            rows = self._sample(probabilities, missing, again=self._weighted)
            self._rows += rows
            self._shares += self._shares_of(rows, probabilities)
        return self._rows[number * count : (number + 1) * count]

    def probabilities(self) -> Tensor:
        """Return π, (P,), which is fixed for ``every`` optimizer steps if that is set."""
        if self._every is None:
            return self._present()
        step = int(self.host.state.global_step)
        if self._round_weights is None or step - self._since >= self._every:
            self._round_weights, self._since = self._present(), step
        return self._round_weights

    def _present(self) -> Tensor:
        """Compute π, (P,), on the main process, since a plug-in may use random numbers."""
        state = self.host.state
        progress = min(1.0, state.global_step / state.max_steps) if state.max_steps > 0 else 0.0
        history = replace(self.history, progress=progress)
        weights = broadcast_from_main(lambda: selection_weights(self.selection, history, **self._keywords))
        return distribution(weights, history.rows, self._explore)

    def _sample(self, probabilities: Tensor, count: int, *, again: bool) -> list[int]:
        prompts = sample_prompts(probabilities, count, self._generator, again=again)
        return [self.data.row(prompt, self._generator) for prompt in prompts]

    def _shares_of(self, rows: Sequence[int], probabilities: Tensor) -> list[float]:
        return shares(probabilities, self.data.rows)[[self.data.of_row(row) for row in rows]].tolist()

    def weigh(self, batch: ScoredBatch) -> ScoredBatch:
        """Weight each group that is trained on by the probability of its prompt."""
        extra, self._extra = self._extra, {}
        if not (self.host.model.training and self._weighted):
            return batch
        rows, output, size = batch.completions.rows, batch.output, self.host.num_generations
        first = self.host.accelerator.process_index * len(rows)
        planned, replaced = self._shares_of_batch(), dict(enumerate(batch.replaced))
        groups = [(first + place) // size for place in range(len(rows))]
        values = [
            extra[self._number(row["prompt"])] if replaced.get(group) else planned[group]
            for row, group in zip(rows, groups, strict=True)
        ]
        share = torch.tensor(values).to(output["completion_ids"].device)
        columns = {name: share * output[name] for name in (SHARE, COIN) if name in output}
        return batch.adding(**(columns or {SHARE: share}))

    def extra_prompts(self, count: int, used: Sequence[PromptRow]) -> list[PromptRow]:
        """Return further rows of the dataset for the current batch; equal on all ranks.

        Prompts are new ones as far as there are. With weights any prompt may repeat: the shares (1/N)/π assume
        sampling with replacement.
        """
        probabilities = left = self.probabilities()
        if not self._weighted:
            left = probabilities.clone()
            left[[self._number(row["prompt"]) for row in used]] = 0
        enough = int((left > 0).sum()) >= count
        rows = self._sample(left if enough else probabilities, count, again=self._weighted)
        prompts = [self.host.train_dataset[row] for row in rows]
        numbers = [self._number(row["prompt"]) for row in prompts]
        self._extra |= dict(zip(numbers, self._shares_of(rows, probabilities), strict=True))
        return prompts

    def _number(self, prompt: Any) -> int:
        number = self.data.index.get(digest_of(prompt))
        if number is None:
            raise ValueError(
                f"selection ({self.selection.name!r}): the prompt {show(prompt)} was sampled, but the dataset of the "
                "trainer has no such prompt: pass the prompts to the trainer exactly as they are sampled."
            )
        return number

    def _shares_of_batch(self) -> list[float]:
        now = Geometry.of(self.host)
        first = self._position.current.taken // now.block * now.prompts
        return self._shares[first : first + now.prompts]

    def _observed(self, batch: ScoredBatch) -> tuple[list[int], Tensor, Tensor]:
        """Return all ranks' prompts of a round by number, total rewards, and rewards that the estimator compares."""
        rewards_NK = batch.rewards
        numbers = gather_objects([self._number(row["prompt"]) for row in batch.completions.rows])
        weights_K = self.host.reward_weights.to(rewards_NK)
        scorable = ~rewards_NK.isnan().all(dim=1)
        totals_N = (rewards_NK * weights_K).nansum(dim=1).masked_fill(~scorable, math.nan)
        read_NK = rewards_NK[:, weights_K != 0] if self._by_column() else totals_N.unsqueeze(1)
        return numbers, totals_N.cpu(), read_NK.cpu()

    def _by_column(self) -> bool:
        """Return True if the estimator compares each reward by itself."""
        parts = self._recipe.estimator_parts
        if parts:
            return any(part.own_zero_rule and not part.reads_steps for part, _ in parts)
        return bool(self.host.args.multi_objective_aggregation == "normalize_then_sum")

    def observe(self, batch: ScoredBatch) -> None:
        """Add the rewards of all rounds of a training batch to the history."""
        if not self.host.model.training:
            return
        rounds = [self._observed(one) for one in batch.rounds or (batch,)]
        index = [prompt for numbers, _, _ in rounds for prompt in numbers]
        totals, read = torch.cat([one for _, one, _ in rounds]), torch.cat([one for _, _, one in rounds])
        self._history = self.history.observed(index, totals, decay=self._decay, read_NK=read)
        log_metrics(self.host, self._metrics())

    def _metrics(self) -> dict[str, float]:
        history, count = self.history, len(self.history)
        probabilities = self.probabilities() if self.selection.draws else history.rows / history.rows.sum()
        entropy = -(probabilities * probabilities.clamp(min=1e-300).log()).sum()
        return {
            "selection/unseen": float((~history.seen).sum()) / count,
            "selection/impossible": float(history.impossible().sum()) / count,
            "selection/died_out": float(history.died_out().sum()) / count,
            "selection/effective": float(entropy.exp()) / count,
            "selection/contrast": float((probabilities * contrast_chance(history)).sum()),
        }

    @property
    def identity(self) -> str:
        return f"a history of the data {self.prompts_of_data.data}" if self.prompts_of_data else self.name

    def state_dict(self) -> dict[str, Any]:
        """Bounds of the rewards and the pass; empty before the first sample."""
        history = self._history
        if history is None or not (self._rows or bool(history.drawn.any())):
            return {}
        bounds = [None if math.isnan(one) else one for one in (history.low, history.high)]
        return {"bounds": bounds, "graded": history.graded, "pass": self._pass, "since": self._since}

    def tensors(self) -> dict[str, Tensor]:
        """Evidence of the sampled prompts by digest, the generator, this pass's rows and shares, and fixed π."""
        if not self.state_dict():
            return {}
        history = self.history
        sampled = history.drawn.nonzero().squeeze(1)
        return {
            "digests": self.data.packed(sampled.tolist()),
            "evidence": torch.stack([getattr(history, name)[sampled] for name in EVIDENCE], dim=1),
            "generator": self._generator.get_state(),
            "rows": torch.tensor(self._rows, dtype=torch.long),
            "shares": torch.tensor(self._shares, dtype=torch.float64),
            **({} if self._round_weights is None else {"held": self._round_weights}),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        low, high = (math.nan if one is None else float(one) for one in state["bounds"])
        self._history = replace(self.history, low=low, high=high, graded=bool(state["graded"]))
        self._pass, self._since = int(state["pass"]), int(state["since"])

    def load_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        prompts = torch.tensor(self.data.numbers_of(tensors["digests"]), dtype=torch.long)
        fresh = {name: getattr(self.history, name).clone() for name in EVIDENCE}
        for column, name in enumerate(EVIDENCE):
            fresh[name][prompts] = tensors["evidence"][:, column]
        self._history = replace(self.history, **fresh)
        self._generator.set_state(tensors["generator"])
        if not self.host.args.ignore_data_skip:
            self._rows, self._shares = tensors["rows"].tolist(), tensors["shares"].tolist()
        if self._every is not None:
            self._round_weights = tensors.get("held")


class SelectedSampler(Sampler[int]):
    """The host's sampler with prompts of the selection, sampled lazily for each generation batch."""

    def __init__(self, prompts: PromptSampler, own: Repeats) -> None:
        self._prompts, self._own = prompts, own

    def __len__(self) -> int:
        return len(self._own)

    def __iter__(self) -> Iterator[int]:
        prompts, copies, repeats, batches = sampler_sizes(self._own)
        for number in range(batches):
            chosen = self._prompts.batch_of_pass(number, prompts)
            for _ in range(repeats):
                for row in chosen:
                    yield from (row for _ in range(copies))


def _data_problem(data: Any) -> str | None:
    if not hasattr(data, "__len__") or not hasattr(data, "__getitem__"):
        return "needs a dataset with rows that can be counted, but train_dataset is a stream: leave selection unset."
    names = getattr(data, "column_names", None) or (list(data[0]) if len(data) else [])
    if "prompt" not in names:
        return (
            "knows prompts by their text, but train_dataset has no column 'prompt': add one, or leave selection unset."
        )
    if pictures := [name for name in PICTURES if name in names]:
        return f"knows prompts by their text, but train_dataset has the column {pictures[0]!r}: leave selection unset."
    if getattr(data, "format", {}).get("type") == "custom":
        return "knows prompts as train_dataset stores them, but it has a transform: apply it with map first."
    return None
