"""A reward model that is trained during the run: collected pairs, periodic training, a column of rewards.

The weights, gradients and optimizer of the policy, and the random generators of the run, do not change. Pairs stay with
the rank that sampled both completions; gradients are averaged, and all ranks make as many updates as the one with the
most pairs.
"""

import math
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from grpo_plus.checkpoints.disk import failed_write
from grpo_plus.checkpoints.reward_model import read_kind, write_problem
from grpo_plus.heads.reward_pairs import (
    Comparison,
    Example,
    History,
    Labelled,
    few_of_each,
    is_held_out,
    ordered_pairs,
    packed,
    replayed,
    step_labels,
    unpacked,
)
from grpo_plus.heads.reward_scores import ranked_right, rewards_of, separation, worst_step
from grpo_plus.memory.snapshot import random_state
from grpo_plus.recipe.recipe import Recipe
from grpo_plus.recipe.rewards import label_problems, name_problems, step_giver
from grpo_plus.recipe.settings import GOOD_STEP, REWARD_MODEL, RewardModelOptions
from grpo_plus.training.hooks import Completions, Setup, TrainerStage, group_ids
from grpo_plus.training.scoring.live_verifier import RewardColumn
from grpo_plus.training.scoring.reward_model_files import SampledRow, Scorer, make, save, sides_of
from grpo_plus.training.scoring.verifiers import Verifiers
from grpo_plus.trl.host import Host
from grpo_plus.trl.logs import log_metrics, log_training_metrics
from grpo_plus.trl.ranks import gather_objects
from grpo_plus.trl.rollout import current_group_size, encode_prompt
from grpo_verifiers.errors import Problem
from grpo_verifiers.redaction import get_logger

logger = get_logger(__name__)

MAX_HELD_OUT = 256
"""Most held-out examples; the newest remain."""


