"""Micro-batches, inner iterations and optimizer steps on a generation batch, as a config sets them."""

from typing import Any

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


def at_least_1(count: Any) -> int:
    """A count; one that is no count is reported where the field is checked, and is 1 here."""
    return max(1, int(count or 1))
