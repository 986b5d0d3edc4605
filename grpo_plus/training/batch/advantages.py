"""The advantage estimator in a trainer: from the rewards of a generation batch to its advantages."""

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from grpo_plus.advantages import RewardTable, advantage_metrics, compute_advantages
from grpo_plus.recipe.recipe import Chosen, Recipe
from grpo_plus.recipe.rewards import running_advantage, step_problems
from grpo_plus.sampling.token_spans import scorer_steps
from grpo_plus.training.batch.reward_table import is_truncated, per_completion, per_token, reward_table, step_scores
from grpo_plus.training.hooks import CRITIC_VALUES, Completions, ScoredBatch, Setup, TrainerStage, local_rows
from grpo_plus.training.scoring import StepSource, Verifiers, turn_scores, with_states
from grpo_plus.trl.host import Host
from grpo_plus.trl.logs import log_extra_column, log_metrics, replace_logged_advantages
from grpo_plus.trl.ranks import gather_objects
from grpo_plus.trl.rollout import current_group_size, stop_token_ids
from grpo_verifiers.errors import Problem, raise_all
from grpo_verifiers.redaction import get_logger
from grpo_verifiers.verdict import LARGEST, Verdict

logger = get_logger("grpo_plus.rewards")

StepScorer = Callable[..., Sequence[Sequence[tuple[int, int, float]]]]
"""Returns the scored steps of each completion as (first token, one past the last token, score)."""


