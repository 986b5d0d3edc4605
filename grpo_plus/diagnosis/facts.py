"""Facts of a run that rules read beside the curves: some settings, the verifiers and what they look at."""

from collections.abc import Iterable, Mapping
from typing import Any

SETTINGS = (
    *("learning_rate", "max_completion_length", "mask_truncated_completions", "num_generations", "num_iterations"),
    *("beta", "max_grad_norm", "verifier_column", "fp16"),
)


def facts_of(
    settings: Mapping[str, Any],
    *,
    advantage: str | None = None,
    grouped: bool = True,
    lora: bool = False,
    verifiers: Iterable[Mapping[str, Any]] = (),
    evaluating: Iterable[Mapping[str, Any]] = (),
) -> dict[str, Any]:
    """The facts, from settings by name and from verifiers as mappings of label, weight and settings (`describe`).

    ``grouped``: the estimator compares the completions of a prompt.

    >>> judge = {"label": "strict", "settings": {"name": "exact", "required_columns": {"answer": "answer"}}}
    >>> facts_of({"beta": 0.1, "seed": 1}, evaluating=[judge, {"label": "repetition"}])["judges"]
    ['strict']
    """
    found: dict[str, Any] = {name: settings[name] for name in SETTINGS if settings.get(name) is not None}
    rewarding = list(verifiers)
    found["advantage"], found["grouped"], found["lora"] = advantage, grouped, lora
    found["verifiers"] = {str(one.get("label")): _name(one) for one in rewarding}
    found["judges"] = [str(one.get("label")) for one in evaluating if _asks(one)]
    weights = [one.get("weight") for one in rewarding]
    found["groups"] = _groups(settings)
    found["reward_scale"] = sum(1.0 if weight is None else abs(weight) for weight in weights) or 1.0
    return found


def _groups(settings: Mapping[str, Any]) -> int | None:
    """Groups that a value in the log is the mean of, at least: those of a generation batch, for each that is drawn."""
    names = "generation_batch_size", "num_generations", "steps_per_generation", "num_iterations"
    rows, size, parts, iterations = (settings.get(name) for name in names)
    if not (isinstance(rows, int) and isinstance(size, int) and size > 0):
        return None
    looks = (parts if isinstance(parts, int) else 1) * (iterations if isinstance(iterations, int) else 1)
    accumulation, logged = settings.get("gradient_accumulation_steps"), settings.get("logging_steps")
    steps = logged if isinstance(logged, int) and settings.get("logging_strategy", "steps") == "steps" else 1
    draws = steps * (accumulation if isinstance(accumulation, int) else 1) // max(1, looks)
    return max(1, rows // size * max(1, draws))


def _settings(one: Mapping[str, Any]) -> Mapping[str, Any]:
    found = one.get("settings")
    return found if isinstance(found, Mapping) else {}


def _name(one: Mapping[str, Any]) -> str:
    return str(_settings(one).get("name") or one.get("label"))


def _asks(one: Mapping[str, Any]) -> bool:
    """Whether a verifier compares with something of the dataset, rather than looks at the text alone."""
    return bool(_settings(one).get("required_columns"))
