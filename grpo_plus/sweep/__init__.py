"""Many runs of one config: a grid of variants times seeds, one training run each, compared at the end.

They take place on this machine, or on others by the name that ``--on`` gives.
"""

from typing import Any

from grpo_verifiers.registry import Registry

ELSEWHERE: Registry[Any] = Registry(
    "place for runs", builtins={"ray": "grpo_plus.ray.sweep:on_ray"}, group="grpo_plus.sweep"
)
"""Other machines by name; `grpo_plus.ray.sweep.on_ray` is the model for one."""
