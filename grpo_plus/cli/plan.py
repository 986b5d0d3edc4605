"""``grpo-plus plan``: estimates of memory and time from the settings of a run, and settings that fit a GPU."""

import math
import os
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grpo_plus.cli import UserError
from grpo_plus.cli._parser import CommandParser
from grpo_plus.cli._quick_checks import check_early, on_cpu

if TYPE_CHECKING:
    from grpo_plus.cli._arguments import Parsed
    from grpo_plus.memory.estimate import MemoryEstimate, Settings
    from grpo_plus.memory.fit import Fit
    from grpo_plus.memory.shape import ModelShape
    from grpo_plus.record import Run


PROG = "grpo-plus plan"
OWN_OPTIONS = ("--vram", "--prompt-length")
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
_HEADS = {
    "trunk": ("a head on the policy's hidden states", "hidden states of the generation batch, on their way to the CPU"),
    "adapter": ("an adapter of its own and Adam's moments, float32", "its gradients and activations"),
    "model": ("a model of its own and Adam's moments, float32", "its gradients, activations and narrow copies"),
}


def run(arguments: Sequence[str]) -> int:
    """Print the estimate for ``train`` on a CUDA GPU; with ``--vram``, also settings that fit."""
    parser = CommandParser(
        prog=PROG,
        description=__doc__,
        epilog="Every option of grpo-plus train works here as well, with a config or alone: grpo-plus train --help.",
        usage=f"{PROG} [config.yaml] [--vram GIB] [--prompt-length N] [--any.option VALUE …]",
    )
    parser.add_argument("--vram", type=float, help="the card's memory in GiB: also prints the settings that fit it")
    parser.add_argument("--prompt-length", type=int, default=256, help="tokens of a prompt (default 256)")
    options, rest = parser.parse_known_args(list(arguments))
    if options.vram is not None and not 0 < options.vram < math.inf:
        raise UserError(f"--vram is {options.vram:g}, expected the card's memory in GiB, like 12.")
    if options.prompt_length < 1:
        raise UserError(f"--prompt-length is {options.prompt_length}, expected at least 1.")
    check_early(rest, own=OWN_OPTIONS)
    os.environ.setdefault("ACCELERATE_USE_CPU", "true")
    from grpo_plus.cli._arguments import parse
    from grpo_plus.cli._data import NO_MODEL
    from grpo_plus.memory.estimate import GIB, estimate
    from grpo_plus.memory.fit import DoesNotFitError, fit
    from grpo_plus.qlora.defaults import Device

    parsed = parse(PROG, on_cpu(rest), own=OWN_OPTIONS, device=Device("cuda", bf16=True))
    if not parsed.model.model_name_or_path:
        raise UserError(NO_MODEL)
    time = list(time_lines(parsed))
    if not parsed.model.use_peft:
        print("\n".join(time), flush=True)
        raise UserError("use_peft is not set: plan counts runs with LoRA adapters only. Set use_peft: true.")
    shape, settings = _read(parsed, options.prompt_length)
    below = [f"  {'; '.join(_notes(parsed, options.prompt_length))}", "", *time]
    if options.vram is None:
        print(_table(shape, settings, estimate(shape, settings)), *below, sep="\n")
        return 0
    args = parsed.training
    rows = args.per_device_train_batch_size * args.gradient_accumulation_steps
    batch = args.per_device_train_batch_size * args.steps_per_generation
    try:
        generations = math.gcd(args.num_generations, rows, batch)
        plan = fit(shape, settings, options.vram * GIB, generations=generations)
    except DoesNotFitError as error:
        print(_table(shape, settings, estimate(shape, settings)), *below, sep="\n")
        raise UserError(str(error)) from error
    print(_table(shape, plan.settings, plan.estimate), *below, sep="\n")
    print(f"\nFits in {options.vram:g} GiB" + (" as configured:" if not plan.changes else " with these changes:"))
    for change in plan.changes:
        print(f"  - {change}")
    print("\n" + _yaml(plan, rows))
    return 0


def storage_of(parsed: "Parsed", path: str, config: Any) -> tuple[int | None, bool]:
    """Return the bits (4 or 8) of a quantised base, requested or stored, and True if its scales are quantised too."""
    from trl import get_quantization_config

    from grpo_plus.qlora.defaults import stored_bits
    from grpo_plus.qlora.model import quantises_twice, requested_bits

    values = {**vars(parsed.model), "model_name_or_path": path, "trust_remote_code": parsed.trusts_code}
    quantisation = get_quantization_config(parsed.model) or getattr(config, "quantization_config", None)
    return requested_bits(values) or stored_bits(values), quantises_twice(quantisation)


