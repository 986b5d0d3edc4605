"""Micro-batches, inner iterations and optimizer steps on a generation batch, as a config sets them."""

from typing import Any

from grpo_plus.recipe.forms import name_of
from grpo_plus.recipe.launch import process_count


def steps_per_generation(config: Any) -> int:
    """Micro-batches that one process trains on in a generation batch, also before TRL has filled the field in."""
    if config.steps_per_generation is not None:
        return at_least_1(config.steps_per_generation)
    if config.generation_batch_size is None:
        return at_least_1(config.gradient_accumulation_steps)
    rows = at_least_1(config.per_device_train_batch_size) * process_count()
    return at_least_1(config.generation_batch_size // rows)


def moves_within_batch(config: Any) -> bool:
    """Whether the policy moves between the first and the last look at a generation batch.

    A generation batch is looked at ``steps_per_generation * num_iterations`` micro-batches long, and the optimizer
    steps after every ``gradient_accumulation_steps``: never in between where the second is a multiple of the first.
    """
    looks = steps_per_generation(config) * at_least_1(config.num_iterations)
    return at_least_1(config.gradient_accumulation_steps) % looks != 0


def ratio_moves(config: Any) -> bool:
    """Whether any ratio may be other than 1: the policy moves within a batch, or trains on groups of an earlier one."""
    return moves_within_batch(config) or name_of(config, "dead_groups") == "replay"


def at_least_1(count: Any) -> int:
    """A count; one that is no count is reported where the field is checked, and is 1 here."""
    return max(1, int(count or 1))


LEAST = {"stop_fraction": 2, "stop_rise": 3}
"""Inner iterations with which a rule can skip one: a rise is known after the second."""


def stop_problems(config: Any, rule: str) -> list[str]:
    """Why a ``rule`` that ends inner iterations early cannot work with a training config; empty when it can."""
    problems = []
    least, iterations = LEAST[rule], config.num_iterations
    if iterations < least:
        why = (
            "so there are none to end" if least == 2 else "and a rise is known after the second: nothing is left to end"
        )
        text = f"{rule} ends the inner iterations on a batch early, but num_iterations is {iterations}, {why}"
        problems.append(f"{text}: set num_iterations to {least} or more, or remove {rule}.")
    accumulation, steps = at_least_1(config.gradient_accumulation_steps), steps_per_generation(config)
    if steps % accumulation:
        text = (
            f"{rule} skips whole optimizer steps, but an iteration of steps_per_generation ({steps}) micro-batches is"
        )
        problems.append(
            f"{text} no multiple of gradient_accumulation_steps ({accumulation}): make it one, or remove {rule}."
        )
    if config.fp16:
        problems.append(
            f"{rule} leaves optimizer steps without gradients, which the gradient scaler of fp16 cannot take: use "
            f"bf16, or remove {rule}."
        )
    if config.deepspeed:
        problems.append(
            f"{rule} leaves optimizer steps without gradients, which DeepSpeed's engine cannot take: use DDP or FSDP, "
            f"or remove {rule}."
        )
    return problems
