"""The settings of a run that fit a card."""

from collections.abc import Iterator
from dataclasses import dataclass

from grpo_plus.memory.estimate import GIB, MemoryEstimate, Settings, estimate
from grpo_plus.memory.shape import ModelShape
from grpo_verifiers.errors.messages import counted

SHORTEST = 128
"""The least completion length that is tried: shorter answers are rarely complete."""


@dataclass(frozen=True)
class Fit:
    """Settings that fit, their memory, and the changes of the requested settings in words."""

    settings: Settings
    estimate: MemoryEstimate
    changes: tuple[str, ...]


class DoesNotFitError(ValueError):
    """No settings fit the card; the message names a way out."""


def fit(shape: ModelShape, requested: Settings, capacity: float, *, generations: int) -> Fit:
    """Return the settings closest to the requested ones that fit in ``capacity`` bytes.

    Settings without effect on the result change first: rows decoded at once and completions per pass (the generation
    batch is the same), then checkpointing is switched on. After that completions get shorter, then the adapters
    smaller. ``micro_batch`` and ``rollout_rows`` are upper limits. Micro-batches are divisors of ``generations``, the
    completions of one prompt.
    """
    for candidate in _candidates(requested, generations):
        memory = estimate(shape, candidate)
        if memory.peak <= capacity:
            best = _most_rows(shape, candidate, requested.rollout_rows, capacity)
            return Fit(best, estimate(shape, best), tuple(_changes(requested, best)))
    least = estimate(shape, _least(requested))
    resident = least.weights / GIB
    advice = (
        "its weights alone do not fit: take a smaller model or a larger card"
        if least.weights > capacity
        else f"completions of {SHORTEST} tokens, one at a time, do not fit: take a smaller model or a shorter prompt"
    )
    share = "half of the 8-bit" if requested.eight_bit else "a quarter of the"
    quantise = "" if requested.four_bit else f" (or load_in_4bit: true, which takes {share} weights)"
    raise DoesNotFitError(
        f"{shape.name} does not fit in {capacity / GIB:.1f} GiB: the weights take {resident:.1f} GiB, the "
        f"smallest step {least.peak / GIB:.1f} GiB; {advice}{quantise}."
    )


def _candidates(requested: Settings, generations: int) -> Iterator[Settings]:
    """Yield settings from the requested ones downwards, in the order of the changes."""
    sizes = [size for size in range(requested.micro_batch, 0, -1) if generations % size == 0]
    checkpointing = [requested.checkpointing] if requested.checkpointing else [False, True]
    for rank in dict.fromkeys((requested.rank, min(requested.rank, 8), min(requested.rank, 4))):
        length = requested.completion_length
        while True:
            for recompute in checkpointing:
                for size in sizes:
                    yield requested.but(
                        micro_batch=size,
                        rollout_rows=1,
                        prompts=1,
                        checkpointing=recompute,
                        completion_length=length,
                        rank=rank,
                    )
            if length <= SHORTEST:
                break
            length = max(SHORTEST, (length - max(1, length // 8)) // 64 * 64)


def _most_rows(shape: ModelShape, settings: Settings, most: int, capacity: float) -> Settings:
    """Return the settings with as many rows decoded at once as fit, up to ``most``."""
    low, high = 1, max(1, most)
    while low < high:
        middle = (low + high + 1) // 2
        tried = settings.but(rollout_rows=middle, prompts=min(middle, settings.prompts))
        low, high = (middle, high) if estimate(shape, tried).peak <= capacity else (low, middle - 1)
    return settings.but(rollout_rows=low)


def _least(requested: Settings) -> Settings:
    length = min(SHORTEST, requested.completion_length)
    return requested.but(micro_batch=1, rollout_rows=1, prompts=1, checkpointing=True, completion_length=length, rank=4)


def _changes(requested: Settings, chosen: Settings) -> Iterator[str]:
    if chosen.completion_length < requested.completion_length:
        yield f"completions are at most {chosen.completion_length} tokens long, not {requested.completion_length}"
    if chosen.rank < requested.rank:
        yield f"adapters have rank {chosen.rank}, not {requested.rank}"
    if chosen.checkpointing and not requested.checkpointing:
        yield "activations are computed again in the backward pass (gradient_checkpointing)"
    size, rows = chosen.micro_batch, chosen.rollout_rows
    if size < requested.micro_batch:
        yield f"{counted(size, 'completion')} a pass, not {requested.micro_batch}: same gradient, more passes"
    if rows < requested.rollout_rows:
        yield f"{counted(rows, 'row')} decoded at once, not {requested.rollout_rows}: same completions, slower"
