"""Settings that would fit, for a trainer that ran out of memory."""

from typing import Any

from grpo_plus.memory.advice import LOWER, STATES, capacity_of, settings_of, suggestion
from grpo_plus.memory.estimate import Settings, estimate
from grpo_plus.memory.shape import shape_of
from grpo_plus.qlora.model import bits_of, quantises_twice
from grpo_plus.recipe.recipe import recipe_of
from grpo_plus.trl.host import Host
from grpo_plus.trl.ranks import adapter_configs, plain_model


def advice_for(host: Host) -> str:
    """Suggest settings that would fit."""
    plain = plain_model(host, host.model)
    adapters = adapter_configs(host)
    if not adapters:
        return f"{LOWER}. {STATES}."
    stored = getattr(plain.config, "quantization_config", None)
    settings = planned(host.args, next(iter(adapters.values())), bits=bits_of(plain), double=quantises_twice(stored))
    name = getattr(plain.config, "_name_or_path", "") or type(plain).__name__
    capacity = capacity_of(host.accelerator.device)
    try:
        if capacity is not None:
            # The estimate was too low: the run did not fit.
            capacity = min(capacity, 0.85 * estimate(shape_of(plain.config, name), settings).peak)
        return suggestion(plain.config, name, settings, capacity, host.num_generations)
    except ValueError:  # no causal language model: no estimate
        return f"{LOWER}."


def planned(args: Any, peft_config: Any, *, bits: int | None, double: bool) -> Settings:
    """Return the planner's settings of a run, with its rollout."""
    rollout = recipe_of(args).rollout
    lean, rows = rollout.how == "auto", rollout.rows
    return settings_of(args, peft_config, bits=bits, double=double, lean=lean, most_rows=rows)
