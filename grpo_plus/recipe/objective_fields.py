"""Fields of the training config that an objective cannot go with; each is named with what to do about it."""

from typing import Any

from grpo_plus.objectives.objective import Objective
from grpo_plus.recipe.iterations import moves_within_batch, steps_per_generation


def field_problems(objective: Objective, config: Any) -> list[str]:
    """What is wrong with a training config for this objective; empty when nothing is."""
    problems = []
    corrected = config.use_vllm and config.vllm_importance_sampling_correction
    what = f"the objective {objective.name!r}"
    if objective.makes_targets:
        problems += _target_problems(what, config, corrected=corrected)
    if objective.surrogate.piece.weighs_itself and corrected and "token" not in config.vllm_importance_sampling_mode:
        problems.append(
            f"{what} needs importance weights per token, but vllm_importance_sampling_mode is "
            f"{config.vllm_importance_sampling_mode!r}: set it to 'token_truncate' or 'token_mask'."
        )
    split = _per_reward(config)
    if objective.kl_in_reward and split is not None:
        problems.append(
            f"{what}: kl placement 'reward' takes the divergence from the sum of the rewards, which {split} does not "
            "look at, since it normalises each reward by itself: use placement 'loss'."
        )
    if not 0 <= config.top_entropy_quantile <= 1:
        problems.append(f"top_entropy_quantile is {config.top_entropy_quantile!r}, expected at least 0 and at most 1.")
    return problems


def _target_problems(what: str, config: Any, *, corrected: bool) -> list[str]:
    why = f"{what} sets how far each probability goes, so nothing may weigh or drop single tokens"
    problems = []
    if not moves_within_batch(config):
        iterations, steps = config.num_iterations, steps_per_generation(config)
        accumulation = config.gradient_accumulation_steps
        problems.append(
            f"{what} needs several optimizer steps a generation batch: the first one knows only the sign of each "
            f"target, not how far it is. With num_iterations {iterations}, steps_per_generation {steps} and "
            f"gradient_accumulation_steps {accumulation} there is no second: set num_iterations to "
            f"{max(2, (accumulation or 1) // steps + 1)} or more."
        )
    elif 0 < config.max_steps < 2:
        problems.append(
            f"{what} needs several optimizer steps a generation batch: the first one knows only the sign of each "
            f"target, not how far it is. With max_steps {config.max_steps} there is no second: set max_steps to 2 or "
            "more."
        )
    if corrected:
        problems.append(f"{why}: set vllm_importance_sampling_correction to false.")
    if config.top_entropy_quantile != 1.0:
        problems.append(f"{why}: remove top_entropy_quantile ({config.top_entropy_quantile!r}).")
    if config.off_policy_mask_threshold is not None:
        problems.append(f"{why}: remove off_policy_mask_threshold ({config.off_policy_mask_threshold!r}).")
    return problems


def _per_reward(config: Any) -> str | None:
    """What makes advantages from each reward by itself; None when they come from the sum."""
    if config.advantage is None:
        split = config.multi_objective_aggregation == "normalize_then_sum"
        return "multi_objective_aggregation 'normalize_then_sum'" if split else None
    parts = (config.advantage_kwargs or {}).get("parts") or {}
    return "the advantage estimator 'gdpo'" if "gdpo" in (config.advantage, *parts) else None
