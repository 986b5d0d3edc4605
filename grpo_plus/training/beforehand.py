"""What a trainer's arguments lack and TRL would only notice while it loads, draws or evaluates."""

from collections.abc import Mapping, Sequence
from typing import Any

from grpo_plus.recipe.best_metric import best_metric_problems
from grpo_plus.recipe.functions import function_problems
from grpo_plus.recipe.packages import package_problems
from grpo_plus.recipe.recipe import Recipe
from grpo_plus.recipe.weights import named_weights
from grpo_plus.training.hooks import Hook, Setup
from grpo_plus.training.verification import Verification
from grpo_verifiers.errors import Problem


class Beforehand(Hook):
    """Looks at packages, reward functions and the metric of the best model before anything loads."""

    def __init__(self, recipe: Recipe) -> None:
        self._recipe = recipe

    def problems(self, setup: Setup) -> Sequence[Problem]:
        """All of them; a plain `GRPOConfig` is TRL's to judge."""
        args, recipe = setup.args, self._recipe
        if not hasattr(args, "current_recipe"):
            return []
        given = setup.reward_funcs
        functions = [each for each in (given if isinstance(given, list | tuple) else [given]) if callable(each)]
        named = Verification.function_names(given)
        rewards = [name for name, _ in named_weights(recipe, named)]
        environments = setup.further.get("environment_factory")
        rewards += [part.label for part in recipe.environments.values() if part.rewards]
        evaluated = setup.eval_dataset if isinstance(setup.eval_dataset, Mapping) else {}
        own = environments is None and setup.further.get("rollout_func") is None
        return [
            *package_problems(args),
            *(_functions(functions, setup, more=("environments",) * bool(recipe.environments)) if own else ()),
            *(best_metric_problems(args, recipe, rewards, functions, tuple(map(str, evaluated))) if own else ()),
        ]


def _functions(functions: Sequence[Any], setup: Setup, *, more: Sequence[str]) -> list[str]:
    functions = [each for each in functions if not hasattr(each, "forward")]  # reward models read texts alone
    sets = {"train_dataset": setup.train_dataset}
    several = isinstance(setup.eval_dataset, Mapping)
    sets |= (
        {f"eval_dataset[{k!r}]": v for k, v in setup.eval_dataset.items()}
        if several
        else {"eval_dataset": setup.eval_dataset}
    )
    columns = {
        where: found for where, data in sets.items() if (found := getattr(data, "column_names", None)) is not None
    }
    told = {where: found for where, found in columns.items() if not isinstance(found, Mapping)}
    return function_problems(functions, told, conversations=_converses(setup.train_dataset), more=more)


def _converses(data: Any) -> bool | None:
    """Whether prompts are conversations; None for a stream, or where the rows have none."""
    if not hasattr(data, "__len__") or not len(data) or "prompt" not in (getattr(data, "column_names", None) or ()):
        return None
    return not isinstance(data[0]["prompt"], str)
