"""The objective of a config, and every problem of the choice."""

from typing import TYPE_CHECKING, Any

from grpo_plus.objectives.compose import compose_objective
from grpo_plus.recipe.forms import named

if TYPE_CHECKING:
    from grpo_plus.objectives import Objective
    from grpo_verifiers.errors import Problem


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
