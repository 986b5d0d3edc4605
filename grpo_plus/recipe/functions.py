"""Reward functions beside the verifiers: what TRL will call them with, and what of it is not there."""

import inspect
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from grpo_verifiers.errors.messages import did_you_mean
from grpo_verifiers.lazy import installed

GIVEN = ("prompts", "completions", "completion_ids", "trainer_state", "log_extra", "log_metric")
"""Keywords of every call, beside the dataset's columns."""
NO_COLUMNS = ("prompt", "completion", "completion_ids")
"""Columns that TRL hands to no reward function."""
_CONVERSATIONS = ("accuracy_reward", "reasoning_accuracy_reward", "think_format_reward", "cosine_scaled_reward")
"""Functions of TRL that read ``completion[0]["content"]``."""


def function_problems(
    functions: Sequence[Any],
    sets: Mapping[str, Sequence[str]],
    *,
    conversations: bool | None,
    more: Collection[str] = (),
) -> list[str]:
    """Columns that reward functions need and a dataset lacks, and calls that they would not take.

    ``sets`` has the columns of each dataset that tells them. ``conversations`` says whether prompts are such; None if
    it is not known. ``more`` are further keywords of a call.
    """
    problems = []
    for function in functions:
        name = getattr(function, "__name__", type(function).__name__)
        wanted, takes, open_ended = _parameters(function)
        for where, columns in sets.items():
            passed = [*GIVEN, *more, *(column for column in columns if column not in NO_COLUMNS)]
            problems += [
                f"{where} has no column {parameter!r}, which the reward function {name!r} needs."
                f"{did_you_mean(parameter, columns)} Rename the column that holds it, or give the parameter a default."
                for parameter in wanted
                if parameter not in passed
            ]
            left = [] if open_ended else [keyword for keyword in passed if keyword not in takes]
            if left:
                text = f"the reward function {name!r} takes no {', '.join(left)}, which TRL passes it by name ({where})"
                problems.append(f"{text}: add **kwargs to its parameters.")
                break
        problems += _of_trl(function, name, conversations=conversations)
    return problems


def _parameters(function: Any) -> tuple[list[str], set[str], bool]:
    """The parameters that must be given, all that are taken by name, and whether any other name is."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # built in, without a signature
        return [], set(), True
    named = [each for each in parameters if each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY)]
    wanted = [each.name for each in named if each.default is each.empty]
    return wanted, {each.name for each in named}, any(each.kind is each.VAR_KEYWORD for each in parameters)


def _of_trl(function: Any, name: str, *, conversations: bool | None) -> list[str]:
    if not str(getattr(function, "__module__", "")).startswith("trl.rewards"):
        return []
    problems = []
    if "accuracy" in name and not installed("math_verify"):
        text = f"the reward function {name!r} needs math_verify, which is not installed"
        problems.append(f"{text}: pip install math-verify.")
    if conversations is False and name in _CONVERSATIONS:
        text = f"the reward function {name!r} reads completions of conversations, but the prompts are plain text"
        remedy = "set prompt: {chat: true} with a model that has a chat template, or take a verifier, which reads both"
        problems.append(f"{text}: {remedy} (math, think_format).")
    return problems
