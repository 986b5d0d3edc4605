"""The critic of a config, and every problem of the choice."""

from typing import Any

from grpo_plus.critic.options import CriticOptions
from grpo_verifiers.options import option_problems


def choose_critic(config: Any) -> tuple[CriticOptions | None, list[str]]:
    """The options of a config's critic, None without one; what is wrong with its keys."""
    given = config.critic
    if given is None:
        return None, []
    if problems := option_problems("critic", CriticOptions, given, where="key"):
        return None, problems
    return CriticOptions(**given), []
