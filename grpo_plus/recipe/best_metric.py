"""``metric_for_best_model``: the names that an evaluation of this config logs, so that a wrong one is found beforehand.

An evaluation logs TRL's names with ``eval_`` before them; the host adds the prefix to a name without it. Of several
evaluation sets, losses and times have the set's name; everything else is that of the set that came last.
"""

import inspect
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from grpo_plus.recipe.recipe import Recipe
from grpo_verifiers.errors.messages import nearest
from grpo_verifiers.verdict import Status

_TIMES = ("loss", "runtime", "samples_per_second", "steps_per_second")
_ALWAYS = (
    *("reward", "reward_std", "frac_reward_zero_std", "num_tokens", "entropy"),
    *("completions/mean_length", "completions/min_length", "completions/max_length", "completions/clipped_ratio"),
    *("completions/mean_terminated_length", "completions/min_terminated_length", "completions/max_terminated_length"),
)
_SOMETIMES: tuple[tuple[str, Callable[[Any, Recipe], bool]], ...] = (
    (
        r"kl",
        lambda config, recipe: bool(config.beta) or (recipe.objective is not None and recipe.objective.kl is not None),
    ),
    (r"clip_ratio/(low|high|region)_(mean|min|max)", lambda *_: True),
    (r"cispo_clip_ratio|vespo/phi_seq_mean|policy_loss|entropy_coef|aux_loss|beta", lambda *_: True),
    (r"sampling/.+|rollout/logp_drift(_max)?", lambda config, _: bool(config.use_vllm)),
    (r"rollout/.+", lambda _, recipe: recipe.rollout == "auto"),
    (r"advantages/.+", lambda _, recipe: recipe.advantage is not None),
    (r"steps/.+", lambda _, recipe: recipe.step_sources is not None),
    (r"critic/.+", lambda _, recipe: recipe.critic is not None),
    (r"reward_model/.+", lambda _, recipe: recipe.reward_model is not None),
    (r"target/.+", lambda _, recipe: recipe.objective is not None and recipe.objective.makes_targets),
    (r"(tpo|real)/.+", lambda _, recipe: recipe.objective is not None and recipe.objective.pulls_groups),
    (r"fipo/.+", lambda _, recipe: recipe.objective is not None),
    (r"tools/.+", lambda *_: True),
)
"""Names as patterns, and when they are logged; whether all of them are says the run only."""
_LESS_IS_BETTER = re.compile(
    r"loss|runtime|kl|frac_reward_zero_std|completions/clipped_ratio|advantages/dead_group_fraction"
    r"|verifiers/.+/(status/(wrong|unparsable|timeout|error)|latency_.+)|tools/(errors|late|died|failure_frequency)|critic/loss"
)


def best_metric_problems(
    config: Any, recipe: Recipe, rewards: Iterable[str], functions: Iterable[Any] = (), sets: Collection[str] = ()
) -> list[str]:
    """A ``metric_for_best_model`` that no evaluation of this run logs.

    ``rewards`` names all rewards of the run. ``functions`` are reward functions, which may log names of their own;
    ``sets`` are the names of the evaluation sets, where there are several.
    """
    given = config.metric_for_best_model
    if not given or not _evaluates(config):
        return []
    name = str(given).removeprefix("eval_")
    known = metric_names(recipe, rewards, sets)
    if name in known or any(re.fullmatch(pattern, name) and when(config, recipe) for pattern, when in _SOMETIMES):
        return []
    if any(
        way != "built-in" for part, way in recipe.origins.items() if part in ("advantage", "objective", "selection")
    ):
        return []  # a part of one's own may log what it likes
    if any(map(logs_metrics, functions)):
        return []
    text = f"metric_for_best_model is {given!r}, which no evaluation of this run logs.{_hint(name, recipe, known)}"
    there = f"There is: {', '.join(_shown(known))}, and lengths, entropy and the like (docs/metrics.md)."
    return [f"{text} {there} A reward function that logs it itself names log_metric in its parameters."]


def metric_names(recipe: Recipe, rewards: Iterable[str], sets: Collection[str] = ()) -> list[str]:
    """What an evaluation surely logs, without ``eval_``: scores first, then counts and times."""
    rewards = list(dict.fromkeys(rewards))
    watching = [part.label for part in recipe.eval_verifiers]
    judges = [*(part.label for part in recipe.verifiers), *watching]
    return [
        *(["score"] if watching else []),
        *(f"rewards/{name}/mean" for name in (*watching, *rewards)),
        *(f"verifiers/{label}/mean" for label in judges),
        *(f"verifiers/{label}/status/{status}" for label in judges for status in map(str, Status)),
        *(f"verifiers/{label}/latency_p50" for label in judges),
        *(f"verifiers/{label}/latency_p95" for label in judges),
        *(f"rewards/{name}/std" for name in rewards),
        *_ALWAYS,
        *((f"{name}_{time}" for name in sets for time in _TIMES) if sets else _TIMES),
    ]


def best_metric_notes(config: Any) -> list[str]:
    """A figure of which less is better, taken for the larger the better."""
    given = config.metric_for_best_model
    chosen = (
        config.load_best_model_at_end or str(getattr(config.save_strategy, "value", config.save_strategy)) == "best"
    )
    if not given or not chosen or not config.greater_is_better:
        return []
    if not _LESS_IS_BETTER.fullmatch(str(given).removeprefix("eval_")):
        return []
    text = f"metric_for_best_model is {given!r}, of which less is better, but greater_is_better is true"
    return [f"{text} (the default of every name that does not end in 'loss'): set greater_is_better: false."]


def best_value_problem(config: Any, metrics: Mapping[str, Any]) -> str | None:
    """An evaluation without the value that the best model is told by; None where it has it, or nobody asks."""
    given = config.metric_for_best_model
    if not given or metrics is None:
        return None
    name = f"eval_{str(given).removeprefix('eval_')}"
    if metrics.get(name) is not None:
        return None
    why = "applied to no row of this evaluation" if name in metrics else "is not among what this evaluation logged"
    return f"metric_for_best_model ({given!r}) {why}"


def logs_metrics(function: Any) -> bool:
    """A reward function that may log metrics of its own: its code names ``log_metric``, or cannot be looked at."""
    function = inspect.unwrap(function)
    code = getattr(function, "__code__", None) or getattr(vars(type(function)).get("__call__"), "__code__", None)
    if code is None:
        return not isinstance(function, str)
    return "log_metric" in {*code.co_varnames, *code.co_names, *code.co_consts}


def _evaluates(config: Any) -> bool:
    strategy = config.eval_strategy
    return str(getattr(strategy, "value", strategy)) != "no"


def _hint(name: str, recipe: Recipe, known: Sequence[str]) -> str:
    labels = [part.label for part in (*recipe.eval_verifiers, *recipe.verifiers)]
    if "acc" in name.lower() and labels and name not in labels:
        return f" The share that {labels[-1]!r} calls correct is 'verifiers/{labels[-1]}/status/correct'."
    label = name if name in labels else nearest(name, labels)
    if label is not None and "/" not in name:
        return f" Did you mean 'rewards/{label}/mean'?"
    close = nearest(name, known)
    return f" Did you mean {close!r}?" if close else ""


def _shown(known: Sequence[str]) -> list[str]:
    """The names that a best model is told by: scores and the loss."""
    scores = [name for name in known if name.endswith(("/mean", f"/{Status.CORRECT}")) or name in ("score", "reward")]
    return [*scores[:12], *(name for name in known if name.endswith("loss"))]
