"""Notes on valid configs that may surprise."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from grpo_plus.recipe.advantage import equivalent_advantage
from grpo_plus.recipe.critic import critic_notes
from grpo_plus.recipe.dead_groups import dead_groups_notes
from grpo_plus.recipe.forms import named
from grpo_plus.recipe.iterations import moves_within_batch, ratio_moves, steps_per_generation
from grpo_plus.recipe.options import mapping
from grpo_plus.recipe.recipe import recipe_of
from grpo_plus.recipe.replay import replay_notes
from grpo_plus.recipe.truncation import UNSCORED, reshaping
from grpo_plus.recipe.unread import unread_notes

if TYPE_CHECKING:
    from grpo_plus.recipe.recipe import Chosen

from grpo_verifiers.redaction import get_logger

logger = get_logger("grpo_plus")

_BY_RATIO = ("clip", "cispo", "dis", "dppo_tv", "dppo_kl", "up", "fipo", "sapo", "gmpo", "vespo")
"""Surrogates whose keywords act at ratios other than 1."""
_FROM_THE_SAMPLER = ("dis", "dppo_tv", "dppo_kl")
"""Those of them whose ratio is to the policy that drew, which may be another sampler's."""


def config_notes(config: Any) -> list[str]:
    """One sentence for each surprise; for `explain` and for the log at the start of training."""
    return [
        *_split_notes(config),
        *_on_policy_notes(config),
        *_ratio_notes(config),
        *_mask_notes(config),
        *_truncation_notes(config),
        *dead_groups_notes(config),
        *replay_notes(config),
        *critic_notes(config),
        *unread_notes(config),
    ]


def say_notes(config: Any, weights: Sequence[tuple[str, float]], chosen: "Chosen | None") -> None:
    """Log the notes on the main process."""
    if config.process_index == 0:
        for note in [*config_notes(config), *weight_notes(config, weights, chosen)]:
            logger.warning("note: %s", note)


def weight_notes(config: Any, weights: Sequence[tuple[str, float]], chosen: "Chosen | None") -> list[str]:
    """One sentence for each (reward, weight) of the run that changes no advantage; None stands for TRL's estimator."""
    if all(weight in {0, 1} for _, weight in weights):
        return []
    from grpo_plus.advantages import unread_weights

    part, keywords = equivalent_advantage(config) if chosen is None else chosen
    title = "TRL's own advantages" if chosen is None else f"those of the {chosen[0].title}"
    idle = unread_weights(part, [weight for _, weight in weights], **keywords)
    return [
        f"the weight {weight:g} of {name!r} changes nothing: {title} would be the same with another."
        for place, (name, weight) in enumerate(weights)
        if place in idle and weight not in {0, 1}  # a reward of weight 0 is there to be looked at
    ]


def _split_notes(config: Any) -> list[str]:
    """TRL options beside an objective that are computed per micro-batch: its gradient depends on the split then."""
    if config.objective is None:
        return []
    found = []
    if config.top_entropy_quantile < 1:
        found.append(f"top_entropy_quantile ({config.top_entropy_quantile:g}) takes the quantile of each micro-batch")
    if getattr(config, "router_aux_loss_coef", None):
        found.append(f"router_aux_loss_coef ({config.router_aux_loss_coef:g}) balances the load of each micro-batch")
    return [f"{why}: the gradient depends on how a batch is split." for why in found]


def _on_policy_notes(config: Any) -> list[str]:
    """Parts that assume on-policy samples, if the policy moves within a generation batch."""
    if not ratio_moves(config):
        return []
    moves = "dead_groups 'replay' trains on groups of earlier policies"
    if moves_within_batch(config):
        moves = f"the policy moves while a generation batch is trained on ({_updates(config)})"
    found = []
    if any(part.name == "opo" for part, _ in recipe_of(config).estimator_parts):
        found.append(("the advantage estimator 'opo'", "its baseline is not the best one after the first step"))
    objective = recipe_of(config).objective
    if objective is not None and objective.surrogate.piece.name == "logp":
        what = f"the objective {objective.name!r}, which has no ratio (surrogate logp),"
        found.append((what, "its gradient is biased after the first step"))
    if objective is not None and objective.kl_in_loss and objective.kl is not None and not objective.kl.unbiased:
        name = objective.kl.estimator.piece.name
        found.append((f"the KL estimator {name!r} without the ratio", "its gradient is biased after the first step"))
    return [f"{what} assumes on-policy samples, but {moves}: {so}." for what, so in found]


def _ratio_notes(config: Any) -> list[str]:
    """Settings for ratios other than 1, if there are none."""
    if ratio_moves(config):
        return []
    objective, given = recipe_of(config).objective, []
    sampler = config.use_vllm and config.vllm_importance_sampling_correction
    of_tokens = sampler and config.vllm_importance_sampling_mode.startswith("token")
    if objective is not None and objective.surrogate.piece.name in _FROM_THE_SAMPLER and of_tokens:
        pass  # the sampler's weights are in its ratio
    elif objective is not None and objective.surrogate.piece.name in _BY_RATIO:
        _, keywords = named("objective", config.objective)
        inside = keywords.get("surrogate")
        written = {**keywords, **(inside if isinstance(inside, Mapping) else {})}
        names = objective.surrogate.piece.keywords()
        given += [f"{name} ({written[name]})" for name in names if _acts_off_policy(name, written.get(name))]
    if not given:
        return []
    stays = f"the policy does not move while a generation batch is trained on ({_updates(config)})"
    return [f"{', '.join(given)}: every ratio is 1, since {stays}, so this plays no part."]


def _acts_off_policy(name: str, value: Any) -> bool:
    """Whether a keyword is set and has no effect at ratio 1; caps below 1 have."""
    return value is not None and not (name in ("delta", "epsilon_max", "ratio_max") and value < 1)


def _updates(config: Any) -> str:
    """The fields that decide how often the policy moves within a generation batch."""
    return (
        f"num_iterations {config.num_iterations}, steps_per_generation {steps_per_generation(config)}, "
        f"gradient_accumulation_steps {config.gradient_accumulation_steps}"
    )


def _mask_notes(config: Any) -> list[str]:
    """Masks of whole completions beside advantages per step or token."""
    per = recipe_of(config).advantage_per
    if config.off_policy_mask_threshold is None or per == "completion":
        return []
    drops = "off_policy_mask_threshold drops what has a negative advantage in completions that are far off-policy"
    return [f"{drops}: with advantages per {per} these are single tokens, not completions."]


def _truncation_notes(config: Any) -> list[str]:
    """Draws from another distribution than the one that is scored, which no rollout of ours scores either."""
    given = {"repetition_penalty": config.repetition_penalty, **mapping("generation_kwargs", config.generation_kwargs)}
    read = {name: value for name, value in given.items() if name == "repetition_penalty" or not config.use_vllm}
    changing = reshaping(read)
    return [UNSCORED.format(changing)] if changing else []
