"""The objective in a trainer: the loss of a micro-batch, in place of TRL's ``_compute_loss``."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from grpo_plus.objectives.batch import SHARE, Metric, TokenBatch
from grpo_plus.objectives.objective import Objective
from grpo_plus.objectives.schedule import Adaptive, Constant, Schedule
from grpo_plus.recipe.choice import ConfigFacts, divides_by_tokens
from grpo_plus.recipe.recipe import Recipe, recipe_of
from grpo_plus.recipe.table import SHARES
from grpo_plus.training.hooks import Compute, ScoredBatch, TrainerStage, group_ids
from grpo_plus.training.update.inner import InnerIterations
from grpo_plus.training.update.minibatch import (
    GROUPS,
    PULL,
    TARGETS,
    TOKENS,
    add_counts,
    add_pulls,
    add_shares,
    add_targets,
    kl_penalties,
    reduce_metrics,
    settle_coins,
    token_batch,
    trained_mask,
    window_counts,
)
from grpo_plus.trl.host import Host
from grpo_plus.trl.logs import log_metrics
from grpo_plus.trl.rollout import buffered_batches, current_group_size, last_entropy, micro_step, set_last_entropy
from grpo_plus.trl.scoring import high_entropy_mask, off_policy_mask, score_micro_batch, score_without_gradient
from grpo_verifiers.errors import raise_all
from grpo_verifiers.rules import broken_rules


class ObjectiveLoss(TrainerStage):
    """The loss of an objective, with the coefficients that move during training."""

    name = "objective"

    def __init__(self, objective: Objective, inner: InnerIterations) -> None:
        self.objective = objective
        self.inner = inner
        schedule = objective.kl.schedule if objective.kl is not None else Constant()
        self.coefficient = KLCoefficient(objective.beta, schedule, self._total)
        self.window = EntropyWindow()
        self._moved = True  # the weights, since the pulls on the present generation batch were computed

    def _total(self, tensor: Tensor) -> Tensor:
        summed: Tensor = self.host.accelerator.reduce(tensor, reduction="sum")
        return summed

    def _gather(self, tensor: Tensor) -> Tensor:
        return _gathered(self.host, tensor)

    @property
    def _trains(self) -> bool:
        return bool(self.host.model.training)

    def beta(self) -> float:
        """Return the present coefficient of the KL term."""
        return self.coefficient.schedule.at(self.coefficient.beta, self.host.state.global_step - self.inner.passed)

    def add_old_logps(self, batch: ScoredBatch) -> ScoredBatch:
        """Add log-probabilities before the update, if the objective needs them."""
        if not self.objective.needs_old_logps or "old_per_token_logps" in batch.output:
            return batch
        return batch.adding(old_per_token_logps=score_without_gradient(self.host, dict(batch.output)))

    def kl_penalty(self, batch: ScoredBatch) -> Tensor | None:
        """Return the KL penalty by token of all ranks, (N, T), with placement ``reward``; else None."""
        if not self.objective.kl_in_reward:
            return None
        output = batch.output
        estimate, beta = kl_penalties(self.objective, output), self.beta()
        mask = trained_mask(output)
        if self._trains:
            self.coefficient.observe(estimate, mask, output.get(SHARE))
        penalty_NT = self._gather(beta * estimate)
        self._log(self._reduced({"kl": Metric(estimate)}, mask, output.get(SHARE)))
        self._log({"kl_penalty": float(penalty_NT.sum(1).mean())})
        return penalty_NT

    def prepare(self, batch: ScoredBatch) -> ScoredBatch:
        """Add the objective's other inputs: counts, targets, pulls."""
        output = dict(batch.output)
        rank = self.host.accelerator.process_index
        groups_B = _groups(self.host, output)
        prompts_N = add_counts(output, groups_B, rank=rank, gather=self._gather)
        if self.objective.makes_targets:
            keywords = self.objective.surrogate.keywords
            add_targets(output, prompts_N, rank=rank, gather=self._gather, keywords=keywords)
        divides = divides_by_tokens(self.host.args, self.objective)
        settle_coins(output, groups_B, gather=self._gather, divides=divides)
        if self.objective.pulls_groups:
            output[GROUPS] = groups_B
            self._add_pulls([output], [output["old_per_token_logps"]])
            if self._trains:
                # The groups of replay are of earlier weights.
                self._moved = recipe_of(self.host.args).dead_groups.name == "replay"
        return replace(batch, output=output)

    def _add_pulls(self, parts: Sequence[dict[str, Any]], logps_of: Sequence[Tensor]) -> None:
        rank = self.host.accelerator.process_index
        metrics = add_pulls(parts, logps_of, self.objective, rank=rank, gather=self._gather)
        self._log({name: float(value) for name, value in metrics.items()})

    def refresh_pulls(self) -> None:
        """Recompute the pulls of the generation batch at the start of a later optimizer step on it."""
        parts = buffered_batches(self.host)
        if self.objective.pulls_groups and self._moved and self._trains and parts is not None:
            self._add_pulls(parts, [score_without_gradient(self.host, part) for part in parts])
            self._moved = False

    def changed_in_a_pass(self) -> list[Any]:
        """Return the objects whose attributes a micro-batch changes; they are restored before it runs again."""
        return [self.coefficient, self.inner, self.window]

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self.coefficient.move()
        self._moved = True

    @property
    def identity(self) -> str:
        return self.objective.name

    def state_dict(self) -> dict[str, Any]:
        """The adaptive coefficients. Their windows are closed at the end of a step."""
        state: dict[str, Any] = {}
        if self.coefficient.adapts:
            state["beta"] = self.coefficient.beta
        if self.host.use_adaptive_entropy:
            state["entropy_coef"] = self.host.entropy_coef
            state["last_world_entropy"] = last_entropy(self.host)
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        expected = self.state_dict()
        if state.keys() != expected.keys():
            raise ValueError(f"it holds {', '.join(sorted(state))}, expected {', '.join(sorted(expected))}")
        self.coefficient.beta = float(state.get("beta", self.coefficient.beta))
        if "entropy_coef" in state:
            self.host.entropy_coef = float(state["entropy_coef"])
            set_last_entropy(self.host, float(state["last_world_entropy"]))

    def loss(self, trl: Compute, model: Any, inputs: Mapping[str, Any]) -> Tensor:  # noqa: ARG002 - replaces TRL's
        """Return the loss of a micro-batch, scaled for its accumulation window."""
        host, objective = self.host, self.objective
        logps, entropies, aux_loss = score_micro_batch(host, model, inputs)
        batch = self._batch(inputs, logps, entropies)
        loss, unreduced = objective.loss(batch)
        metrics = {**unreduced.metrics, "entropy": Metric(entropies)}
        policy_loss = loss.detach()
        loss = loss - self._entropy_bonus(entropies, batch, inputs, policy_loss)
        if aux_loss is not None:
            loss = loss + host.router_aux_loss_coef * aux_loss / self._windows()
            self._log({"aux_loss": float(host.accelerator.gather(aux_loss.detach()).mean())})
        if self._trains:
            if unreduced.terms.settled is not None and unreduced.terms.pulled is not None:
                settled, pulled = unreduced.terms.settled & batch.mask, unreduced.terms.pulled & batch.mask
                self.inner.observe(settled, pulled)
            if unreduced.kl is not None:
                self.coefficient.observe(unreduced.kl, batch.mask, batch.share)
        self._log_all(self._reduced(metrics, batch.mask, batch.share), metrics)
        return loss

    def _batch(self, inputs: Mapping[str, Any], logps: Tensor, entropies: Tensor) -> TokenBatch:
        host = self.host
        needed = TARGETS if self.objective.makes_targets else (PULL,) if self.objective.pulls_groups else ()
        if any(name not in inputs for name in needed):
            raise ValueError(
                f"the objective {self.objective.name!r} needs {', '.join(needed)} in the batch: it must come from "
                "this trainer's own generation step."
            )
        counts = window_counts(
            inputs,
            rows=len(logps),
            processes=host.accelerator.num_processes,
            training=self._trains,
            accumulation=host.current_gradient_accumulation_steps if self._trains else 1,
            steps_per_generation=host.args.steps_per_generation,
        )
        mask = trained_mask(inputs)
        return token_batch(
            inputs,
            logps,
            counts,
            beta=self.beta(),
            max_completion_length=host.max_completion_length,
            focus=high_entropy_mask(host, entropies, mask),
            keep=off_policy_mask(host, inputs, logps, mask),
        )

    def _windows(self) -> float:
        return float(self.host.current_gradient_accumulation_steps) if self._trains else 1.0

    def _entropy_bonus(
        self, entropies: Tensor, batch: TokenBatch, inputs: Mapping[str, Any], policy_loss: Tensor
    ) -> Tensor | float:
        """Return the entropy bonus per token of the accumulation window, and run its controller."""
        host, args = self.host, self.host.args
        if host.entropy_coef == 0 and not host.use_adaptive_entropy:
            return 0.0
        mask = batch.mask if batch.focus is None else batch.mask & batch.focus
        part = self._windows() / args.steps_per_generation if self._trains else 1.0
        tokens = inputs[TOKENS] * part / host.accelerator.num_processes * host.top_entropy_quantile
        bonus = batch.shared(torch.where(mask, entropies, 0.0)).sum() / tokens.clamp(min=1)
        suppressed = host.use_adaptive_entropy and last_entropy(host) > args.entropy_target
        coefficient = 0.0 if suppressed else host.entropy_coef
        self._log({"policy_loss": float(host.accelerator.gather(policy_loss).nanmean())})
        if self._trains and host.use_adaptive_entropy:
            self.window.observe(entropies, mask, batch.share)
        if self._trains and host.accelerator.sync_gradients:
            if host.use_adaptive_entropy:
                # Skywork-OR1 (arXiv:2505.22312): up at or below the target, down above.
                measured, delta = self.window.close(self._total), args.entropy_coef_delta
                host.entropy_coef = (
                    min(args.entropy_coef_max, host.entropy_coef + delta)
                    if measured <= args.entropy_target
                    else max(args.entropy_coef_min, host.entropy_coef - delta)
                )
                set_last_entropy(host, measured)
            self._log({"entropy_coef": host.entropy_coef})
        scaled: Tensor = coefficient * bonus
        return scaled

    def _reduced(self, metrics: Mapping[str, Metric], mask: Tensor, share: Tensor | None) -> dict[str, float]:
        return reduce_metrics(metrics, mask, total=self._total, gather=self._gather, share=share)

    def _log(self, values: Mapping[str, float]) -> None:
        log_metrics(self.host, values)

    def _log_all(self, values: Mapping[str, float], metrics: Mapping[str, Metric]) -> None:
        """Log under TRL's names, and once more per inner iteration where there are several."""
        self._log(values)
        if self.coefficient.moves:
            self._log({"beta": self.beta()})
        if self._trains and self.inner.iterations > 1:
            number = self.inner.iteration(micro_step(self.host))
            self._log({f"iteration_{number}/{n}": v for n, v in values.items() if metrics[n].how == "mean"})


