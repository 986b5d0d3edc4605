"""Rounds: the papers' iterative algorithm as one setting, its fields and every problem of the choice."""

from math import gcd
from typing import Any

from grpo_plus.recipe.iterations import at_least_1, steps_per_generation
from grpo_plus.recipe.recipe import Recipe, RoundsOptions
from grpo_verifiers.options import option_problems


def choose_rounds(config: Any) -> tuple[RoundsOptions | None, list[str]]:
    """The rounds of a config, None without any; problems of single values."""
    given = config.rounds
    if given is None:
        return None, []
    if problems := option_problems("rounds", RoundsOptions, given, where="option", bare=True):
        return None, problems
    return RoundsOptions(**given), []


def rounds_problems(config: Any, recipe: Recipe) -> list[str]:
    """Rounds that would do nothing, or something that nobody could see."""
    rounds = recipe.rounds
    if rounds is None:
        return []
    problems = []
    if not rounds.does:
        problems.append(
            f"rounds every is {rounds.every}, but nothing is done in a round: set at least one of reference: refresh, "
            "reward_model: train, prompts: reselect."
        )
    if 0 < config.max_steps <= rounds.every:
        problems.append(
            f"rounds every is {rounds.every}, but max_steps is {config.max_steps}, so no second round would begin: "
            "lower every, or remove rounds."
        )
    problems += _border_problems(config, rounds)
    if rounds.reference:
        problems += _reference_problems(config)
    if rounds.reward_model and getattr(config, "reward_model", None) is None:
        problems.append("rounds reward_model is 'train', but no reward_model is set: set reward_model, or remove it.")
    if rounds.prompts:
        problems += _prompt_problems(config, recipe)
    return problems


def _border_problems(config: Any, rounds: RoundsOptions) -> list[str]:
    """A round that would end inside a generation batch, whose rewards and reference are those of its beginning."""
    accumulation = at_least_1(config.gradient_accumulation_steps)
    micro_batches = steps_per_generation(config) * at_least_1(config.num_iterations)
    period = micro_batches // gcd(micro_batches, accumulation)
    if rounds.every % period == 0:
        return []
    below = rounds.every // period * period
    choices = f"{below} or {below + period}" if below else str(period)
    text = f"rounds every is {rounds.every}, but a generation batch is trained on for {period} optimizer steps"
    why = (
        f"steps_per_generation {steps_per_generation(config)}, num_iterations {config.num_iterations}, "
        f"gradient_accumulation_steps {accumulation}"
    )
    return [f"{text} ({why}), and a round ends where one does: set every to {choices}."]


def _reference_problems(config: Any) -> list[str]:
    problems = []
    if config.beta == 0:
        problems.append(
            "rounds reference is 'refresh', but beta is 0, so there is no reference policy to refresh: set beta, or "
            "remove it."
        )
    if config.sync_ref_model:
        problems.append(
            "rounds reference is 'refresh' and sync_ref_model is true: both refresh the reference policy. Remove one "
            "of the two."
        )
    if config.dead_groups == "replay" and config.beta:
        problems.append(
            "dead_groups is 'replay', but rounds reference is 'refresh': replayed groups keep the log-probabilities "
            "of the reference that there was. Remove one of the two, or set dead_groups to 'resample'."
        )
    return problems


def _prompt_problems(config: Any, recipe: Recipe) -> list[str]:
    what, selected = "rounds prompts is 'reselect', but", recipe.selection
    if config.selection is None:
        return [f"{what} no selection is set, so all prompts are drawn alike: set selection, or remove it."]
    if selected is not None and not selected.selection.draws:
        text = f"{what} the selection {config.selection!r} draws by no weights"
        return [f"{text}: choose one that does ('contrast', say), or remove it."]
    return []
