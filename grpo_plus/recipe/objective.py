"""The objective of a config, and every problem of the choice."""

from typing import TYPE_CHECKING, Any

from grpo_plus.objectives.compose import compose_objective
from grpo_plus.recipe.iterations import stop_problems
from grpo_plus.recipe.objective_fields import field_problems
from grpo_plus.recipe.options import changed_fields, unread_keywords

if TYPE_CHECKING:
    from grpo_plus.objectives import Objective
    from grpo_plus.recipe.recipe import Recipe
    from grpo_verifiers.errors import Problem

OBJECTIVE_FIELDS = {
    "loss_type": "objective",
    "epsilon": "objective_kwargs {epsilon_low: …}",
    "epsilon_high": "objective_kwargs {epsilon_high: …} (epsilon_max for cispo)",
    "delta": "objective_kwargs {delta: …}",
    "importance_sampling_level": "objective_kwargs {ratio: …}",
    "sapo_temperature_neg": "objective_kwargs {temperature_neg: …} of sapo",
    "sapo_temperature_pos": "objective_kwargs {temperature_pos: …} of sapo",
    "vespo_k_pos": "objective_kwargs {k_pos: …} of vespo",
    "vespo_lambda_pos": "objective_kwargs {lambda_pos: …} of vespo",
    "vespo_k_neg": "objective_kwargs {k_neg: …} of vespo",
    "vespo_lambda_neg": "objective_kwargs {lambda_neg: …} of vespo",
}
"""Fields of TRL that an objective of ours replaces, and what says the same here."""


def choose_objective(config: Any, advantage_per: str) -> "tuple[Objective | None, list[Problem]]":
    """The objective that a config names, and every problem of its composition; None without one."""
    if config.objective is None:
        return None, list(unread_keywords("objective", config.objective_kwargs))
    return compose_objective(
        config.objective,
        dict(config.objective_kwargs or {}),
        beta=config.beta,
        advantage_per=advantage_per,
        use_bias_correction_kl=config.use_bias_correction_kl,
    )


def objective_problems(config: Any, recipe: "Recipe") -> list[str]:
    """Fields that the objective, or TRL's own loss, cannot go with."""
    objective = recipe.objective
    if config.objective is None:
        return [*_own_ratio_problems(config, recipe.advantage_per), *_length_problems(config, None)]
    if objective is None:
        return []
    stop = [] if objective.stop_fraction is None else stop_problems(config)
    return [*field_problems(objective, config), *_length_problems(config, objective), *stop]


def replaced_by_objective(config: Any) -> list[str]:
    """Fields of TRL that are set beside an objective which replaces them."""
    if config.objective is None:
        return []
    return [
        f"{name} ({getattr(config, name)!r}) is TRL's and would be ignored, since objective is "
        f"{config.objective!r}. Remove {name}; what says the same is {OBJECTIVE_FIELDS[name]}."
        for name in changed_fields(config, tuple(OBJECTIVE_FIELDS))
    ]


def _own_ratio_problems(config: Any, per: str) -> list[str]:
    """TRL's ratio of a completion beside advantages of its parts: the same as `gspo`, which is refused with them."""
    if per == "completion" or config.importance_sampling_level == "token":
        return []
    text = f"importance_sampling_level is {config.importance_sampling_level!r}, one ratio a completion, which has no"
    why = f"{text} meaning with advantages per {per} (advantage {config.advantage!r})"
    return [f"{why}: set it to 'token', use objective 'gspo_token', or an advantage estimator per completion."]


def _length_problems(config: Any, objective: "Objective | None") -> list[str]:
    """Losses that divide by the longest length there can be, where completions may have any."""
    if config.max_completion_length is not None:
        return []
    if objective is None:
        divides, way, what = config.loss_type == "dr_grpo", "", f"loss_type {config.loss_type!r}"
    else:
        reduce = objective.reduce
        divides = reduce.piece.name == "constant" and reduce.keywords.get("length") is None
        way, what = ", give the reduction its length", f"the objective {config.objective!r}"
    text = f"max_completion_length is None, but {what} divides by it"
    return [f"{text}: set it{way}, or choose a loss that does not."] if divides else []
