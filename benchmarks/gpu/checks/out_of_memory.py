"""A fence that a pass does not fit in: the run goes on in smaller parts, and moves the weights as without the fence."""

from typing import Any

import torch

from benchmarks.gpu.check import Context
from benchmarks.gpu.checks.setup import lora, prompts, release, reward, settings
from benchmarks.gpu.models import config_of, number_tokenizer, random_model

APART = {"update": 2e-2, "scoring": 2e-2}
"""Largest difference of the step in bf16, where parts of another size round otherwise."""


def run(context: Context, *, size: str = "0.5B", share: float = 0.75) -> None:
    """An update with all weights, with adapters and in 4 bits; a pass without gradient; rows drawn at once."""
    told = []
    for kind in ("update, full", "update, LoRA", "update, 4 bits", "scoring, LoRA"):
        where, _, model = kind.partition(", ")
        peak, _, moved = _step(context, size, where, model, None)
        fence = None if peak is None else _between(peak, share)
        _, retries, again = _step(context, size, where, model, fence)
        apart = float((again - moved).norm() / moved.norm())
        context.report(**{kind: {"peak": peak, "fence": fence, "retries": retries, "apart": apart}})
        if context.cuda:
            context.expect(retries > 0, f"{kind}: memory did not run out behind the fence")
        context.expect(apart <= APART[where], f"{kind}: the step is apart by {apart:.1e}, expected {APART[where]:g}")
        told.append(f"{kind}: {retries} retries, apart by {apart:.0e}")
    told.append(_drawing(context))
    context.headline("; ".join(told))


def _between(peak: tuple[float, float], share: float) -> float:
    """So far up from what stays between passes to the peak of the pass."""
    low, high = peak
    return low + share * (high - low)


def _step(context: Context, size: str, where: str, kind: str, fence: float | None) -> tuple[Any, int, torch.Tensor]:
    """One step; the memory before and in its largest pass, how often a pass ran again, and how the weights moved."""
    from grpo_plus import GRPOPlusConfig, GRPOPlusTrainer

    config = config_of("tiny" if context.tiny else size)
    seen: list[float] = []

    class Fenced(GRPOPlusTrainer):
        """Its fence stands around the passes that are looked at, and not around drawing."""

        def _get_per_token_logps_and_entropies(self, *arguments: Any, **keywords: Any) -> Any:
            if torch.is_grad_enabled() or where != "scoring":
                return super()._get_per_token_logps_and_entropies(*arguments, **keywords)
            with _Fence(context, fence, seen):
                return super()._get_per_token_logps_and_entropies(*arguments, **keywords)

        def training_step(self, *arguments: Any, **keywords: Any) -> Any:
            if where != "update" or self._step % self.args.steps_per_generation == 0:
                return super().training_step(*arguments, **keywords)
            with _Fence(context, fence, seen):
                return super().training_step(*arguments, **keywords)

    torch.manual_seed(0)
    model = random_model(
        config, context.device, torch.bfloat16 if context.real else torch.float32, four_bit=kind == "4 bits"
    )
    args = GRPOPlusConfig(**settings(
        context, max_steps=1, num_generations=8, per_device_train_batch_size=8, gradient_accumulation_steps=2,
        max_completion_length=24 if context.tiny else 1024, rollout="auto", learning_rate=1e-3, optim="sgd",
        max_grad_norm=0.0, beta=0.01 if where == "scoring" else 0.0, bf16=context.real, report=False,
    ))  # fmt: skip
    trainer = Fenced(
        model, reward, args, prompts(8, 4), processing_class=number_tokenizer(config.vocab_size),
        peft_config=None if kind == "full" else lora(),
    )  # fmt: skip
    trained = [parameter for parameter in trainer.model.parameters() if parameter.requires_grad]
    before = [parameter.detach().to("cpu", torch.float32, copy=True) for parameter in trained]
    trainer.train()
    moved = torch.cat([(p.detach().float().cpu() - start).flatten() for p, start in zip(trained, before, strict=True)])
    retries = int(trainer.pipeline.retry.count)
    del trainer, trained, model
    release()
    peak = (min(seen), max(seen)) if seen else None
    return peak, retries, moved


class _Fence:
    """A bound on what PyTorch may take, or, where there is none, a note of what it takes."""

    def __init__(self, context: Context, fence: float | None, seen: list[float]) -> None:
        self._context, self._fence, self._seen = context, fence, seen

    def __enter__(self) -> None:
        if not self._context.cuda:
            return
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        if self._fence is None:
            self._seen.append(float(torch.cuda.memory_reserved()))
        else:
            total = torch.cuda.get_device_properties(0).total_memory
            torch.cuda.set_per_process_memory_fraction(min(1.0, self._fence / total))

    def __exit__(self, *_: object) -> None:
        if not self._context.cuda:
            return
        if self._fence is None:
            self._seen.append(float(torch.cuda.max_memory_reserved()))
        torch.cuda.set_per_process_memory_fraction(1.0)


def _drawing(context: Context) -> str:
    """Rows drawn behind a fence: fewer at once, and the same completions."""
    from grpo_plus.sampling.decode import decode
    from grpo_plus.sampling.sampler import Sampling

    config = config_of("tiny")
    model = random_model(config, context.device, torch.float32)
    asked = [[2 + at % 400, 3, 4] for at in range(64) for _ in range(2 if context.tiny else 16)]
    sampling, seen, drawn = Sampling(stops=(1,), most=16 if context.tiny else 256, pad=0), [], []
    failures = 0
    for fenced in (False, True):
        torch.manual_seed(0)
        fence = _between((min(seen), max(seen)), 0.6) if fenced and seen else None
        with _Fence(context, fence, seen):
            found = decode(model, asked, sampling, device=context.device)
        drawn.append(found.completions)
        failures = found.failures
        release()
    equal = sum(one == other for one, other in zip(*drawn, strict=True)) / len(asked)
    context.report(drawing={"failures": failures, "equal": equal})
    if context.cuda:
        context.expect(failures > 0, "drawing: memory did not run out behind the fence")
    context.expect(equal >= 0.98, f"drawing: only {equal:.0%} of the completions are the same")
    return f"drawing: halved {failures} time(s), {equal:.0%} equal"
