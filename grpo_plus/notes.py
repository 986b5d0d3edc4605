"""Remarks about a config that runs as it is written, but not as its reader may expect."""

from collections.abc import Mapping
from typing import Any

from grpo_plus.inner import moves_within_batch, steps_per_generation
from grpo_plus.resolve import OBJECTIVE_FIELDS, advantage_per, changed_fields, estimator_parts, resolve_objective

_BY_RATIO = ("clip", "cispo", "sapo", "gmpo", "vespo")
"""Surrogates whose keywords say what happens at ratios other than 1."""


def config_notes(config: Any) -> list[str]:
    """One sentence for each surprise in a valid config; for `explain` and for the log at the start of training."""
    return [*_split_notes(config), *_on_policy_notes(config), *_ratio_notes(config), *_mask_notes(config)]


def _split_notes(config: Any) -> list[str]:
    """Options of TRL that count within a micro-batch, so that the gradient depends on how a batch is split."""
    found = []
    if config.top_entropy_quantile < 1:
        found.append(f"top_entropy_quantile ({config.top_entropy_quantile:g}) takes the quantile of each micro-batch")
    if getattr(config, "router_aux_loss_coef", None):
        found.append(f"router_aux_loss_coef ({config.router_aux_loss_coef:g}) balances the load of each micro-batch")
    if config.objective is None and config.loss_type == "bnpo":
        found.append("loss_type 'bnpo' divides by the tokens of each micro-batch")
    if config.objective is None and (config.entropy_coef or config.use_adaptive_entropy):
        found.append("TRL's own loss takes the entropy bonus as a mean over the tokens of each micro-batch")
    return [f"{why}: the gradient depends on how a batch is split." for why in found]


def _on_policy_notes(config: Any) -> list[str]:
    """Parts that assume on-policy samples, where the policy moves while a generation batch is trained on."""
    if not moves_within_batch(config):
        return []
    moves = f"the policy moves while a generation batch is trained on ({_updates(config)})"
    found = []
    if any(part.name == "opo" for part, _ in estimator_parts(config)):
        found.append(("the advantage estimator 'opo'", "its baseline is not the best one after the first step"))
    objective = resolve_objective(config)
    if objective is not None and objective.surrogate.piece.name == "logp":
        what = f"the objective {objective.name!r}, which has no ratio (surrogate logp),"
        found.append((what, "its gradient is biased after the first step"))
    if objective is not None and objective.kl_in_loss and objective.kl is not None and not objective.kl.unbiased:
        name = objective.kl.estimator.piece.name
        found.append((f"the KL estimator {name!r} without the ratio", "its gradient is biased after the first step"))
    return [f"{what} assumes on-policy samples, but {moves}: {so}." for what, so in found]


def _ratio_notes(config: Any) -> list[str]:
    """What is set for ratios other than 1, where the policy does not move while a generation batch is trained on."""
    if moves_within_batch(config):
        return []
    objective = resolve_objective(config)
    given = [] if config.use_vllm else changed_fields(config, ("off_policy_mask_threshold",))
    if objective is not None and objective.surrogate.piece.name in _BY_RATIO:
        inside = config.objective_kwargs.get("surrogate")
        written = {**config.objective_kwargs, **(inside if isinstance(inside, Mapping) else {})}
        given += [name for name in objective.surrogate.piece.keywords() if _acts_off_policy(name, written.get(name))]
    elif objective is None and config.loss_type != "cispo":  # whose cap is one on the ratio itself
        fields = [name for name in OBJECTIVE_FIELDS if name not in ("loss_type", "importance_sampling_level")]
        given += [name for name in changed_fields(config, fields) if _acts_off_policy(name, getattr(config, name))]
    if not given:
        return []
    stays = f"the policy does not move while a generation batch is trained on ({_updates(config)})"
    return [f"{', '.join(given)}: every ratio is 1, since {stays}, so this plays no part."]


def _acts_off_policy(name: str, value: Any) -> bool:
    """Whether a keyword is set and leaves a ratio of 1 alone; caps of less than 1 do not."""
    return value is not None and not (name in ("delta", "epsilon_max") and value < 1)


def _updates(config: Any) -> str:
    """The numbers that say how often the policy moves on a generation batch."""
    return (
        f"num_iterations {config.num_iterations}, steps_per_generation {steps_per_generation(config)}, "
        f"gradient_accumulation_steps {config.gradient_accumulation_steps}"
    )


def _mask_notes(config: Any) -> list[str]:
    """Masks of whole completions beside advantages of their parts."""
    per = advantage_per(config)
    if config.off_policy_mask_threshold is None or per == "completion":
        return []
    drops = "off_policy_mask_threshold drops what has a negative advantage in completions that are far off-policy"
    return [f"{drops}: with advantages per {per} these are single tokens, not completions."]