def _read(parsed: "Parsed", prompt_length: int) -> "tuple[ModelShape, Settings]":
    from trl import get_peft_config

    from grpo_plus.cli._data import model_path
    from grpo_plus.memory.shape import read_model_config, shape_of
    from grpo_plus.qlora.checks import Request, storage_problems
    from grpo_plus.qlora.model import method_of
    from grpo_plus.training.update import planned
    from grpo_verifiers.errors import raise_all

    model, recipe = parsed.model, parsed.training.recipe
    # A shape is planned from a config.json alone.
    name = model.model_name_or_path or ""
    path = name if Path(name).is_file() else model_path(name, parsed.folder)
    try:
        config = read_model_config(path, trust_remote_code=parsed.trusts_code)
        for part in (recipe.critic, recipe.reward_model):
            if part is not None and part.model is not None:
                read_model_config(part.model, trust_remote_code=parsed.trusts_code)
        bits, double = storage_of(parsed, path, config)
        shape = shape_of(config, path)
        raise_all(storage_problems(Request(path, None, method_of(config), requested=bits is not None)))
    except ValueError as error:
        raise UserError(str(error)) from error
    settings = planned(parsed.training, get_peft_config(model), bits=bits, double=double)
    if bits is None and model.dtype not in ("auto", "bfloat16", "float16"):
        settings = settings.but(width=4)
    return shape, settings.but(prompt_length=prompt_length)


def _notes(parsed: "Parsed", prompt_length: int) -> Iterator[str]:
    from grpo_plus.cli._notes import load_notes

    args, script = parsed.training, parsed.script
    yield from (note.rstrip(".") for note in load_notes(parsed))
    yield f"for one card, nothing sharded; prompts of {prompt_length} tokens are assumed (--prompt-length)"
    if args.steps_per_generation != args.gradient_accumulation_steps:
        batch = args.per_device_train_batch_size * args.steps_per_generation
        yield f"keep per_device_train_batch_size times steps_per_generation at {batch}"
    left_out = {
        "vLLM on the same card (vllm_mode: colocate)": args.use_vllm and args.vllm_mode == "colocate",
        "the reward model (reward_model_name_or_path)": bool(script.reward_model_name_or_path),
        "the warm start of all weights (warm_start: full)": bool((parsed.warm_start or {}).get("full")),
    }
    if any(left_out.values()):
        yield f"not counted: {', '.join(name for name, here in left_out.items() if here)}"


def _table(shape: "ModelShape", settings: "Settings", usage: "MemoryEstimate") -> str:
    from grpo_plus.memory.estimate import GIB, estimate

    total = shape.linear_weights + shape.other_weights
    lines = [
        f"{shape.name}: {total / 1e9:.2f}e9 weights, {shape.linear_weights / total:.0%} of them in linear layers",
        (
            f"{settings.micro_batch} completions a pass, {settings.rollout_rows} rows decoded at once, prompts of "
            f"{settings.prompt_length} and completions of {settings.completion_length} tokens, rank {settings.rank}, "
            f"{settings.optimizer}" + ("" if settings.checkpointing else ", no checkpointing")
        ),
        "",
    ]
    bits = 4 if settings.four_bit else 8 if settings.eight_bit else 16
    for name, size in usage.parts().items():
        lines.append(f"  {name:<12} {size / GIB:8.3f} GiB  {_WORDS[name].format(bits=bits)}")
    for head in usage.heads:
        label, (resident, update) = head.name.replace("_", " "), _HEADS[head.kind]
        lines.append(f"  {label:<12} {head.resident / GIB:8.3f} GiB  {resident}")
        lines.append(f"  its update   {head.update / GIB:8.3f} GiB  {update}; never together with the policy's update")
    lines += [
        "",
        f"  training     {usage.train / GIB:8.3f} GiB",
        f"  rollout      {usage.rollout / GIB:8.3f} GiB",
        f"  peak         {usage.peak / GIB:8.3f} GiB  with the allocator's share and CUDA's own memory; an estimate",
    ]
    if usage.heads:
        alone = estimate(shape, settings.but(heads=())).peak
        names = ", ".join(f"{head.name.replace('_', ' ')} ({head.kind})" for head in usage.heads)
        share = usage.peak / alone - 1
        lines.append(f"  without      {alone / GIB:8.3f} GiB  the peak of the policy alone: {names} adds {share:.1%}")
    return "\n".join(lines)


