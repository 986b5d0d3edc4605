"""The settings of a run that fit a card."""

from collections.abc import Iterator
from dataclasses import dataclass

from grpo_plus.memory.estimate import GIB, MemoryEstimate, Settings, estimate
from grpo_plus.memory.shape import ModelShape

SHORTEST = 128
"""Completions are not cut below this to make a run fit: a shorter answer is rarely one."""


@dataclass(frozen=True)
class Fit:
    """Settings that fit, their memory, and in words what differs from what was asked for."""

    settings: Settings
    estimate: MemoryEstimate
    changes: tuple[str, ...]


class DoesNotFitError(ValueError):
    """No settings fit the card; the message says what would."""


def fit(shape: ModelShape, asked: Settings, capacity: float, *, generations: int) -> Fit:
    """Find the settings closest to what was asked for that stay within ``capacity`` bytes.

    What does not change the result of training gives first: rows decoded at once and completions per pass (the
    generation batch stays what it was), then checkpointing is switched on. Only then the completions get shorter, then
    the adapters smaller. ``micro_batch`` and ``rollout_rows`` are the most that is tried. Micro-batches are divisors of
    ``generations``, the completions of one prompt.
    """
    for candidate in _candidates(asked, generations):
        found = estimate(shape, candidate)
        if found.peak <= capacity:
            best = _most_rows(shape, candidate, asked.rollout_rows, capacity)
            return Fit(best, estimate(shape, best), tuple(_changes(asked, best)))
    least = estimate(shape, _least(asked))
    resident = least.weights / GIB
    advice = (
        "its weights alone do not fit: take a smaller model or a larger card"
        if least.weights > capacity
        else f"completions of {SHORTEST} tokens, one at a time, do not fit: take a smaller model or a shorter prompt"
    )
    share = "half of the 8-bit" if asked.eight_bit else "a quarter of the"
    quantise = "" if asked.four_bit else f" (or load_in_4bit: true, which takes {share} weights)"
    outside, coarse = shape.other_weights / (shape.linear_weights + shape.other_weights), ""
    if outside > 0.5:  # mixtures keep their experts in one tensor, which bitsandbytes leaves as it is
        quantise, coarse = (
            "",
            f" ({outside:.0%} of them outside of linear layers, which bitsandbytes does not quantise)",
        )
    for head in least.heads:
        quantise += (
            f"; the {head.name.replace('_', ' ')} (on: {head.kind}) takes {head.resident / GIB:.1f} GiB at all times"
        )
    raise DoesNotFitError(
        f"{shape.name} does not fit in {capacity / GIB:.1f} GiB: the weights take {resident:.1f} GiB{coarse}, the "
        f"smallest step {least.peak / GIB:.1f} GiB; {advice}{quantise}."
    )


def _candidates(asked: Settings, generations: int) -> Iterator[Settings]:
    """From what was asked for downwards, in the order in which things give."""
    sizes = [size for size in range(asked.micro_batch, 0, -1) if generations % size == 0]
    checkpointing = [asked.checkpointing] if asked.checkpointing else [False, True]
    for rank in dict.fromkeys((asked.rank, min(asked.rank, 8), min(asked.rank, 4))):
        length = asked.completion_length
        while True:
            for recompute in checkpointing:
                for size in sizes:
                    yield asked.but(
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
    """As many rows decoded at once as fit, up to ``most``."""
    low, high = 1, max(1, most)
    while low < high:
        middle = (low + high + 1) // 2
        tried = settings.but(rollout_rows=middle, prompts=min(middle, settings.prompts))
        low, high = (middle, high) if estimate(shape, tried).peak <= capacity else (low, middle - 1)
    return settings.but(rollout_rows=low)


def _least(asked: Settings) -> Settings:
    length = min(SHORTEST, asked.completion_length)
    return asked.but(micro_batch=1, rollout_rows=1, prompts=1, checkpointing=True, completion_length=length, rank=4)


def _changes(asked: Settings, chosen: Settings) -> Iterator[str]:
    if chosen.completion_length < asked.completion_length:
        yield f"completions are at most {chosen.completion_length} tokens long, not {asked.completion_length}"
    if chosen.rank < asked.rank:
        yield f"adapters have rank {chosen.rank}, not {asked.rank}"
    if chosen.checkpointing and not asked.checkpointing:
        yield "activations are computed again in the backward pass (gradient_checkpointing)"
    if chosen.micro_batch < asked.micro_batch:
        yield f"{chosen.micro_batch} completions a pass, not {asked.micro_batch}: same gradient, more passes"
    if chosen.rollout_rows < asked.rollout_rows:
        yield f"{chosen.rollout_rows} rows decoded at once, not {asked.rollout_rows}: same completions, slower"
