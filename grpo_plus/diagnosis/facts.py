"""Facts of a run that rules read: some settings, the verifiers, and the columns that they read."""

from collections.abc import Iterable, Mapping
from typing import Any

SETTINGS = (
    *("learning_rate", "max_completion_length", "mask_truncated_completions", "num_generations", "num_iterations"),
    *("beta", "verifier_column", "fp16"),
)


def facts_of(
    settings: Mapping[str, Any],
    *,
    grouped: bool = True,
    lora: bool = False,
    verifiers: Iterable[Mapping[str, Any]] = (),
) -> dict[str, Any]:
    """Return the facts from settings by name and from verifiers as mappings of label, weight and settings (`describe`).

    ``grouped``: the estimator compares the completions of a prompt.

    >>> facts_of({"beta": 0.1, "seed": 1}, verifiers=[{"label": "strict", "settings": {"name": "exact"}}])["verifiers"]
    {'strict': 'exact'}
    """
    facts: dict[str, Any] = {name: settings[name] for name in SETTINGS if settings.get(name) is not None}
    rewarding = list(verifiers)
    facts["grouped"], facts["lora"] = grouped, lora
    facts["verifiers"] = {str(one.get("label")): str(_setting(one, "name") or one.get("label")) for one in rewarding}
    weights = [one.get("weight") for one in rewarding]
    facts["groups"] = _groups(settings)
    facts["reward_scale"] = sum(1.0 if weight is None else abs(weight) for weight in weights) or 1.0
    return facts


def _groups(settings: Mapping[str, Any]) -> int | None:
    """Return the least number of groups behind a logged value: groups of a batch × batches between two entries."""
    names = "generation_batch_size", "num_generations", "steps_per_generation", "num_iterations"
    rows, size, parts, iterations = (settings.get(name) for name in names)
    if not (isinstance(rows, int) and isinstance(size, int) and size > 0):
        return None
    looks = (parts if isinstance(parts, int) else 1) * (iterations if isinstance(iterations, int) else 1)
    accumulation, logged = settings.get("gradient_accumulation_steps"), settings.get("logging_steps")
    steps = logged if isinstance(logged, int) and settings.get("logging_strategy", "steps") == "steps" else 1
    draws = steps * (accumulation if isinstance(accumulation, int) else 1) // max(1, looks)
    return max(1, rows // size * max(1, draws))


def _setting(one: Mapping[str, Any], name: str) -> Any:
    settings = one.get("settings")
    return settings.get(name) if isinstance(settings, Mapping) else None