def _yaml(plan: "Fit", rows: int) -> str:
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
    return "\n".join(lines)


SAME = (
    *("num_generations", "per_device_train_batch_size", "gradient_accumulation_steps", "steps_per_generation"),
    *("num_iterations", "max_completion_length", "advantage", "objective", "beta", "use_vllm"),
)
"""Fields that decide most of a step's time: only runs with equal values are comparable."""


@dataclass(frozen=True)
class StepTime:
    """Seconds of a step: median and quartiles, without the first step, which includes all start-up.

    >>> StepTime.of([(0, 0.0), (1, 9.0), (2, 11.0), (4, 15.0), (5, 18.0)])
    StepTime(middle=2.0, low=2.0, high=3.0, steps=4)
    """

    middle: float
    low: float
    high: float
    steps: int

    @classmethod
    def of(cls, logged: Sequence[tuple[int, float]]) -> "StepTime | None":
        """Compute from steps and their times in the log; None if there are too few."""
        spans = [
            (after[0] - before[0], (after[1] - before[1]) / (after[0] - before[0]))
            for before, after in pairwise(logged)
            if after[0] > before[0] >= 1
        ]
        if not spans:
            return None
        each = sorted(seconds for count, seconds in spans for _ in range(count))
        low, high = each[(len(each) - 1) // 4], each[(3 * (len(each) - 1) + 3) // 4]
        return cls(statistics.median(each), low, high, len(each))


def time_lines(parsed: "Parsed") -> Iterator[str]:
    """Yield the lines about the time of a run."""
    args = parsed.training
    earlier = _earlier(Path(args.output_dir), args, parsed.model.model_name_or_path)
    if isinstance(earlier, str):
        yield f"time: no basis ({earlier}). Train with --max_steps 5 --logging_steps 1: plan then reads its pace."
        return
    run, pace = earlier
    where = f"on {run.info.get('host', 'some machine')} ({run.info.get('device', '?')})"
    half = f"half of the steps between {shown(pace.low)} and {shown(pace.high)}"
    yield f"time: {shown(pace.middle)} a step, {half}; of {pace.steps} steps of the run in {run.path}, {where}"
    if args.max_steps > 0:
        ends = f"between {shown(pace.low * args.max_steps)} and {shown(pace.high * args.max_steps)}"
        total = shown(pace.middle * args.max_steps)
        yield f"      {total} for {args.max_steps} steps, {ends} at the pace of these"
    else:
        yield f"      max_steps is not set: multiply by the steps of {args.num_train_epochs:g} epochs"
    yield "      an estimate: completions grow and shrink while a model learns, and a step with them"


def _earlier(folder: Path, args: Any, model: str | None) -> "tuple[Run, StepTime] | str":
    """Return the run of the same config in its output folder; the reason if there is none."""
    from grpo_plus.record import RunError, open_run

    try:
        run = open_run(folder)
    except RunError:
        return f"no earlier run in {folder}"
    config, command = run.info.get("config") or {}, run.info.get("command") or {}
    now = {name: getattr(args, name, None) for name in SAME}
    changed = {name: value for name, value in now.items() if config.get(name) != value}
    other = [f"{name} was {config.get(name)!r}, now {value!r}" for name, value in changed.items()]
    before = command.get("model_name_or_path")
    other += [f"the model was {before}, now {model}"] if before != model else []
    if other:
        return f"the run in {folder} is a different one: {'; '.join(other)}"
    logged = [entry for entry in run.entries if entry["kind"] == "train" and entry.get("time")]
    pace = StepTime.of([(entry["step"], entry["time"]) for entry in logged])
    return f"the run in {folder} logged too few steps" if pace is None else (run, pace)


def shown(seconds: float) -> str:
    """Format seconds for people.

    >>> shown(0.35), shown(42), shown(600), shown(9000), shown(200000)
    ('0.35 s', '42 s', '10.0 min', '2.5 h', '2.3 days')
    """
    if seconds < 10:
        return f"{seconds:.2f} s"
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 2 * 3600:
        return f"{seconds / 60:.1f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 48 * 3600 else f"{seconds / 86400:.1f} days"
