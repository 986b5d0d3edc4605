"""The advantage estimator in a trainer: from the rewards of a generation batch to its advantages."""

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from grpo_plus.advantages import RewardTable, advantage_metrics, compute_advantages
from grpo_plus.recipe.recipe import Chosen, Recipe
from grpo_plus.recipe.rewards import running_advantage, step_giver, step_problems
from grpo_plus.sampling.token_spans import scorer_steps
from grpo_plus.training.batch.reward_table import is_truncated, per_completion, per_token, reward_table, step_scores
from grpo_plus.training.hooks import CRITIC_VALUES, Completions, ScoredBatch, Setup, TrainerStage, local_rows
from grpo_plus.training.scoring import Verifiers, turn_scores, with_states
from grpo_plus.trl.logs import log_extra_column, log_metrics, replace_logged_advantages
from grpo_plus.trl.ranks import gather_objects
from grpo_plus.trl.rollout import current_group_size, stop_token_ids
from grpo_verifiers.errors import Problem
from grpo_verifiers.redaction import get_logger
from grpo_verifiers.verdict import LARGEST, Status, Verdict

logger = get_logger("grpo_plus.rewards")

StepScorer = Callable[..., Sequence[Sequence[tuple[int, int, float]]]]
"""Returns the scored steps of each completion as (first token, one past the last token, score)."""
PATIENCE = 32
"""Judged completions without any step that stop the run."""
_JUDGED = (Status.CORRECT, Status.WRONG, Status.PARTIAL)


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
        self._stepless: int | None = 0  # judged completions before the first step; None once there was one
        self._warned: set[str] = set()  # sources of infinite scores

    def problems(self, setup: Setup) -> list[Problem]:
        functions = self._verifiers.function_names(setup.reward_funcs)
        owned = _rewarding(setup.further.get("environment_factory"))
        givers, scorer = self._recipe.step_givers, self._step_scorer is not None
        self.estimator, ignored = running_advantage(self._recipe, givers, functions, scorer=scorer, owned=owned)
        return [*step_problems(self._recipe, scorer=scorer), *ignored]

    def read(
        self, completions: Completions, rewards_NK: torch.Tensor, verdicts: Sequence[Sequence[Verdict]]
    ) -> ScoredBatch:
        """Return the completions with usable rewards and all inputs of the estimator, gathered from all ranks."""
        if self.estimator is not None or self._verifiers.live:
            rewards_NK = self._finite(rewards_NK)
        batch = ScoredBatch(completions, rewards_NK, verdicts)
        if self.estimator is None:
            return batch
        accelerator, ids = self.host.accelerator, completions.ids
        lengths = torch.tensor([len(row) for row in ids], device=accelerator.device)
        truncated = torch.tensor(is_truncated(ids, stop_token_ids(self.host)), device=accelerator.device)
        steps = None if self._recipe.step_sources is None else self._gather_steps(completions, verdicts)
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

    def _gather_steps(self, completions: Completions, verdicts: Sequence[Sequence[Verdict]]) -> Any:
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
            label = self._recipe.step_source or step_giver(self._recipe)
            scored = self._verifiers.steps(label, completions, host.processing_class)
            place = self._verifiers.labels.index(label)
            self._require_steps(label, scored, [row[place] for row in verdicts], ids)
        local = [with_states(steps, *turns) for steps, turns in zip(scored, turns_of_rows, strict=True)]
        everywhere = gather_objects(local)
        if self._step_scorer is not None:
            everywhere = self._finite_steps(everywhere)
        return step_scores(everywhere, device=host.accelerator.device, dtype=torch.float32)

    def _require_steps(
        self,
        label: str,
        scored: Sequence[Sequence[tuple[int, int, float]]],
        verdicts: Sequence[Verdict],
        ids: Sequence[Sequence[int]],
    ) -> None:
        """Stop a run whose verifier gives no usable step; one that declares steps is waited for."""
        if self._stepless is None or self._recipe.step_givers[label]:
            return
        stepped = [steps for steps, verdict in zip(scored, verdicts, strict=True) if verdict.steps]
        usable = any(first < last and not math.isnan(score) for steps in stepped for first, last, score in steps)
        judged = sum(verdict.status in _JUDGED and len(row) > 0 for verdict, row in zip(verdicts, ids, strict=True))
        ranks = gather_objects([(usable, judged)])
        if any(ready for ready, _ in ranks):
            self._stepless = None
        elif self.host.model.training:
            self._stepless += sum(count for _, count in ranks)
            if self._stepless >= PATIENCE:
                raise ValueError(
                    f"the verifier {label!r} gave no step with a score in {self._stepless} completions, so nothing is "
                    "trained by steps. Return Verdict(…, steps=…) from it, or name another as steps_from of the "
                    "advantage, such as math_steps with weight 0."
                )

    def state_dict(self) -> dict[str, Any]:
        return {} if self._stepless == 0 else {"stepless": self._stepless}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._stepless = state["stepless"]

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

    def _finite(self, rewards_NK: torch.Tensor) -> torch.Tensor:
        """Return the rewards of all ranks with 0 for infinite ones: neither the completion gains nor the run ends.

        A verifier's are errors of that check; those of plain reward functions and step scorers arrive here.
        """
        bad_NK = rewards_NK.isinf()
        for name, count in zip(self.host.reward_func_names, bad_NK.sum(dim=0).tolist(), strict=True):
            self._warn_of_infinite(f"the reward function {name!r}", count, len(rewards_NK))
        return rewards_NK.masked_fill(bad_NK, 0.0)

    def _finite_steps(self, rows: Sequence[Sequence[Any]]) -> list[list[tuple[Any, ...]]]:
        scores = [score for steps in rows for _, _, score, *_ in steps]
        self._warn_of_infinite("the step scorer", sum(map(math.isinf, scores)), len(scores))
        return [
            [(first, last, 0.0 if math.isinf(score) else score, *rest) for first, last, score, *rest in steps]
            for steps in rows
        ]

    def _warn_of_infinite(self, source: str, count: int, total: int) -> None:
        if count and source not in self._warned and self.host.accelerator.is_main_process:
            text = (
                "%s returned an infinite score, or one beyond %.2g, %d times in %d: such a score counts as 0. Bound "
                "its scores; None means that it does not apply."
            )
            logger.warning(text, source, LARGEST, count, total)
            self._warned.add(source)

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
