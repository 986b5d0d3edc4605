"""Many runs of one config: a grid of variants times seeds, one training run each, compared at the end.

They run on this machine, or on other machines selected by ``--on``.
"""

from typing import Any

from grpo_verifiers.registry import Registry

ELSEWHERE: Registry[Any] = Registry(
    "place for runs", builtins={"ray": "grpo_plus.ray.sweep:on_ray"}, group="grpo_plus.sweep"
)
"""Runners on other machines by name; `grpo_plus.ray.sweep.on_ray` is an example."""
