"""The settings that Unsloth publishes for GRPO on one card, run by this trainer, with random weights of the same shape.

As published: rank 32 on all linear layers of Llama 3.1 8B in 4 bits, learning rate 5e-6 with betas 0.9 and 0.99, weight
decay 0.1, cosine, 8-bit paged AdamW, gradient norm 0.1, one completion a pass. Its own figures: the notebook "Llama3.1
(8B) GRPO" (256 + 768 tokens, 6 completions) runs on a card of 16 GB; 54.3 GB at 20k tokens, where TRL with Flash
Attention 2 took 510.8 GB (unsloth.ai/blog/grpo, February 2025); 47,500 tokens at most on an H100 of 80 GB
(docs.unsloth.ai/basics/memory-efficient-rl). Its code is not part of this project.
"""

# ruff: noqa: SLF001 - TRL has no public way to hand its trainer a generation batch
import time
from typing import Any

import torch

from benchmarks.gpu.check import GIB, Context
from benchmarks.gpu.checks.setup import lora, prompts, release, reward, settings
from benchmarks.gpu.models import config_of, number_tokenizer, random_model

PUBLISHED = {"notebook": "a card of 16 GB", "20k": "54.3 GB, TRL 510.8", "longest": "47,500 tokens on 80 GB"}


def notebook(context: Context) -> None:
    """Two whole steps: drawn, scored, trained."""
    prompt, completion = (8, 16) if context.tiny else (256, 768)
    trainer = _trainer(context, prompt, completion, steps=2)
    if context.cuda:
        torch.cuda.reset_peak_memory_stats()
    begun = time.perf_counter()
    trainer.train()
    seconds = (time.perf_counter() - begun) / 2
    peak = _peak(context)
    context.report(tokens=prompt + completion, seconds_a_step=seconds, peak_gib=peak)
    context.headline(
        f"{prompt} + {completion} tokens, G = 6: {peak:.1f} GiB, {seconds:.1f} s a step "
        f"(theirs: {PUBLISHED['notebook']})"
    )


def long(context: Context, *, tokens: int | None = None) -> None:
    """Updates on made-up completions of so many tokens, one a pass; None: ever longer, until memory ends."""
    lengths = [tokens] if tokens is not None else [20_480 * 2**at for at in range(8)]
    if context.tiny:
        lengths = [64] if tokens is not None else [64, 128]
    if context.cuda and tokens is None:
        torch.cuda.set_per_process_memory_fraction(1.0)  # it runs alone
    trainer = _trainer(context, 256, max(lengths), steps=1)
    told, fitted = [], 0
    for length in lengths:
        if told and context.left < 4 * told[-1][2]:
            break
        try:
            seconds, peak = _update(context, trainer, length)
        except torch.OutOfMemoryError as error:
            if len(lengths) == 1:
                raise
            context.report(ended=str(error).splitlines()[0][:200])
            break
        fitted = length
        told.append((length, peak, seconds))
        context.report(**{f"at_{length}": {"peak_gib": peak, "seconds": seconds}})
        release()
    case = "longest" if tokens is None else "20k"
    if not fitted:
        context.expect(holds=False, otherwise=f"not even {lengths[0]} tokens fit")
        return
    shown = ", ".join(f"{length:,} tokens {peak:.1f} GiB" for length, peak, _ in told[-3:])
    context.headline(f"update of a completion: {shown} (theirs: {PUBLISHED[case]})")


def _update(context: Context, trainer: Any, length: int) -> tuple[float, float]:
    """Seconds and peak of forward and backward over a completion."""
    vocabulary, device = trainer.model.config.vocab_size, context.device
    random = torch.Generator().manual_seed(0)
    ids = torch.randint(2, vocabulary, (1, 256 + length), generator=random).to(device)
    ones = torch.ones_like(ids)
    inputs = {
        "prompt_ids": ids[:, :256], "prompt_mask": ones[:, :256], "completion_ids": ids[:, 256:],
        "completion_mask": ones[:, 256:], "advantages": torch.ones(1, device=device),
        "num_items_in_batch": torch.tensor(length, device=device),
    }  # fmt: skip
    trainer.model.train()
    trainer.model.zero_grad(set_to_none=True)
    trainer.args.steps_per_generation = trainer.args.gradient_accumulation_steps = 1
    trainer.current_gradient_accumulation_steps = 1
    trainer._generate_and_score_completions = lambda _: dict(inputs)
    trainer._step, trainer._buffered_inputs = 0, None
    if context.cuda:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
    begun = time.perf_counter()
    loss = trainer.compute_loss(trainer.model, trainer._prepare_inputs([{}]))
    trainer.accelerator.backward(loss)
    if context.cuda:
        torch.cuda.synchronize()
    return time.perf_counter() - begun, _peak(context)


def _trainer(context: Context, prompt: int, completion: int, *, steps: int) -> Any:
    from grpo_plus import GRPOPlusConfig, GRPOPlusTrainer

    generations = 6 if steps > 1 else 2
    config = config_of("tiny" if context.tiny else "llama-8B")
    model = random_model(config, context.device, torch.bfloat16 if context.cuda else torch.float32, four_bit=True)
    args = GRPOPlusConfig(**settings(
        context, max_steps=steps, num_generations=generations, per_device_train_batch_size=1,
        gradient_accumulation_steps=generations,
        max_completion_length=completion, rollout="auto", gradient_checkpointing=True,
        gradient_checkpointing_kwargs={"use_reentrant": False}, learning_rate=5e-6, adam_beta1=0.9, adam_beta2=0.99,
        weight_decay=0.1, warmup_steps=0.1, lr_scheduler_type="cosine", max_grad_norm=0.1, report=False,
        optim="paged_adamw_8bit" if context.real else "adamw_torch",
    ))  # fmt: skip
    return GRPOPlusTrainer(
        model, reward, args, prompts(8, prompt), processing_class=number_tokenizer(config.vocab_size),
        peft_config=lora(32 if not context.tiny else 4),
    )  # fmt: skip


def _peak(context: Context) -> float:
    return torch.cuda.max_memory_allocated() / GIB if context.cuda else 0.0