class StockLoss(TrainerStage):
    """TRL's own loss. It has no shares of rows, so the advantages are multiplied by them."""

    def add_old_logps(self, batch: ScoredBatch) -> ScoredBatch:
        return batch

    def kl_penalty(self, batch: ScoredBatch) -> None:
        """TRL has its KL term in the loss."""

    def refresh_pulls(self) -> None:
        """Do nothing: TRL's loss has no pulls."""

    def changed_in_a_pass(self) -> list[Any]:
        return []

    def loss(self, trl: Compute, model: Any, inputs: Mapping[str, Any]) -> Tensor:
        return trl(model, inputs)

    def prepare(self, batch: ScoredBatch) -> ScoredBatch:
        """Weight the advantages, and the number of tokens that the loss divides by."""
        if SHARE not in batch.output:
            return batch
        host, output = self.host, dict(batch.output)
        raise_all(broken_rules((SHARES,), ConfigFacts(host.args, Recipe())))
        gather = partial(_gathered, host)
        add_shares(output, gather)
        groups_B = _groups(host, output)
        settle_coins(output, groups_B, gather=gather, divides=divides_by_tokens(host.args, None))
        advantages: Tensor = output["advantages"]
        share_B = output[SHARE].to(advantages)
        output["advantages"] = advantages * (share_B if advantages.dim() == 1 else share_B.unsqueeze(1))
        return replace(batch, output=output)


