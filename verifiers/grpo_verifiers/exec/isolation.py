"""Other machines as a place of worker processes, by the name that `isolation` gives."""

from typing import Any

from grpo_verifiers.errors.messages import unknown
from grpo_verifiers.registry import Registry

HERE = ("inline", "process")
"""In the trainer, and in worker processes of this machine."""


ELSEWHERE: Registry[Any] = Registry(
    "isolation", builtins={"ray": "grpo_verifiers.ray.runner:RayRunner"}, group="grpo_plus.isolation"
)
"""Classes that run calls on other machines, with the methods of `Runner`: ``submit``, ``warm``, ``close``,
``abandon`` and ``closed``. Their static ``problem`` returns the reason why this machine cannot use them, or an empty
text. Checks are sent there by value."""


def is_elsewhere(isolation: Any) -> bool:
    """True for the name of a place on other machines."""
    return isinstance(isolation, str) and isolation not in HERE and isolation in ELSEWHERE


def isolation_problems(isolation: Any) -> list[str]:
    """The name of an unknown place."""
    if isinstance(isolation, str) and (isolation in HERE or isolation in ELSEWHERE):
        return []
    return [unknown("isolation", isolation, [*HERE, *ELSEWHERE])]
