"""Many runs of one config: a grid of variants times seeds, one training run each, compared at the end.

They take place on this machine, or on others by the name that ``--on`` gives.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Protocol

from grpo_verifiers.registry import Registry

if TYPE_CHECKING:
    from grpo_plus.sweep.manifest import Manifest
    from grpo_plus.sweep.plan import Plan
    from grpo_plus.sweep.runner import Stop
    from grpo_plus.sweep.show import Line

Naming = Callable[[Mapping[str, str]], dict[str, str]]
"""Makes an environment for processes that end with this one."""


class Elsewhere(Protocol):
    """Other machines, while a sweep is connected to them."""

    def check(self, checker: Sequence[str]) -> None:
        """Check every variant there."""

    def run_all(self, manifest: "Manifest", line: "Line", stop: "Stop") -> None:
        """Run all unfinished runs; the manifest follows every start and end."""


Connect = Callable[["Plan", Naming, float | None, float | None], AbstractContextManager[Elsewhere]]
"""Connects a plan, with the CPUs and GPUs of a run."""

ELSEWHERE: Registry[Connect] = Registry(
    "place for runs", builtins={"ray": "grpo_plus.ray.sweep:on_ray"}, group="grpo_plus.sweep"
)