def _gathered(host: Host, tensor: Tensor) -> Tensor:
    """Gather all ranks' rows; narrower ones are padded with 0."""
    if tensor.dim() == 2:
        tensor = host.accelerator.pad_across_processes(tensor, dim=1)
    rows: Tensor = host.accelerator.gather(tensor.contiguous())
    return rows


def _groups(host: Host, output: Mapping[str, Any]) -> Tensor:
    """Return the number of each row's group over all ranks, (B,)."""
    ids, size = output["completion_ids"], current_group_size(host)
    return group_ids((host.accelerator.process_index + 1) * len(ids), size, ids.device)[-len(ids) :]


class KLCoefficient:
    """The coefficient of the KL term under its schedule.

    An adaptive one follows the KL measured over each optimizer step, all ranks together: ``total`` sums a tensor over
    them.
    """

    def __init__(self, beta: float, schedule: Schedule, total: Callable[[Tensor], Tensor]) -> None:
        self.beta = beta
        self.schedule = schedule
        self._total = total
        self._measured: Tensor | None = None

    @property
    def adapts(self) -> bool:
        """True if it follows the measured KL and so has state."""
        return isinstance(self.schedule, Adaptive)

    @property
    def moves(self) -> bool:
        """True if its schedule is not constant, so it is logged."""
        return not isinstance(self.schedule, Constant)

    def observe(self, estimate: Tensor, mask: Tensor, share: Tensor | None) -> None:
        """Count the estimates of one micro-batch, each token for the share of its row."""
        if isinstance(self.schedule, Adaptive):
            pair = _sums(estimate, mask, share)
            self._measured = pair if self._measured is None else self._measured + pair

    def move(self) -> None:
        """Move an adaptive coefficient, at the end of an optimizer step."""
        if isinstance(self.schedule, Adaptive) and self._measured is not None:
            value, tokens = self._total(self._measured).tolist()
            self.beta = self.schedule.after(self.beta, value / tokens) if tokens else self.beta
            self._measured = None


class EntropyWindow:
    """Entropy per token over the micro-batches of an accumulation window."""

    def __init__(self) -> None:
        self._sums: Tensor | None = None

    def observe(self, entropies: Tensor, mask: Tensor, share: Tensor | None) -> None:
        """Count one micro-batch, each token for the share of its row."""
        pair = _sums(entropies, mask, share)
        self._sums = pair if self._sums is None else self._sums + pair

    def close(self, total: Callable[[Tensor], Tensor]) -> float:
        """Return the mean over all ranks and start the next window."""
        assert self._sums is not None
        value, tokens = total(self._sums).tolist()
        self._sums = None
        return float(value / max(tokens, 1.0))


def _sums(values: Tensor, mask: Tensor, share: Tensor | None) -> Tensor:
    inside, counted = torch.where(mask, values.detach(), 0.0), mask
    if share is not None:
        weights = share.unsqueeze(1).to(inside)
        inside, counted = inside * weights, mask * weights
    return torch.stack([inside.sum().float(), counted.sum().float()])
