"""One GRPO step behind a fence of a smaller card: measured peaks of its two phases beside the planner's."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from benchmarks.gpu.check import GIB, Context, Skipped
from benchmarks.gpu.checks.setup import lora, prompts, reward, settings
from benchmarks.gpu.models import config_of, number_tokenizer, random_model
from benchmarks.gpu.results import OFF


class _Peaks:
    """The most memory in use while completions were drawn, and since.

    What PyTorch reserves is more and says little: a cache that grows leaves blocks that are each a little too small,
    which are given back only at the fence.
    """

    def __init__(self) -> None:
        self.rollout = 0.0

    @contextmanager
    def sampling(self) -> Iterator[None]:
        """Around the sampling of completions."""
        _reset()
        yield
        self.rollout = float(torch.cuda.max_memory_allocated())
        _reset()


def _reset() -> None:
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()


def run(context: Context, *, size: str, card: float) -> None:
    """Two steps with the planner's settings for a card of so many GiB; no completion ends early."""
    from grpo_plus import GRPOPlusConfig, GRPOPlusTrainer
    from grpo_plus.memory.estimate import ALLOCATOR, RUNTIME, Settings
    from grpo_plus.memory.fit import DoesNotFitError, fit
    from grpo_plus.memory.shape import shape_of

    if context.tiny:
        size, card = "tiny", 2.0
    elif context.cuda:  # a card of that class has a little less
        card = min(card, (torch.cuda.mem_get_info()[0] + RUNTIME) / GIB)
    length = 16 if context.tiny else 512
    asked = Settings(micro_batch=4, rollout_rows=16, prompts=2, completion_length=length)
    config = config_of(size)
    try:
        found = fit(shape_of(config, size), asked, card * GIB, generations=8)
    except DoesNotFitError as error:
        raise Skipped(str(error)) from error
    chosen = found.settings
    dtype = torch.bfloat16 if context.cuda else torch.float32
    model = random_model(config, context.device, dtype, four_bit=True)
    if context.cuda:
        # What CUDA takes outside PyTorch is part of the card, and not of the fence.
        total = torch.cuda.get_device_properties(0).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, (card * GIB - RUNTIME) / total))
    args = GRPOPlusConfig(**settings(
        context, max_steps=2, num_generations=8, per_device_train_batch_size=chosen.micro_batch,
        gradient_accumulation_steps=16 // chosen.micro_batch, max_completion_length=chosen.completion_length,
        engine="stock", rollout={"how": "auto", "rows": chosen.rollout_rows}, learning_rate=2e-5,
        gradient_checkpointing=chosen.checkpointing, gradient_checkpointing_kwargs={"use_reentrant": False},
        optim=chosen.optimizer if context.real else "adamw_torch", report=False,
    ))  # fmt: skip
    peaks = _Peaks() if context.cuda else None
    trainer = GRPOPlusTrainer(
        model, reward, args, prompts(8, chosen.prompt_length), processing_class=number_tokenizer(config.vocab_size),
        peft_config=lora(chosen.rank),
    )  # fmt: skip
    if peaks is not None:
        trainer.pipeline.clock.sampling = peaks.sampling
    begun = time.perf_counter()
    trainer.train()
    seconds = (time.perf_counter() - begun) / 2
    planned = found.estimate.peak / GIB
    context.report(
        size=size, card=round(card, 2), micro_batch=chosen.micro_batch, rows=chosen.rollout_rows,
        completion=chosen.completion_length, rank=chosen.rank, seconds_a_step=seconds,
        retries=trainer.pipeline.retry.count, planned=planned,
        parts={name: one / GIB for name, one in found.estimate.parts().items()},
    )  # fmt: skip
    head = f"{chosen.completion_length} tokens, {chosen.micro_batch} a pass, {chosen.rollout_rows} rows"
    head += f": planned {planned:.2f}"
    if peaks is None:
        context.headline(f"{head} GiB")
        return
    torch.cuda.synchronize()
    train, reserved = float(torch.cuda.max_memory_allocated()), torch.cuda.max_memory_reserved() / GIB
    phases = {"train": (found.estimate.train, train), "rollout": (found.estimate.rollout, peaks.rollout)}
    context.report(points={phase: [parts / GIB, peak / GIB] for phase, (parts, peak) in phases.items()})
    measured = (ALLOCATOR * max(train, peaks.rollout) + RUNTIME) / GIB
    ratio = measured / planned
    context.report(measured=measured, ratio=ratio, reserved=reserved)
    retries = trainer.pipeline.retry.count
    context.expect(retries == 0, f"memory ran out {retries} time(s), and the step went through in parts")
    if context.real and not context.tiny:
        context.expect(abs(ratio - 1) <= OFF, f"measured {measured:.2f} GiB is {ratio:.2f} of the plan")
    context.headline(f"{head}, measured {measured:.2f} GiB ({ratio:.2f}), {seconds:.1f} s a step")
