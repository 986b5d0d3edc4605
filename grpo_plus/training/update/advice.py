"""Settings that would fit, for a trainer that ran out of memory."""

from contextlib import suppress
from typing import Any

from grpo_plus.memory.advice import LOWER, capacity_of, optimizer_of, resident, settings_of, suggestion
from grpo_plus.memory.estimate import HeadSettings, Settings, estimate
from grpo_plus.memory.shape import ModelShape, read_model_config, shape_of
from grpo_plus.qlora.model import bits_of, quantises_twice
from grpo_plus.recipe.recipe import recipe_of
from grpo_plus.trl.host import Host
from grpo_plus.trl.ranks import adapter_configs, plain_model


def advice_for(host: Host) -> str:
    """Suggest settings that would fit."""
    plain = plain_model(host, host.model)
    adapters = adapter_configs(host)
    if not adapters:
        return f"{LOWER}. {resident(plain, optimizer_of(host.args))}"
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
    """Return the planner's settings of a run, with its rollout and its heads."""
    rollout, heads = recipe_of(args).rollout, heads_of(args)
    lean, rows = rollout.how == "auto", rollout.rows
    return settings_of(args, peft_config, bits=bits, double=double, lean=lean, most_rows=rows, heads=heads)


def heads_of(args: Any) -> list[HeadSettings]:
    """Return the critic and the reward model of a run with adapters, in the planner's terms."""
    recipe = recipe_of(args)
    critic, reward = recipe.critic, recipe.reward_model
    heads = []
    if critic is not None:
        kind, shape = critic.kind(adapted=True), _other_shape(critic.model)
        heads.append(HeadSettings("critic", kind, rank=critic.lora_r, shape=shape))
    if reward is not None:
        kind, shape = reward.on or "adapter", _other_shape(reward.model)
        heads.append(HeadSettings("reward_model", kind, rank=reward.lora_r, shape=shape, least_rows=2))
    return heads


def _other_shape(name: str | None) -> ModelShape | None:
    """Return the shape of another model by its config; None for the policy's own and for an unreadable one."""
    if name is not None:
        with suppress(ValueError):  # loading it reports the error
            return shape_of(read_model_config(name), name)
    return None
