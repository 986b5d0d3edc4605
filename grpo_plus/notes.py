"""Remarks about a config that runs as it is written, but not as its reader may expect."""

from typing import Any

from grpo_plus.inner import moves_within_batch
from grpo_plus.resolve import estimator_parts, resolve_objective


def config_notes(config: Any) -> list[str]:
    """One sentence for each surprise in a valid config; for `explain` and for the log at the start of training."""
    return [*_split_notes(config), *_on_policy_notes(config)]


def _split_notes(config: Any) -> list[str]:
    """Options of TRL that count within a micro-batch, so that the gradient depends on how a batch is split."""
    notes = []
    if config.top_entropy_quantile < 1:
        notes.append(
            f"top_entropy_quantile is {config.top_entropy_quantile:g}: TRL takes the quantile of each micro-batch, so "
            "the gradient depends on how a batch is split."
        )
    return notes


def _on_policy_notes(config: Any) -> list[str]:
    """Parts that assume on-policy samples, where the policy moves while a generation batch is trained on."""
    if not moves_within_batch(config):
        return []
    parts = [f"the advantage estimator {part.name!r}" for part, _ in estimator_parts(config) if part.name == "opo"]
    objective = resolve_objective(config)
    if objective is not None and objective.surrogate.piece.name == "logp":
        parts.append("the surrogate 'logp' (reinforce), which has no ratio,")
    updates = "the policy moves while a generation batch is trained on (num_iterations, steps_per_generation)"
    return [f"{part} assumes on-policy samples, but {updates}." for part in parts]
