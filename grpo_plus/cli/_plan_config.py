"""``grpo-plus plan config.yaml``: the run of a file in the planner's settings, as the trainer itself counts it."""

import argparse
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from grpo_plus.cli import UserError
from grpo_plus.cli._early import check_early, on_cpu
from grpo_plus.cli._parser import Parser
from grpo_plus.cli._plan_time import time_lines

if TYPE_CHECKING:
    from grpo_plus.cli._arguments import Parsed
    from grpo_plus.memory.estimate import Settings

PROG = "grpo-plus plan"
MOST_STEPS = 100


@dataclass(frozen=True)
class Asked:
    """A run to plan.

    Attributes:
        model: a folder, a name on the hub, or a config.json.
        settings: memory depends on these.
        generations: a pass has a divisor of it as its rows.
        rows: completions of an optimizer step on one card.
        options: the flags of the command itself.
        values: lines of the YAML that are no setting of the planner's, ahead of those that are.
        more: the same, behind them.
        notes: what else takes memory, and what was assumed.
        time: what is known of the time of the run.
    """

    model: str
    settings: "Settings"
    generations: int
    rows: int
    options: argparse.Namespace
    values: Mapping[str, object]
    more: Mapping[str, object] = field(default_factory=dict)
    notes: Sequence[str] = ()
    time: Sequence[str] = ()


def from_config(words: Sequence[str]) -> Asked:
    """What ``train`` would do with this file and these options, on a CUDA card."""
    parser = Parser(prog=PROG)
    parser.add_argument("--vram", type=float)
    parser.add_argument("--prompt-length", "--prompt_length", type=int, default=256)
    parser.add_argument("--time-steps", type=int)
    options, rest = parser.parse_known_args(list(words))
    if options.time_steps is not None and not 1 <= options.time_steps <= MOST_STEPS:
        raise UserError(f"--time-steps is {options.time_steps}, expected from 1 to {MOST_STEPS}.")
    if options.prompt_length < 1:
        raise UserError(f"--prompt-length is {options.prompt_length}, expected at least 1.")
    beside = ("--vram", "--prompt-length", "--time-steps")
    check_early(rest, beside=beside)
    os.environ.setdefault("ACCELERATE_USE_CPU", "true")
    from trl import get_peft_config, get_quantization_config

    from grpo_plus.cli._arguments import parse
    from grpo_plus.cli._data import model_path
    from grpo_plus.memory.advice import settings_of
    from grpo_plus.qlora.defaults import Device, bits_asked, stored_bits
    from grpo_plus.qlora.model import quantises_twice
    from grpo_plus.recipe.recipe import recipe_of
    from grpo_plus.training.advice import heads_of

    parsed = parse(PROG, on_cpu(rest), beside=beside, device=Device("cuda", bf16=True))
    args, model = parsed.training, parsed.model
    time = list(time_lines(parsed, rest, options.time_steps))
    if not model.use_peft:
        print("\n".join(time), flush=True)
        raise UserError("use_peft is not set: plan counts runs with LoRA adapters only. Set use_peft: true.")
    # A shape is planned from a config.json alone.
    name = model.model_name_or_path or ""
    path = name if Path(name).is_file() else model_path(name, parsed.folder)
    values = {**vars(model), "model_name_or_path": path, "trust_remote_code": parsed.trusts_code}
    bits = bits_asked(values) or stored_bits(values)
    settings = settings_of(
        args,
        get_peft_config(model),
        bits=bits,
        double=quantises_twice(get_quantization_config(model)),
        lean=recipe_of(args).rollout.how == "auto",
        most_rows=recipe_of(args).rollout.rows,
        heads=heads_of(args),
    ).but(prompt_length=options.prompt_length)
    if bits is None and model.dtype not in ("auto", "bfloat16", "float16"):
        settings = settings.but(width=4)
    options.trust_remote_code = parsed.trusts_code
    micro = args.per_device_train_batch_size
    rows = micro * args.gradient_accumulation_steps
    drawn = micro * args.steps_per_generation
    notes = "; ".join(_notes(parsed, options.prompt_length))
    return Asked(
        path, settings, math.gcd(args.num_generations, rows, drawn), rows, options, {}, notes=(notes,), time=time
    )


def _notes(parsed: "Parsed", prompt_length: int) -> Iterator[str]:
    """What the file does not say, and what is left out of the numbers."""
    from grpo_plus.cli._loads import load_notes

    args, script = parsed.training, parsed.script
    yield from (note.rstrip(".") for note in load_notes(parsed))
    yield f"for one card, nothing sharded; prompts of {prompt_length} tokens are assumed (--prompt-length)"
    if args.steps_per_generation != args.gradient_accumulation_steps:
        drawn = args.per_device_train_batch_size * args.steps_per_generation
        yield f"keep per_device_train_batch_size times steps_per_generation at {drawn}"
    left_out = {
        "vLLM beside the model (vllm_mode: colocate)": args.use_vllm and args.vllm_mode == "colocate",
        "the reward model (reward_model_name_or_path)": bool(script.reward_model_name_or_path),
        "the warm start of all weights (warm_start: full)": bool((parsed.warm_start or {}).get("full")),
    }
    if any(left_out.values()):
        yield f"not counted: {', '.join(name for name, here in left_out.items() if here)}"