class Advantages(TrainerStage):
    """Replaces TRL's advantages by those of the recipe's estimator, and unusable rewards by 0.

    A step scorer overrides the verifiers' steps. ``estimator`` has the estimator and its keywords; None for TRL's own.
    """

    name = "advantages"

    def __init__(self, recipe: Recipe, verifiers: Verifiers, step_scorer: StepScorer | None) -> None:
        self.estimator: Chosen | None = None
        self._recipe = recipe
        self._verifiers = verifiers
        self._step_scorer = step_scorer
        self._source = StepSource(recipe.step_source, verifiers.step_givers)
        self._settled: str | None = None  # the verifier whose steps the estimator's weights were settled by
        self._functions: list[str] = []
        self._owned: list[str] = []  # rewards of the trainer's environments

    def problems(self, setup: Setup) -> list[Problem]:
        self._functions = self._verifiers.function_names(setup.reward_funcs)
        self._owned = _rewarding(setup.further.get("environment_factory"))
        givers, scorer = self._verifiers.step_givers, self._step_scorer is not None
        self.estimator, ignored = running_advantage(
            self._recipe, givers, self._functions, scorer=scorer, owned=self._owned
        )
        return [*step_problems(self._recipe, scorer=scorer), *ignored]

    def after_loading(self, host: Host) -> None:
        super().after_loading(host)
        self._unusable = FiniteScores(main=host.accelerator.is_main_process)

    def read(
        self, completions: Completions, rewards_NK: torch.Tensor, verdicts: Sequence[Sequence[Verdict]]
    ) -> ScoredBatch:
        """Return the completions with usable rewards and all inputs of the estimator, gathered from all ranks."""
        if self.estimator is not None or self._verifiers.live:
            rewards_NK = self._logged(self._unusable.rewards(rewards_NK, self.host.reward_func_names))
        batch = ScoredBatch(completions, rewards_NK, verdicts)
        if self.estimator is None:
            return batch
        accelerator, ids = self.host.accelerator, completions.ids
        lengths = torch.tensor([len(row) for row in ids], device=accelerator.device)
        truncated = torch.tensor(is_truncated(ids, stop_token_ids(self.host)), device=accelerator.device)
        steps = None if self._recipe.step_sources is None else self._gather_steps(completions)
        return replace(batch, lengths=accelerator.gather(lengths), truncated=accelerator.gather(truncated), steps=steps)

    def table(self, batch: ScoredBatch, penalty_NT: torch.Tensor | None) -> RewardTable | None:
        """Return the estimator's input for all ranks' completions; None for TRL's own estimator.

        A KL penalty is subtracted from the rewards. The batch has the values of a critic.
        """
        if self.estimator is None:
            return None
        values_NT = self._gathered(batch.output[CRITIC_VALUES]) if CRITIC_VALUES in batch.output else None
        size = current_group_size(self.host)
        return self._table(batch, self.trainable(batch.output), size, penalty_NT, values_NT)

    def estimate(self, batch: ScoredBatch, trainable_NT: torch.Tensor, num_generations: int) -> torch.Tensor:
        """Return the estimator's advantages of a part of a batch, without logging."""
        assert self.estimator is not None
        estimator, keywords = self.estimator
        return compute_advantages(estimator, self._table(batch, trainable_NT, num_generations), **keywords)

    def _table(
        self,
        batch: ScoredBatch,
        trainable_NT: torch.Tensor,
        num_generations: int,
        penalty_NT: torch.Tensor | None = None,
        values_NT: torch.Tensor | None = None,
    ) -> RewardTable:
        assert batch.lengths is not None
        assert batch.truncated is not None
        return reward_table(
            batch.rewards,
            penalty_NT=penalty_NT,
            weights_K=self.host.reward_weights,
            lengths_N=batch.lengths,
            truncated_N=batch.truncated,
            num_generations=num_generations,
            names=self.host.reward_func_names,
            steps=batch.steps,
            trainable_NT=trainable_NT,
            values_NT=values_NT,
        )

    def _gather_steps(self, completions: Completions) -> Any:
        """Return step scores of all ranks' completions, with the states of those that are turns."""
        host, rows, ids = self.host, completions.rows, completions.ids
        nothing: Sequence[Any] = [()] * len(rows)
        turns_of_rows = list(zip(completions.turns or nothing, completions.turn_tokens or nothing, strict=True))
        if self._step_scorer is not None:
            columns = {key: [row[key] for row in rows] for key in rows[0] if key != "prompt"}
            steps = self._step_scorer(
                prompts=completions.prompts, completions=completions.texts, completion_ids=ids, **columns
            )
            first = host.accelerator.process_index * len(rows)
            scored, wrong = scorer_steps(steps, len(rows), first=first)
            if wrong := gather_objects(wrong):  # on any rank
                raise ValueError(wrong[0])
        elif self._recipe.own_turns:
            scored = [turn_scores(turns, spans) for turns, spans in turns_of_rows]
        else:
            evidence = gather_objects([self._verifiers.step_evidence(ids, host.processing_class)])
            labels = self._source.labels(evidence, training=host.model.training)
            self._settle_outcome(labels)
            scored = self._verifiers.steps(labels, completions, host.processing_class)
        local = [with_states(steps, *turns) for steps, turns in zip(scored, turns_of_rows, strict=True)]
        everywhere = gather_objects(local)
        if self._step_scorer is not None:
            everywhere = self._logged(self._unusable.steps(everywhere))
        return step_scores(everywhere, device=host.accelerator.device, dtype=torch.float32)

    def _settle_outcome(self, labels: Sequence[str]) -> None:
        """Set the weight of the outcome, once a verifier has scored steps."""
        if self._settled is not None or len(labels) != 1:
            return
        self._settled = labels[0]
        givers = dict.fromkeys(self._verifiers.labels, False) | {labels[0]: True}
        chosen, ignored = running_advantage(self._recipe, givers, self._functions, owned=self._owned)
        raise_all(ignored)
        if chosen != self.estimator:
            self.estimator = chosen

    def state_dict(self) -> dict[str, Any]:
        """Sources of unusable scores, evidence about steps, and the verifier that scores them."""
        steps, unusable = self._source.state_dict(), sorted(self._unusable.sources)
        state = {"steps": steps, "settled": self._settled, "unusable": unusable}
        return state if any(state.values()) else {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._unusable.sources |= set(state["unusable"])
        if state["steps"]:
            self._source.load_state_dict(state["steps"])
        if state["settled"] is not None:
            self._settle_outcome([state["settled"]])

    def _logged(self, result: tuple[Any, Mapping[str, float]]) -> Any:
        """Log the metrics in the second value and return the first."""
        log_metrics(self.host, result[1])
        return result[0]

    def compute(self, batch: ScoredBatch, table: RewardTable | None) -> ScoredBatch:
        """Return the batch with the estimator's advantages of this rank's rows, also in metrics and TRL's table."""
        if self.estimator is None or table is None:
            return batch
        host, (estimator, keywords) = self.host, self.estimator
        advantages_N = compute_advantages(estimator, table, **keywords).float()
        metrics = advantage_metrics(estimator, table, advantages_N)
        metrics.pop("frac_reward_zero_std", None)  # TRL has logged its own
        log_metrics(host, metrics)
        replace_logged_advantages(host, per_completion(advantages_N, table))
        if advantages_N.dim() == 2:
            log_extra_column(host, "advantages_per_token", per_token(advantages_N, table))
        rows, width = batch.output["completion_ids"].shape
        rank = host.accelerator.process_index
        return batch.adding(advantages=local_rows(advantages_N, rank=rank, rows=rows, width=width))

    def trainable(self, output: Mapping[str, Any]) -> torch.Tensor:
        """Return all ranks' completion tokens that are trained on, without tool results and cut-off completions."""
        return self._gathered(output["completion_mask"] * output.get("tool_mask", 1)).bool()

    def _gathered(self, local_BT: torch.Tensor) -> torch.Tensor:
        """Gather the rows of all ranks, (N, T); narrower ones are padded with 0."""
        accelerator = self.host.accelerator
        rows_NT: torch.Tensor = accelerator.gather(accelerator.pad_across_processes(local_BT, dim=1))
        return rows_NT


def _rewarding(factory: Any) -> list[str]:
    """Names of a trainer's own environments that may reward; a factory function always may."""
    factories = factory.values() if isinstance(factory, Mapping) else [] if factory is None else [factory]
    may_reward = [one for one in factories if not inspect.isclass(one) or hasattr(one, "get_reward")]
    return [getattr(one, "__name__", str(one)) for one in may_reward]


class FiniteScores:
    """Replaces infinite scores by 0, counts them and warns once for each source, in the main process.

    They are infinite in float32. A verifier's are errors of that check; those of plain reward functions and step
    scorers arrive here. They score 0, as an error does, so that neither the completion gains nor the run ends by one.
    """

    def __init__(self, *, main: bool) -> None:
        self._main = main
        self.sources: set[str] = set()

    def rewards(self, rewards_NK: torch.Tensor, names: Sequence[str]) -> tuple[torch.Tensor, dict[str, float]]:
        """Return the rewards of all ranks, and ``rewards/NAME/unusable`` (share) of every source so far."""
        bad_NK = rewards_NK.isinf()
        metrics = {}
        for name, count in zip(names, bad_NK.sum(dim=0).tolist(), strict=True):
            share = self._share(f"the reward function {name!r}", count, len(rewards_NK))
            if share is not None:
                metrics[f"rewards/{name}/unusable"] = share
        return rewards_NK.masked_fill(bad_NK, 0.0), metrics

    def steps(self, rows: Sequence[Sequence[Any]]) -> tuple[list[list[tuple[Any, ...]]], dict[str, float]]:
        """Return a step scorer's ``(first, one past the last, score)`` of all ranks, and ``steps/unusable``."""
        finite: list[list[tuple[Any, ...]]] = [
            [(first, last, 0.0 if math.isinf(score) else score, *rest) for first, last, score, *rest in steps]
            for steps in rows
        ]
        scores = [step[2] for steps in rows for step in steps]
        share = self._share("the step scorer", sum(map(math.isinf, scores)), len(scores))
        return finite, {} if share is None else {"steps/unusable": share}

    def _share(self, source: str, count: int, total: int) -> float | None:
        """Return the share, once a source has returned an unusable score."""
        if count and source not in self.sources:
            self.sources.add(source)
            if self._main:
                text = (
                    "%s returned an infinite score, or one beyond %.2g, %d times in %d: such a score counts as 0. "
                    "Bound its scores; None means that it does not apply."
                )
                logger.warning(text, source, LARGEST, count, total)
        return count / max(1, total) if source in self.sources else None
