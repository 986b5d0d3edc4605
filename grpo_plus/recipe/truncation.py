"""Sampling settings that leave tokens out: what is drawn then has other probabilities than the model's."""

from typing import Any

from grpo_plus.recipe.options import mapping

_NEUTRAL = {"top_p": (None, 1), "top_k": (None, 0, -1), "min_p": (None, 0)}


def truncation(config: Any) -> dict[str, Any]:
    """The settings of a config, by name, that leave tokens out when completions are drawn."""
    given = {**{name: getattr(config, name, None) for name in _NEUTRAL}}
    given |= {
        name: value for name, value in mapping("generation_kwargs", config.generation_kwargs).items() if name in given
    }
    return {name: value for name, value in given.items() if value not in _NEUTRAL[name]}


def shown(config: Any) -> str:
    """These settings in words."""
    return ", ".join(f"{name} ({value!r})" for name, value in truncation(config).items())