class RewardModelStage(TrainerStage):
    """The reward model of a run: an ``adapter`` on the policy's base, or a ``model`` (``kind``)."""

    name = REWARD_MODEL
    scorer: Scorer

    def __init__(self, recipe: Recipe, options: RewardModelOptions, verification: Verifiers) -> None:
        self.pairs = RewardPairs(options)
        self.trainings = 0
        self.kind: str = options.on or "adapter"
        self._recipe = recipe
        self._options = options
        self._verification = verification
        self._batch: Completions | None = None
        self._scores: Tensor | None = None  # of this rank's completions
        self._steps: list[Any] = []  # of each completion
        self._learns = True

    # -- before the run ---------------------------------------------------------------------------------------------

    def problems(self, setup: Setup) -> list[Problem]:
        """Missing sources of labels, and unsuitable models, data and batches."""
        options, args, data = self._options, setup.args, setup.train_dataset
        self._learns = options.every > 0
        kind = read_kind(Path(options.start)).on if options.start else options.on
        self.kind = kind or ("adapter" if setup.adapted else "model")
        functions = Verifiers.function_names(setup.reward_funcs)
        problems: list[Problem] = [*name_problems(functions)]
        if self._learns and data is not None:
            problems += label_problems(self._recipe, functions)
        if self.kind == "adapter" and not setup.adapted:
            why = f"start ({options.start}) is an adapter" if options.start else "on is 'adapter'"
            problems.append(
                f"reward_model {why}, but the run trains no LoRA adapter whose base it could share: set use_peft, or "
                "give the reward model its own weights (on: model)."
            )
        problems += [
            f"reward_model reads texts alone, but train_dataset has the column {name!r}: remove reward_model."
            for name in ("image", "images")
            if name in (getattr(data, "column_names", None) or ())
        ]
        if place := write_problem(Path(args.output_dir) / REWARD_MODEL):
            problems.append(f"reward_model: {place}")
        rows = args.per_device_train_batch_size * args.steps_per_generation
        if self._learns and options.head == "outcome" and rows < 2:
            problems.append(
                "reward_model compares completions of one process, but each process samples only one of a generation "
                "batch: raise per_device_train_batch_size or steps_per_generation."
            )
        return problems

    def before_loading(self, setup: Setup) -> None:
        """Add the reward function, if the model rewards."""
        if self._options.rewards:
            setup.add_rewards([RewardColumn(self._rewards, float(self._options.weight or 0))])

    def after_loading(self, host: Host) -> None:
        super().after_loading(host)
        self.pairs.host = host
        self.scorer = make(host, self._options, self.kind)

    # -- rewards ----------------------------------------------------------------------------------------------------

    def begin(self, completions: Completions) -> None:
        """Take the completions of the next reward call."""
        self._batch, self._scores, self._steps = completions, None, []

    def _rewards(self) -> list[float]:
        """The rewards of this rank's completions; all ranks score."""
        scores = self._score()
        if self._options.head == "process":
            return [float(value) for value in scores]
        accelerator, rows = self.host.accelerator, len(scores)
        scores_N: Tensor = accelerator.gather(scores)
        groups_N = group_ids(len(scores_N), current_group_size(self.host), scores.device)
        rewards_N = rewards_of(scores_N, groups_N, self._options.reward_scale)
        first = accelerator.process_index * rows
        return [float(value) for value in rewards_N[first : first + rows]]

    def _score(self) -> Tensor:
        """Scores of this rank's completions, computed once: those of an outcome head, or of the worst step."""
        if self._scores is None:
            assert self._batch is not None
            rows = self._rows(self._batch)
            with self._preserved_generators():
                if self._options.head == "outcome":
                    self._scores = self.scorer.outcomes(rows).float()
                else:
                    ends = [tuple(end - 1 for start, end, _ in steps if end > start) for steps in self._spans()]
                    self._scores = worst_step([one.float() for one in self.scorer.steps(rows, ends)])
        return self._scores

    def _spans(self) -> list[Any]:
        """The steps of each completion, scored by the verifier that gives steps."""
        if not self._steps:
            assert self._batch is not None
            giver = step_giver(self._recipe)
            self._steps = self._verification.steps(giver, self._batch, self.host.processing_class)
        return self._steps

    def _rows(self, completions: Completions) -> list[SampledRow]:
        prompts = completions.prompt_ids
        if prompts is None:  # a rollout function has sampled them
            prompts = [encode_prompt(self.host, prompt) for prompt in completions.prompts]
        pairs = zip(prompts, completions.ids, strict=True)
        return [(tuple(map(int, prompt)), tuple(map(int, ids))) for prompt, ids in pairs]

    def _preserved_generators(self) -> ExitStack:
        """A context that restores the random generators of the run."""
        stack = ExitStack()
        stack.callback(random_state([self.host.accelerator.device]))
        return stack

    # -- labels -----------------------------------------------------------------------------------------------------

    def learn(self, completions: Completions, rewards_NK: Tensor) -> None:
        """Store the pairs, or the labels of steps, of a training batch; log the accuracy on new pairs."""
        learns = self.host.model.training and self._learns
        if self._options.head == "outcome":
            self._compare(completions, rewards_NK, learns=learns)
        elif learns:
            self._label(completions)
        self._batch, self._scores, self._steps = None, None, []

    def _compare(self, completions: Completions, rewards_NK: Tensor, *, learns: bool) -> None:
        host, rows = self.host, len(completions)
        first = host.accelerator.process_index * rows
        local = slice(first, first + rows)
        totals_B = self._totals(rewards_NK)[local].cpu()
        groups_B = group_ids(len(rewards_NK), current_group_size(host), torch.device("cpu"))[local]
        pairs_Q2 = ordered_pairs(totals_B, groups_B)
        scores_B = self._score().cpu()
        right, count = self._sum([float(ranked_right(*scores_B[pairs_Q2].T).sum()), len(pairs_Q2)])
        if count:
            log_metrics(host, {"reward_model/fresh_accuracy": right / count})
        if not learns:
            return
        chosen = few_of_each(pairs_Q2, groups_B, self._options.pairs, self.pairs.generator())
        texts = self._rows(completions)
        for better, worse in chosen.tolist():
            (prompt, chosen_ids), (_, rejected_ids) = texts[better], texts[worse]
            if chosen_ids != rejected_ids:
                self._store(completions.prompts[better], Comparison(prompt, chosen_ids, rejected_ids))

    def _label(self, completions: Completions) -> None:
        for row, steps, prompt in zip(self._rows(completions), self._spans(), completions.prompts, strict=True):
            ends, labels = step_labels(steps, GOOD_STEP)
            if ends:
                self._store(prompt, Labelled(*row, ends, labels))

    def _store(self, prompt: Any, example: Example) -> None:
        self.pairs.add([example], held_out=is_held_out(prompt, self._options.held_out))

    def _totals(self, rewards_NK: Tensor) -> Tensor:
        """The weighted sum of all other rewards; NaN if each reward with a weight is NaN."""
        names, weights_K = self.host.reward_func_names, self.host.reward_weights.to(rewards_NK)
        counts_K = weights_K != 0
        counts_K[[place for place, name in enumerate(names) if name == REWARD_MODEL]] = False
        rewards_NK, weights_K = rewards_NK[:, counts_K].double(), weights_K[counts_K].double()
        return (rewards_NK * weights_K).nansum(dim=1).masked_fill(rewards_NK.isnan().all(dim=1), float("nan"))

    # -- training ---------------------------------------------------------------------------------------------------

    def on_step_end(self, *_: Any, **__: Any) -> None:
        """Train after every ``every`` steps."""
        every = self._options.every
        if every and self.host.state.global_step % every == 0:
            self.train_now()

    def train_now(self) -> dict[str, float]:
        """Train on the new pairs and a share of earlier ones; returns the logged metrics.

        All ranks call it together. Without a new pair on any rank, nothing is trained.
        """
        examples, again, generator = self.pairs.take()
        ranks = gather_objects([(len(examples) - again, again)])
        fresh, replayed = (sum(counts[place] for counts in ranks) for place in (0, 1))
        most = max(map(sum, ranks))
        metrics = {"reward_model/pairs": float(fresh), "reward_model/replayed": float(replayed)}
        with self._preserved_generators():
            if fresh:
                metrics["reward_model/loss"] = loss = self._epochs(examples, most, generator)
                if not math.isfinite(loss) and self.host.accelerator.is_main_process:
                    text = "reward_model: the loss of a training was %s: such updates are skipped. Lower learning_rate."
                    logger.warning(text, loss)
                self.trainings += 1
            accuracy = self._accuracy()
        if accuracy is not None:
            metrics["reward_model/accuracy"] = accuracy
        log_training_metrics(self.host, metrics)
        return metrics

    def _epochs(self, examples: Sequence[Example], most: int, generator: torch.Generator) -> float:
        """Train; returns the mean loss, each before its update."""
        losses, terms, size = 0.0, 0.0, self._options.batch_size
        for _ in range(self._options.epochs):
            order = torch.randperm(len(examples), generator=generator).tolist()
            for start in range(0, most, size):
                batch = [examples[place] for place in order[start : start + size]]
                (count,) = self._sum([sum(len(one.labels) if isinstance(one, Labelled) else 1 for one in batch)])
                ranks = self.host.accelerator.num_processes
                (loss,) = self._sum([float(self.scorer.update(batch, int(count), ranks))])
                losses, terms = losses + loss, terms + count
        return losses / terms

    def _accuracy(self) -> float | None:
        """The ranking accuracy on held-out examples of all ranks; None without two that differ."""
        examples = list(self.pairs.held_out)
        if self._options.head == "outcome":
            rows, places_Q2 = sides_of([one for one in examples if isinstance(one, Comparison)])
            scores = self.scorer.outcomes(rows).cpu()
            right, count = self._sum([float(ranked_right(*scores[places_Q2].T).sum()), len(places_Q2)])
            return right / count if count else None
        labelled = [one for one in examples if isinstance(one, Labelled)]
        rows_of_steps = [(one.prompt, one.completion) for one in labelled]
        scores_of_rows = self.scorer.steps(rows_of_steps, [one.ends for one in labelled])
        own = [
            (float(score), label)
            for one, row in zip(labelled, scores_of_rows, strict=True)
            for score, label in zip(row, one.labels, strict=True)
        ]
        steps = gather_objects(own)
        if len({label for _, label in steps}) < 2:
            return None
        scores, labels = (torch.tensor(column, dtype=torch.float64) for column in zip(*steps, strict=True))
        return separation(scores, labels)

    def _sum(self, values: Sequence[float]) -> list[float]:
        return [float(sum(column)) for column in zip(*gather_objects([list(values)]), strict=True)]

    # -- checkpoints ------------------------------------------------------------------------------------------------

    @property
    def identity(self) -> str:
        return f"reward model (on: {self.kind}, head: {self._options.head})"

    def state_dict(self) -> dict[str, Any]:
        return {"trainings": self.trainings}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.trainings = int(state["trainings"])

    def tensors(self) -> dict[str, Tensor]:
        """The weights and the optimizer's moments; only the weights if ``save_only_model`` is set."""
        return self.scorer.tensors(moments=not self.host.args.save_only_model)

    def load_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        self.scorer.load_tensors(tensors)

    def on_train_end(self, *_: Any, **__: Any) -> None:
        """Save it in a subfolder of ``output_dir``."""
        if self.host.args.should_save:
            folder = Path(self.host.args.output_dir) / REWARD_MODEL
            try:
                save(folder, self.host, self.scorer, self._options, self.kind, trainings=self.trainings)
            except Exception as error:  # noqa: BLE001 - the policy, which is saved next, must not be lost
                why = failed_write(error, folder.parent) or f"{type(error).__name__}: {error}"
                logger.warning("the reward model was not written to %s, it is in checkpoints only: %s", folder, why)


