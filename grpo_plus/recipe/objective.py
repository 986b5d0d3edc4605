"""The objective of a config, and every problem of the choice."""

from typing import TYPE_CHECKING, Any

from grpo_plus.objectives.compose import compose_objective
from grpo_plus.recipe.forms import name_of, named
from grpo_plus.recipe.iterations import moves_within_batch, steps_per_generation, stop_problems
from grpo_plus.recipe.options import changed_fields

if TYPE_CHECKING:
    from grpo_plus.objectives import Objective
    from grpo_plus.recipe.recipe import Recipe
    from grpo_verifiers.errors import Problem

OBJECTIVE_FIELDS = {
    "loss_type": "objective",
    "epsilon": "objective {epsilon_low: …}",
    "epsilon_high": "objective {epsilon_high: …} (epsilon_max for cispo)",
    "delta": "objective {delta: …}",
    "importance_sampling_level": "objective {ratio: …}",
    "sapo_temperature_neg": "objective {temperature_neg: …} of sapo",
    "sapo_temperature_pos": "objective {temperature_pos: …} of sapo",
    "vespo_k_pos": "objective {k_pos: …} of vespo",
    "vespo_lambda_pos": "objective {lambda_pos: …} of vespo",
    "vespo_k_neg": "objective {k_neg: …} of vespo",
    "vespo_lambda_neg": "objective {lambda_neg: …} of vespo",
}
"""Fields of TRL that an objective of ours replaces, and what says the same here."""


def choose_objective(config: Any, advantage_per: str) -> "tuple[Objective | None, list[Problem]]":
    """The objective that a config names, and every problem of its composition; None without one."""
    name, keywords = named("objective", config.objective)
    if name is None:
        return None, []
    return compose_objective(
        name,
        keywords,
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
    set_rules = {"stop_fraction": objective.stop_fraction, "stop_rise": objective.stop_rise}
    stop = [
        problem for rule, value in set_rules.items() if value is not None for problem in stop_problems(config, rule)
    ]
    return [*_field_problems(objective, config, recipe), *_length_problems(config, objective), *stop]


def replaced_by_objective(config: Any) -> list[str]:
    """Fields of TRL that are set beside an objective which replaces them."""
    if config.objective is None:
        return []
    return [
        f"{name} ({getattr(config, name)!r}) is TRL's and would be ignored, since objective is "
        f"{name_of(config, 'objective')!r}. Remove {name}; what says the same is {OBJECTIVE_FIELDS[name]}."
        for name in changed_fields(config, tuple(OBJECTIVE_FIELDS))
    ]


def _own_ratio_problems(config: Any, per: str) -> list[str]:
    """TRL's ratio of a completion beside advantages of its parts: the same as `gspo`, which is refused with them."""
    if per == "completion" or config.importance_sampling_level == "token":
        return []
    text = f"importance_sampling_level is {config.importance_sampling_level!r}, one ratio a completion, which has no"
    why = f"{text} meaning with advantages per {per} (advantage {name_of(config, 'advantage')!r})"
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
        way, what = ", give the reduction its length", f"the objective {objective.name!r}"
    text = f"max_completion_length is None, but {what} divides by it"
    return [f"{text}: set it{way}, or choose a loss that does not."] if divides else []


def _field_problems(objective: "Objective", config: Any, recipe: "Recipe") -> list[str]:
    """Fields that this objective cannot go with."""
    problems = []
    corrected = config.use_vllm and config.vllm_importance_sampling_correction
    what = f"the objective {objective.name!r}"
    if objective.skip_settled and config.num_iterations < 2:
        problems.append(
            f"{what}: skip_settled leaves rows out of the later inner iterations, but num_iterations is "
            f"{config.num_iterations}: set it to 2 or more, or remove skip_settled."
        )
    if objective.skip_settled and recipe.engine.layout == "stock":
        problems.append(
            f"{what}: skip_settled saves the passes of rows that have settled, but engine is 'stock', which runs all "
            "rows: set engine to 'auto', or remove skip_settled."
        )
    if objective.makes_targets:
        problems += _target_problems(what, config, corrected=corrected)
    if objective.pulls_groups:
        problems += _group_problems(what, config, corrected=corrected)
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
    problems = _weighing_problems(why, config, corrected=corrected)
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
    return problems


def _group_problems(what: str, config: Any, *, corrected: bool) -> list[str]:
    why = f"{what} is a loss of the completions of a group, so nothing may weigh or drop parts of one"
    problems = _weighing_problems(why, config, corrected=corrected)
    if config.num_generations == 1:
        problems.append(
            f"{what} compares the completions of a group, but num_generations is 1: set it to 2 or more, or choose "
            "another objective."
        )
    return problems


def _weighing_problems(why: str, config: Any, *, corrected: bool) -> list[str]:
    problems = []
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
    name, keywords = named("advantage", config.advantage)
    return "the advantage estimator 'gdpo'" if "gdpo" in (name, *(keywords.get("parts") or {})) else None
