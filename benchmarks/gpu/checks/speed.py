"""Where the seconds of a step go, stock TRL and this project one after the other in one process."""

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

from benchmarks.gpu.check import GIB, Context
from benchmarks.gpu.checks.setup import half_dead, lora, prompts, release, settings
from benchmarks.gpu.models import config_of, number_tokenizer, random_model

PARTS = ("rollout", "scoring", "update")


def run(context: Context, *, size: str, four_bit: bool, rows: int = 32, micro_batch: int = 4, steps: int = 1) -> None:
    """Steps of 8 completions of 512 tokens a prompt, half of the prompts without contrast; the first step warms up."""
    from trl import GRPOConfig, GRPOTrainer

    from grpo_plus import GRPOPlusConfig, GRPOPlusTrainer

    if context.tiny:
        size, rows = "tiny", 16
    kinds = {
        "TRL": (GRPOTrainer, GRPOConfig, {}),
        "ours": (GRPOPlusTrainer, GRPOPlusConfig, {"rollout": "auto", "report": False}),
    }
    found = {}
    for name, (trainer, config, more) in kinds.items():
        found[name] = _measured(
            context, size, trainer, config, more, four_bit=four_bit, rows=rows, micro_batch=micro_batch, steps=steps
        )
        context.report(**{name: found[name]})
        release()
    ratios = {part: found["TRL"][part] / max(1e-9, found["ours"][part]) for part in (*PARTS, "step")}
    context.report(times_as_fast=ratios)
    shown = " / ".join(f"{found['TRL'][part]:.1f} → {found['ours'][part]:.1f}" for part in PARTS)
    peaks = "" if not context.cuda else f"; peak {found['TRL']['peak']:.1f} → {found['ours']['peak']:.1f} GiB"
    context.headline(f"s in rollout / scoring / update: {shown}; a step {ratios['step']:.2f} times as fast{peaks}")


def _measured(
    context: Context, size: str, kind: type[Any], config: type[Any], more: dict[str, Any], *, four_bit: bool, rows: int,
    micro_batch: int, steps: int,
) -> dict[str, float]:  # fmt: skip
    """Seconds of each part of a step, and the peak."""
    spent = dict.fromkeys((*PARTS, "step"), 0.0)
    begun = [0.0]

    def timed(part: str, work: Callable[[], Any]) -> Any:
        start = _now(context)
        result = work()
        spent[part] += _now(context) - start
        return result

    class Timed(kind):  # type: ignore[misc,valid-type]  # stock or ours
        def _generate_single_turn(self, *arguments: Any, **keywords: Any) -> Any:
            return timed("rollout", lambda: super(Timed, self)._generate_single_turn(*arguments, **keywords))

        def _get_per_token_logps_and_entropies(self, *arguments: Any, **keywords: Any) -> Any:
            def score() -> Any:
                return super(Timed, self)._get_per_token_logps_and_entropies(*arguments, **keywords)

            return score() if torch.is_grad_enabled() else timed("scoring", score)

        def training_step(self, *arguments: Any, **keywords: Any) -> Any:
            if self.state.global_step == 1 and not begun[0]:  # the first step has warmed up
                for part in spent:
                    spent[part] = 0.0
                begun[0] = 1.0
                if context.cuda:
                    torch.cuda.reset_peak_memory_stats()
            return timed("step", lambda: super(Timed, self).training_step(*arguments, **keywords))

    torch.manual_seed(0)
    dtype = torch.bfloat16 if context.cuda else torch.float32
    model = random_model(config_of(size), context.device, dtype, four_bit=four_bit)
    args = config(**settings(
        context, max_steps=steps + 1, num_generations=8, beta=0.01, per_device_train_batch_size=micro_batch,
        gradient_accumulation_steps=rows // micro_batch, max_completion_length=16 if context.tiny else 512,
        gradient_checkpointing=True, gradient_checkpointing_kwargs={"use_reentrant": False}, learning_rate=2e-5,
        optim="paged_adamw_8bit" if context.real else "adamw_torch", **more,
    ))  # fmt: skip
    trainer = Timed(
        model, half_dead, args, prompts(64, 16 if context.tiny else 256),
        processing_class=number_tokenizer(model.config.vocab_size), peft_config=lora(),
    )  # fmt: skip
    trainer.train()
    result = {part: value / steps for part, value in spent.items()}
    result["update"] = result["step"] - result["rollout"] - result["scoring"]
    result["peak"] = torch.cuda.max_memory_allocated() / GIB if context.cuda else 0.0
    return result


def decoding(context: Context, *, size: str = "1.5B") -> None:
    """Tokens a second of `generate`, ``rollout: auto`` and transformers' continuous batching, by rows."""
    from benchmarks.decode import generated
    from grpo_plus.sampling.decode import decode
    from grpo_plus.sampling.sampler import Sampling

    most, rows_of = (128, (8, 32, 128)) if not context.tiny else (8, (8,))
    config = config_of("tiny" if context.tiny else size)
    model = random_model(config, context.device, torch.bfloat16 if context.cuda else torch.float32).eval()
    sampling = Sampling(stops=(), most=most, pad=0)
    speeds: dict[int, dict[str, float]] = {}
    for rows in rows_of:
        asked = [[(7 * at + place) % 500 + 2 for place in range(64)] for at in range(rows // 8) for _ in range(8)]
        ways: dict[str, Callable[[], Any]] = {
            "generate": lambda asked=asked: generated(model, asked, sampling),  # type: ignore[misc]
            "auto": lambda asked=asked: decode(model, asked, sampling, device=context.device).completions,  # type: ignore[misc]
        }
        if context.real:
            ways["continuous"] = lambda asked=asked: _continuous(model, asked, most)  # type: ignore[misc]
        speeds[rows] = {}
        for name, way in ways.items():
            try:
                way()  # warms up
                seconds = statistics.median(_timed(context, way) for _ in range(1 if context.tiny else 2))
            except Exception as error:
                if name != "continuous":
                    raise
                context.report(continuous_error=f"{type(error).__name__}: {error}"[:200])  # not ours to mend
                continue
            speeds[rows][name] = rows * most / seconds
        context.report(**{f"rows_{rows}": speeds[rows]})
    told = [", ".join(f"{name} {speed:,.0f}" for name, speed in found.items()) for found in speeds.values()]
    by_rows = "; ".join(f"{rows}: {text}" for rows, text in zip(speeds, told, strict=True))
    context.headline(f"tokens/s by rows: {by_rows}")


def _continuous(model: Any, asked: list[list[int]], most: int) -> Any:
    from transformers import GenerationConfig

    config = GenerationConfig(max_new_tokens=most, do_sample=True, eos_token_id=-1, pad_token_id=0)
    return model.generate_batch(inputs=asked, generation_config=config)


def _timed(context: Context, work: Callable[[], Any]) -> float:
    begun = _now(context)
    work()
    return _now(context) - begun


def _now(context: Context) -> float:
    if context.cuda:
        torch.cuda.synchronize()
    return time.perf_counter()
