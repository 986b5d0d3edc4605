"""Other machines as a place of worker processes, by the name that `isolation` gives."""

from typing import Any, Protocol

from grpo_verifiers.errors.messages import unknown
from grpo_verifiers.registry import Registry

HERE = ("inline", "process")
"""In the trainer, and in worker processes of this machine."""


class Elsewhere(Protocol):
    """A class whose instances run calls on other machines, as `Runner` does here."""

    closed: bool

    @staticmethod
    def problem() -> str:
        """What this machine lacks for it, in words; empty: nothing that shows yet."""

    def submit(self, spec: Any, calls: Any, timeout: float, rows: Any = None) -> Any:
        """Hand over calls without waiting."""

    def warm(self, spec: Any) -> None:
        """Start what the calls will need, without waiting."""

    def close(self) -> None:
        """End everything that was started."""

    def abandon(self) -> None:
        """In a forked child: let go of the parent's connections."""


ELSEWHERE: Registry[type[Elsewhere]] = Registry(
    "isolation", builtins={"ray": "grpo_verifiers.ray.runner:RayRunner"}, group="grpo_plus.isolation"
)
"""Checks travel there by value."""


def is_elsewhere(isolation: Any) -> bool:
    """It is the name of other machines."""
    return isinstance(isolation, str) and isolation not in HERE and isolation in ELSEWHERE


def isolation_problems(isolation: Any) -> list[str]:
    """A name that stands for no place."""
    if isinstance(isolation, str) and (isolation in HERE or isolation in ELSEWHERE):
        return []
    return [unknown("isolation", isolation, [*HERE, *ELSEWHERE])]
