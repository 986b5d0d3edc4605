"""From one micro-batch to its loss, once an objective is set; the few steps of the trainer's ``_compute_loss``."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from grpo_plus import _trl
from grpo_plus.objectives.batch import Metric, TokenBatch
from grpo_plus.objectives.objective import Objective
from grpo_plus.objectives.schedule import Constant
from grpo_plus.training.coefficient import EntropyWindow, KLCoefficient, next_entropy_coefficient
from grpo_plus.training.inner import InnerIterations, check_clean_steps
from grpo_plus.training.minibatch import (
    TARGETS,
    add_counts,
    add_targets,
    kl_penalties,
    reduce_metrics,
    token_batch,
    trained_mask,
    window_counts,
)
from grpo_plus.training.reward_table import group_ids
from grpo_verifiers.errors import raise_all


class ObjectiveLoss:
    """An objective at work in a trainer: what it keeps between micro-batches, and what it asks of the trainer.

    Args:
        objective: the objective.
        trainer: the trainer, fully built.
    """

    def __init__(self, objective: Objective, trainer: Any) -> None:
        self.objective = objective
        self.trainer = trainer
        schedule = objective.kl.schedule if objective.kl is not None else Constant()
        self.coefficient = KLCoefficient(objective.beta, schedule, self._total)
        self.inner = InnerIterations(
            objective.stop_fraction,
            steps=trainer.args.steps_per_generation,
            iterations=trainer.num_iterations,
            total=self._total,
        )
        self._entropy = EntropyWindow()
        if objective.stop_fraction is not None:
            raise_all(check_clean_steps(trainer.accelerator))
            trainer.add_callback(self.inner)
        if self.coefficient.adapts:
            trainer.add_callback(self.coefficient)

    def _total(self, tensor: Tensor) -> Tensor:
        summed: Tensor = self.trainer.accelerator.reduce(tensor, reduction="sum")
        return summed

    def _gather(self, tensor: Tensor) -> Tensor:
        accelerator = self.trainer.accelerator
        if tensor.dim() == 2:
            tensor = accelerator.pad_across_processes(tensor, dim=1)
        gathered: Tensor = accelerator.gather(tensor.contiguous())
        return gathered

    @property
    def training(self) -> bool:
        """Whether this is a training batch rather than an evaluation one."""
        return bool(self.trainer.model.training)

    def beta(self) -> float:
        """The coefficient of the KL term now."""
        return self.coefficient.now(self.trainer.state.global_step - self.inner.passed)

    def add_old_logps(self, output: dict[str, Any]) -> None:
        """Score a generation batch before the update, where the objective needs it and TRL did not."""
        if self.objective.needs_old_logps and "old_per_token_logps" not in output:
            output["old_per_token_logps"] = _trl.score_without_gradient(self.trainer, output)

    def kl_penalty(self, output: Mapping[str, Any]) -> Tensor | None:
        """(N,) what the rewards of all ranks' completions lose to placement ``reward``; None without it."""
        if not self.objective.kl_in_reward:
            return None
        penalty_B, estimate = kl_penalties(self.objective, output, self.beta())
        mask = trained_mask(output)
        if self.training:
            self.coefficient.observe(estimate, mask)
        penalty_N = self._gather(penalty_B)
        self._log(self._reduced({"kl": Metric(estimate)}, mask) | {"kl_penalty": float(penalty_N.mean())})
        return penalty_N

    def prepare(self, output: dict[str, Any]) -> None:
        """Put into a finished generation batch what the objective will look at."""
        rank, rows = self.trainer.accelerator.process_index, len(output["completion_ids"])
        generations = self.trainer.num_generations if self.training else self.trainer.num_generations_eval
        device = output["completion_ids"].device
        groups_B = group_ids((rank + 1) * rows, generations, device)[-rows:]
        prompts_N = add_counts(output, groups_B, rank=rank, gather=self._gather)
        if self.objective.makes_targets:
            keywords = self.objective.surrogate.keywords
            add_targets(output, prompts_N, rank=rank, gather=self._gather, keywords=keywords)

    def skips(self, step: int) -> bool:
        """Whether the inner iterations on this micro-batch's generation batch are over."""
        skipped = self.inner.skips(step)
        if skipped:
            self._log({"inner/skipped": 1.0})
        return skipped

    def parts_with_state(self) -> list[Any]:
        """What a pass changes, for whoever must undo one that failed."""
        return [self.coefficient, self.inner, self._entropy]

    def finish(self, step: int) -> None:
        """Close a trained micro-batch; after the last one of an iteration it is decided whether to go on."""
        share = self.inner.finish(step)
        if share is not None:
            self._log({"inner/settled": share})

    def __call__(self, model: Any, inputs: Mapping[str, Any]) -> Tensor:
        """The loss of a micro-batch, scaled for its accumulation window."""
        trainer, objective = self.trainer, self.objective
        logps, entropies, aux_loss = _trl.score(trainer, model, inputs)
        batch = self._batch(inputs, logps, entropies)
        loss, unreduced = objective.loss(batch)
        metrics = {**unreduced.metrics, "entropy": Metric(entropies)}
        policy_loss = loss.detach()
        loss = loss - self._entropy_bonus(entropies, batch, inputs, policy_loss)
        if aux_loss is not None:
            loss = loss + trainer.router_aux_loss_coef * aux_loss / self._windows()
            self._log({"aux_loss": float(trainer.accelerator.gather(aux_loss.detach()).mean())})
        if self.training:
            if unreduced.terms.settled is not None and unreduced.terms.pulled is not None:
                self.inner.observe(unreduced.terms.settled & batch.mask, unreduced.terms.pulled & batch.mask)
            if unreduced.kl is not None:
                self.coefficient.observe(unreduced.kl, batch.mask)
        self._log_all(self._reduced(metrics, batch.mask), metrics)
        return loss

    def _batch(self, inputs: Mapping[str, Any], logps: Tensor, entropies: Tensor) -> TokenBatch:
        trainer = self.trainer
        if self.objective.makes_targets and any(name not in inputs for name in TARGETS):
            raise ValueError(
                f"the objective {self.objective.name!r} needs {', '.join(TARGETS)} in the batch: it must come from "
                "this trainer's own generation step."
            )
        counts = window_counts(
            inputs,
            rows=len(logps),
            processes=trainer.accelerator.num_processes,
            training=self.training,
            accumulation=trainer.current_gradient_accumulation_steps if self.training else 1,
            steps_per_generation=trainer.args.steps_per_generation,
        )
        mask = trained_mask(inputs)
        return token_batch(
            inputs,
            logps,
            counts,
            beta=self.beta(),
            max_completion_length=trainer.max_completion_length,
            focus=_trl.high_entropy_mask(trainer, entropies, mask),
            keep=_trl.off_policy_mask(trainer, inputs, logps, mask),
        )

    def _windows(self) -> float:
        return float(self.trainer.current_gradient_accumulation_steps) if self.training else 1.0

    def _entropy_bonus(
        self, entropies: Tensor, batch: TokenBatch, inputs: Mapping[str, Any], policy_loss: Tensor
    ) -> Tensor | float:
        """The entropy bonus per token of the accumulation window, and its controller."""
        trainer, args = self.trainer, self.trainer.args
        if trainer.entropy_coef == 0 and not trainer.use_adaptive_entropy:
            return 0.0
        mask = batch.mask if batch.focus is None else batch.mask & batch.focus
        share = self._windows() / args.steps_per_generation if self.training else 1.0
        tokens = inputs["num_items_in_batch"] * share / trainer.accelerator.num_processes * trainer.top_entropy_quantile
        bonus = torch.where(mask, entropies, 0.0).sum() / tokens.clamp(min=1)
        held_back = trainer.use_adaptive_entropy and _trl.last_entropy(trainer) > args.entropy_target
        coefficient = 0.0 if held_back else trainer.entropy_coef
        self._log({"policy_loss": float(trainer.accelerator.gather(policy_loss).nanmean())})
        if self.training and trainer.use_adaptive_entropy:
            self._entropy.observe(entropies, mask)
        if self.training and trainer.accelerator.sync_gradients:
            if trainer.use_adaptive_entropy:
                measured = self._entropy.close(self._total)
                trainer.entropy_coef = next_entropy_coefficient(
                    trainer.entropy_coef,
                    measured,
                    target=args.entropy_target,
                    delta=args.entropy_coef_delta,
                    low=args.entropy_coef_min,
                    high=args.entropy_coef_max,
                )
                _trl.set_last_entropy(trainer, measured)
            self._log({"entropy_coef": trainer.entropy_coef})
        scaled: Tensor = coefficient * bonus
        return scaled

    def _reduced(self, metrics: Mapping[str, Metric], mask: Tensor) -> dict[str, float]:
        return reduce_metrics(metrics, mask, total=self._total, gather=self._gather)

    def _log(self, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            _trl.metrics_of(self.trainer)[name].append(value)

    def _log_all(self, values: Mapping[str, float], metrics: Mapping[str, Metric]) -> None:
        """Log under TRL's names, and once more per inner iteration where there are several."""
        self._log(values)
        if self.coefficient.moves:
            self._log({"beta": self.beta()})
        if self.training and self.inner.iterations > 1:
            number = self.inner.iteration(_trl.step_of(self.trainer))
            self._log({f"iteration_{number}/{n}": v for n, v in values.items() if metrics[n].how == "mean"})
