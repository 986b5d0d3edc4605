"""Memory of a run on a card by the planner, and settings that fit."""

import math
from collections.abc import Iterator
from typing import Any

from grpo_plus.memory.estimate import GIB, MemoryEstimate, Settings, estimate
from grpo_plus.memory.fit import DoesNotFitError, Fit, fit
from grpo_plus.memory.shape import ModelShape, read_model_config, shape_of

REPORTED = 0.91
"""Share of its nominal memory that a card reports at least: 14.6 GiB of 16 (T4), 22.0 of 24 (L4)."""
_WORDS = {
    "weights": "the base: linear layers in {bits} bits, the rest in the compute type",
    "adapters": "LoRA weights and their gradients, float32",
    "optimizer": "its state",
    "checkpoints": "activations stored for the backward pass (of all layers without checkpointing)",
    "activations": "one layer during the backward pass",
    "head": "a tile of logits; never together with a layer's activations",
    "cache": "keys and values of the rows decoded at once",
    "prefill": "reading the prompts, or the logits of one token",
    "dequantised": "one layer's weights in full while it is used",
}


def storage_of(model: Any, path: str, config: Any, *, trusts_code: bool) -> tuple[int | None, bool]:
    """Return the bits (4 or 8) of a quantised base, requested or stored, and True if its scales are quantised too."""
    from trl import get_quantization_config

    from grpo_plus.qlora.defaults import stored_bits
    from grpo_plus.qlora.model import quantises_twice, requested_bits

    values = {**vars(model), "model_name_or_path": path, "trust_remote_code": trusts_code}
    quantisation = get_quantization_config(model) or getattr(config, "quantization_config", None)
    return requested_bits(values) or stored_bits(values), quantises_twice(quantisation)


def planned_run(
    args: Any, model: Any, path: str, *, prompt_length: int, trusts_code: bool
) -> tuple[ModelShape, Settings]:
    """Return the shape of the model at ``path``, and the settings of a run on one card.

    Raises:
        ValueError: a model's config cannot be read, or its base cannot be quantised.
    """
    from trl import get_peft_config

    from grpo_plus.qlora.checks import Request, storage_problems
    from grpo_plus.qlora.model import method_of
    from grpo_plus.training.update import planned
    from grpo_verifiers.errors import raise_all

    config = read_model_config(path, trust_remote_code=trusts_code)
    bits, double = storage_of(model, path, config, trusts_code=trusts_code)
    shape = shape_of(config, path)
    raise_all(storage_problems(Request(path, None, method_of(config), requested=bits is not None)))
    settings = planned(args, get_peft_config(model), bits=bits, double=double)
    if bits is None and model.dtype not in ("auto", "bfloat16", "float16"):
        settings = settings.but(width=4)
    return shape, settings.but(prompt_length=prompt_length)


def memory_lines(args: Any, shape: ModelShape, settings: Settings, vram: float | None) -> Iterator[str]:
    """Yield the table of a run's memory; for a card of ``vram`` GiB by its name, that of settings that fit it.

    Raises:
        DoesNotFitError: no settings fit the card.
    """
    plain, reported = estimate(shape, settings), (vram or 0) * REPORTED
    fits = f"fits a card of {vram or 0:g} GiB, which reports {reported:.1f} GiB or more"
    if vram is None or plain.peak <= reported * GIB:
        yield from _table(shape, settings, plain)
        yield from [] if vram is None else [f"{fits}, as configured"]
        return
    rows = args.per_device_train_batch_size * args.gradient_accumulation_steps
    batch = args.per_device_train_batch_size * args.steps_per_generation
    generations = math.gcd(args.num_generations, rows, batch)
    try:
        plan = fit(shape, settings, reported * GIB, generations=generations)
    except DoesNotFitError:
        yield from _table(shape, settings, plain)
        raise
    yield from _table(shape, plan.settings, plan.estimate)
    yield f"{fits}, with these changes:"
    yield from (f"  - {change}" for change in plan.changes)
    if args.steps_per_generation != args.gradient_accumulation_steps:
        yield f"  - per_device_train_batch_size times steps_per_generation stays {batch}"
    yield from (f"  {line}" for line in _yaml(plan, rows))


def uncounted(args: Any, *, reward_model: bool, full_warm_start: bool, prompt_length: int) -> Iterator[str]:
    """Yield the assumptions of the table, and the memory that it does not count."""
    yield f"memory of several cards: nothing is sharded in the table; prompts have {prompt_length} tokens there"
    left_out = {
        "vLLM on the same card (vllm_mode: colocate)": args.use_vllm and args.vllm_mode == "colocate",
        "the critic (12 bytes for each trained weight, and its update)": args.recipe.critic is not None,
        "the reward model (12 bytes for each trained weight, and its update)": args.recipe.reward_model is not None,
        "the reward model (reward_model_name_or_path)": reward_model,
        "the warm start of all weights (warm_start: full)": full_warm_start,
    }
    yield from (f"memory of {name}" for name, here in left_out.items() if here)


def _table(shape: ModelShape, settings: Settings, usage: MemoryEstimate) -> list[str]:
    total = shape.linear_weights + shape.other_weights
    lines = [
        f"{shape.name}: {total / 1e9:.2f}e9 weights, {shape.linear_weights / total:.0%} of them in linear layers",
        (
            f"{settings.micro_batch} completions a pass, {settings.rollout_rows} rows decoded at once, prompts of "
            f"{settings.prompt_length} and completions of {settings.completion_length} tokens, rank {settings.rank}, "
            f"{settings.optimizer}" + ("" if settings.checkpointing else ", no checkpointing")
        ),
    ]
    bits = 4 if settings.four_bit else 8 if settings.eight_bit else 16
    for name, size in usage.parts().items():
        lines.append(f"  {name:<12} {size / GIB:8.3f} GiB  {_WORDS[name].format(bits=bits)}")
    lines += [
        f"  training     {usage.train / GIB:8.3f} GiB",
        f"  rollout      {usage.rollout / GIB:8.3f} GiB",
        f"  peak         {usage.peak / GIB:8.3f} GiB  with the allocator's share and CUDA's own memory; an estimate",
    ]
    return lines


def _yaml(plan: Fit, rows: int) -> list[str]:
    """Return the planner's settings as lines of a config; ``rows`` are the completions of an optimizer step."""
    chosen = plan.settings
    lines = [
        f"lora_r: {chosen.rank}",
        f"gradient_checkpointing: {str(chosen.checkpointing).lower()}",
        f"per_device_train_batch_size: {chosen.micro_batch}",
        f"gradient_accumulation_steps: {rows // chosen.micro_batch}",
        f"max_completion_length: {chosen.completion_length}",
    ]
    if chosen.rollout_rows:
        lines.append(f"rollout: {{how: auto, rows: {chosen.rollout_rows}}}")
    return lines
