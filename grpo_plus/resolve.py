"""From the names in a config to the parts that run, and every problem of the choice before any model loads."""

from collections.abc import Callable, Sequence
from dataclasses import MISSING
from typing import TYPE_CHECKING, Any

from grpo_verifiers.errors import VerifierError
from grpo_verifiers.registry import load_plugin

if TYPE_CHECKING:
    from grpo_plus.advantages import Estimator
    from grpo_plus.objectives import Objective

ADVANTAGE_FIELDS = {
    "scale_rewards": "the estimator itself: zscore, center, or zscore with advantage_kwargs {scale: batch}",
    "multi_objective_aggregation": "the estimator gdpo",
}
"""Fields of TRL that an estimator of ours replaces, and what says the same here."""

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
    "use_bias_correction_kl": "objective_kwargs {kl: {unbiased: …}}",
}
"""Fields of TRL that an objective of ours replaces, and what says the same here."""


def load_plugins(plugins: Sequence[str]) -> None:
    """Import the plug-ins of a config, so that their decorators register."""
    for plugin in plugins:
        load_plugin(plugin)


def config_problems(config: Any) -> list[str]:
    """Everything that is wrong with our part of a config."""
    checks: tuple[Callable[[Any], list[str]], ...] = (
        _advantage_problems,
        _objective_problems,
        _verifier_problems,
        _engine_problems,
    )
    return [problem for check in checks for problem in check(config)]


def resolve_advantage(config: Any) -> "tuple[Estimator, dict[str, Any]] | None":
    """The estimator that replaces TRL's advantages, and its keywords; None leaves TRL's."""
    if config.advantage is None:
        return None
    from grpo_plus.advantages import get_advantage

    return get_advantage(config.advantage), dict(config.advantage_kwargs or {})


def resolve_objective(config: Any) -> "Objective | None":
    """The objective that replaces TRL's loss; None leaves TRL's."""
    if config.objective is None:
        return None
    from grpo_plus.objectives import build_objective

    return build_objective(config.objective, objective_keywords(config), beta=config.beta)


def objective_keywords(config: Any) -> dict[str, Any]:
    """The objective's keywords, without what the trainer itself reads of them."""
    return dict(config.objective_kwargs or {})


def equivalent_advantage(config: Any) -> tuple[str, dict[str, Any]]:
    """The estimator that TRL's own fields amount to, by name and keywords."""
    if config.multi_objective_aggregation == "normalize_then_sum":
        return "gdpo", {}
    scale = {True: "group", False: "none"}.get(config.scale_rewards, config.scale_rewards)
    return {"group": ("zscore", {}), "batch": ("zscore", {"scale": "batch"}), "none": ("center", {})}[scale]


def changed_fields(config: Any, names: Sequence[str]) -> list[str]:
    """Those of the fields that are not at their default, in the order given; unknown ones are skipped."""
    fields = config.__dataclass_fields__
    return [name for name in names if name in fields and getattr(config, name) != _default(fields[name])]


def _default(spec: Any) -> Any:
    return spec.default if spec.default is not MISSING else spec.default_factory()


def _advantage_problems(config: Any) -> list[str]:
    if config.advantage is None:
        if config.advantage_kwargs:
            return [
                (
                    f"advantage_kwargs is {config.advantage_kwargs!r}, but advantage is unset, so nothing would read it: "
                    "set advantage, or remove advantage_kwargs."
                )
            ]
        return []
    from grpo_plus.advantages import check_advantage_kwargs, get_advantage

    problems = check_advantage_kwargs(config.advantage, dict(config.advantage_kwargs or {}))
    for name in changed_fields(config, tuple(ADVANTAGE_FIELDS)):
        problems.append(
            f"{name} ({getattr(config, name)!r}) and advantage ({config.advantage!r}) both choose how rewards become "
            f"advantages. Remove {name}; what says the same is {ADVANTAGE_FIELDS[name]}."
        )
    if config.num_generations == 1:
        try:
            relative = get_advantage(config.advantage).group_relative
        except VerifierError:
            relative = False
        why = (
            "compares completions of one prompt, so a single one has nothing to be compared with"
            if relative
            else "would work with one, but TRL's sampler and trainer need two"
        )
        problems.append(
            f"num_generations is 1: the advantage estimator {config.advantage!r} {why}. Set num_generations to 2 or "
            "more (a divisor of the generation batch)."
        )
    return problems


def _objective_problems(config: Any) -> list[str]:
    if config.objective is None:
        if config.objective_kwargs:
            return [
                (
                    f"objective_kwargs is {config.objective_kwargs!r}, but objective is unset, so nothing would read it: "
                    "set objective, or remove objective_kwargs."
                )
            ]
        return []
    from grpo_plus.objectives import check_objective

    problems = check_objective(
        config.objective, objective_keywords(config), beta=config.beta, advantage_per=_advantage_per(config)
    )
    for name in changed_fields(config, tuple(OBJECTIVE_FIELDS)):
        problems.append(
            f"{name} ({getattr(config, name)!r}) is TRL's and would be ignored, since objective is "
            f"{config.objective!r}. Remove {name}; what says the same is {OBJECTIVE_FIELDS[name]}."
        )
    return problems


def _advantage_per(config: Any) -> str:
    if config.advantage is None:
        return "completion"
    from grpo_plus.advantages import get_advantage

    try:
        return get_advantage(config.advantage).per
    except VerifierError:
        return "completion"


def _verifier_problems(config: Any) -> list[str]:
    if not config.verifiers:
        if config.verifier_column is not None:
            return [f"verifier_column is {config.verifier_column!r}, but there are no verifiers to choose from."]
        return []
    from grpo_plus.verification import entry_problems

    return entry_problems(config)


def _engine_problems(config: Any) -> list[str]:
    problems = []
    choices = ("auto", "packed", "trimmed", "stock")
    if config.engine not in choices:
        problems.append(f"engine is {config.engine!r}, expected one of {', '.join(choices)}.")
    tokens = config.engine_tokens_per_pass
    if tokens is not None and (not isinstance(tokens, int) or isinstance(tokens, bool) or tokens < 1):
        problems.append(f"engine_tokens_per_pass is {tokens!r}, expected a positive integer, or nothing for no bound.")
    if tokens is not None and config.engine == "stock":
        problems.append(f"engine_tokens_per_pass ({tokens}) needs the engine, but engine is 'stock': remove one.")
    return problems