class RewardPairs(TrainerStage):
    """Examples of this rank, limited in number and part of every checkpoint; random choices have their own seeds.

    Attributes:
        fresh: examples since the last training, at most ``history``.
        held_out: examples of held-out prompts.
        history: examples of earlier trainings.
    """

    name = "reward_model_pairs"
    rank_local = True

    def __init__(self, options: RewardModelOptions) -> None:
        self.fresh: deque[Example] = deque(maxlen=options.history)
        self.held_out: deque[Example] = deque(maxlen=MAX_HELD_OUT)
        self.history = History(options.history)
        self._options = options
        self._kind = Comparison if options.head == "outcome" else Labelled
        self._draws = 0

    def generator(self) -> torch.Generator:
        """The next generator of this rank, independent of those of the run."""
        self._draws += 1
        seed = (int(self.host.args.seed) << 40) + (self.host.accelerator.process_index << 32) + self._draws
        return torch.Generator().manual_seed(seed % 2**63)

    def add(self, examples: Sequence[Example], *, held_out: bool) -> None:
        """Store examples for the next training, or for the accuracy."""
        (self.held_out if held_out else self.fresh).extend(examples)

    def take(self) -> tuple[list[Example], int, torch.Generator]:
        """The examples of a training, the number of replayed ones, and the generator for their order.

        The fresh ones become history.
        """
        generator = self.generator()
        fresh = list(self.fresh)
        again = self.history.sample(replayed(len(fresh), self._options.replay), generator)
        self.fresh.clear()
        if self._options.replay:
            self.history.add(fresh, generator)
        return [*fresh, *again], len(again), generator

    def state_dict(self) -> dict[str, Any]:
        """The numbers of generators and of examples so far; the examples are tensors."""
        return {"draws": self._draws, "seen": self.history.offered}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._draws, self.history.offered = int(state["draws"]), int(state["seen"])
        for store in (self.fresh, self.held_out, self.history.items):  # of an earlier run of the same trainer
            store.clear()

    def tensors(self) -> dict[str, Tensor]:
        return packed({"fresh": self.fresh, "held": self.held_out, "history": self.history.items})

    def load_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        stores = unpacked(tensors, self._kind, ("fresh", "held", "history"))
        self.fresh.extend(stores["fresh"])
        self.held_out.extend(stores["held"])
        self.history.items = stores["history"]
