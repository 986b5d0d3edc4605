"""``grpo-plus plan``: the memory and time of a run, estimated from the model's config, and settings that fit a card."""

import argparse
import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from grpo_plus.cli import UserError
from grpo_plus.cli._parser import Parser
from grpo_plus.cli._plan_config import PROG, Asked, from_config
from grpo_verifiers.errors.messages import unknown

if TYPE_CHECKING:
    from grpo_plus.memory.estimate import Estimate, Head, Settings
    from grpo_plus.memory.fit import Fit
    from grpo_plus.memory.shape import ModelShape

_WORDS = {
    "weights": "the base: linear layers in {bits} bits, the rest in the compute type",
    "adapters": "LoRA weights and their gradients, float32",
    "optimizer": "its state",
    "checkpoints": "activations kept from one layer to the next (of all layers without checkpointing)",
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
_KINDS = {"critic": ("trunk", "adapter", "model"), "reward_model": ("adapter", "model")}
_REWARD_RANK = 16


def run(arguments: Sequence[str]) -> int:
    """Print the estimate; with a card, also the settings that fit it."""
    words = list(arguments)
    if words and not words[0].startswith("-") and not {"-h", "--help"} & {*words}:
        asked = from_config(words)
    else:
        asked = _from_flags(words)
    options = asked.options
    if options.vram is not None and not 0 < options.vram < math.inf:
        raise UserError(f"--vram is {options.vram:g}, expected the card's memory in GiB, like 12.")
    from grpo_plus.memory.estimate import GIB, estimate
    from grpo_plus.memory.fit import DoesNotFitError, fit
    from grpo_plus.memory.shape import read_model_config, shape_of
    from grpo_plus.qlora.checks import Request, storage_problems
    from grpo_plus.qlora.model import method_of
    from grpo_verifiers.errors import raise_all

    settings = asked.settings
    try:
        config = read_model_config(asked.model, trust_remote_code=options.trust_remote_code)
        shape = shape_of(config, asked.model)
        quantised = settings.four_bit or settings.eight_bit
        raise_all(storage_problems(Request(asked.model, None, method_of(config), asked=quantised)))
    except ValueError as error:
        raise UserError(str(error)) from error
    below = [*(f"  {note}" for note in asked.notes), *(["", *asked.time] if asked.time else [])]
    if options.vram is None:
        print(_table(shape, settings, estimate(shape, settings)), *below, sep="\n")
        return 0
    try:
        found = fit(shape, settings, options.vram * GIB, generations=asked.generations)
    except DoesNotFitError as error:
        print(_table(shape, settings, estimate(shape, settings)), *below, sep="\n")
        raise UserError(str(error)) from error
    print(_table(shape, found.settings, found.estimate), *below, sep="\n")
    print(f"\nFits in {options.vram:g} GiB" + (", as asked for:" if not found.changes else "; for that:"))
    for change in found.changes:
        print(f"  - {change}")
    print("\n" + _yaml(asked, found))
    return 0


def _from_flags(words: Sequence[str]) -> Asked:
    options = _parser().parse_args(words)
    for name in ("num_generations", "max_completion_length", "prompt_length", "micro_batch", "prompts", "lora_r"):
        if getattr(options, name) is not None and getattr(options, name) < 1:
            raise UserError(f"--{name.replace('_', '-')} is {getattr(options, name)}, expected at least 1.")
    if options.eight_bit and options.no_4bit:
        raise UserError("--8bit cannot go with --no-4bit: leave one out.")
    from transformers.training_args import OptimizerNames

    optimizers = [name.value for name in OptimizerNames]
    if options.optim not in optimizers:
        raise UserError(unknown("optimizer", options.optim, optimizers))
    from grpo_plus.memory.estimate import Settings

    rows = options.num_generations * options.prompts
    settings = Settings(
        micro_batch=options.micro_batch or (1 if options.vram is None else options.num_generations),
        rollout_rows=rows,
        prompt_length=options.prompt_length,
        completion_length=options.max_completion_length,
        prompts=options.prompts,
        rank=options.lora_r,
        checkpointing=not options.no_gradient_checkpointing,
        optimizer=options.optim,
        four_bit=not options.no_4bit and not options.eight_bit,
        eight_bit=options.eight_bit,
        heads=tuple(_heads(options)),
    )
    quantised = {"load_in_4bit": True} if settings.four_bit else {"load_in_8bit": True} if settings.eight_bit else {}
    more: dict[str, object] = {}
    for head in settings.heads:
        named = f", model: {head.shape.name}" if head.shape is not None else ""
        more |= {"advantage": "gae"} if head.name == "critic" else {}
        more[head.name] = f"{{on: {head.kind}{named}}}"
    values = {"model_name_or_path": options.model, **quantised, "use_peft": True, "optim": options.optim}
    values |= {"num_generations": options.num_generations}
    more |= {} if settings.four_bit else {"dtype": "bfloat16"}
    return Asked(options.model, settings, options.num_generations, rows, options, values, more)


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog=PROG,
        description=__doc__,
        usage=f"{PROG} --model NAME [options]\n"
        f"       {PROG} config.yaml [--vram GIB] [--prompt-length N] [--time-steps N] [--option X]",
        epilog="With a config the run is read from it, and from any flag of grpo-plus train; its time is told from an "
        "earlier run in its output_dir, or --time-steps 4 makes steps here to measure it.",
    )

    def option(name: str, kind: type, default: object, text: str) -> None:
        parser.add_argument(f"--{name}", type=kind, default=default, help=text)

    parser.add_argument("--model", required=True, help="a folder, a name on the hub, or a config.json")
    option("vram", float, None, "the card's memory in GiB: also prints the settings that fit it, as YAML")
    option("num-generations", int, 8, "completions of a prompt (default 8)")
    option("prompts", int, 1, "prompts of a generation batch (default 1)")
    option("prompt-length", int, 256, "tokens of a prompt (default 256)")
    option("max-completion-length", int, 1024, "most tokens of a completion (default 1024)")
    option("micro-batch", int, None, "completions of a forward and backward pass (default: 1, or what fits)")
    option("lora-r", int, 16, "rank of the adapters (default 16)")
    option("critic", str, None, "a critic beside the policy: trunk, adapter, model, or model:NAME for another one")
    option("reward-model", str, None, "a reward model that trains along: adapter, model or model:NAME")
    option("optim", str, "paged_adamw_8bit", "the optimizer (default paged_adamw_8bit)")
    parser.add_argument("--no-4bit", action="store_true", help="a 16-bit base")
    parser.add_argument("--8bit", dest="eight_bit", action="store_true", help="a base in 8 bits (load_in_8bit)")
    parser.add_argument("--no-gradient-checkpointing", action="store_true", help="keep all activations")
    parser.add_argument("--trust-remote-code", action="store_true", help="run the model's own code")
    return parser


def _heads(options: argparse.Namespace) -> "Iterator[Head]":
    """What stands beside the policy."""
    from grpo_plus.memory.estimate import Head
    from grpo_plus.memory.shape import read_model_config, shape_of

    for name, kinds in _KINDS.items():
        given = getattr(options, name)
        if given is None:
            continue
        kind, _, model = given.partition(":")
        flag = f"--{name.replace('_', '-')}"
        if kind not in kinds:
            raise UserError(unknown(f"kind of {flag}", kind, kinds))
        if model and kind != "model":
            raise UserError(f"{flag} is {given}: only a model of its own has a name, as in model:NAME.")
        try:
            trust = options.trust_remote_code
            own = shape_of(read_model_config(model, trust_remote_code=trust), model) if model else None
        except ValueError as error:
            raise UserError(f"{flag}: {error}") from error
        compares = name == "reward_model"
        yield Head(name, kind, _REWARD_RANK if compares else None, own, least_rows=2 if compares else 1)


def _table(shape: "ModelShape", settings: "Settings", found: "Estimate") -> str:
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
    for name, size in found.parts().items():
        lines.append(f"  {name:<12} {size / GIB:8.3f} GiB  {_WORDS[name].format(bits=bits)}")
    for head in found.heads:
        label, (resident, update) = head.name.replace("_", " "), _HEADS[head.kind]
        lines.append(f"  {label:<12} {head.resident / GIB:8.3f} GiB  {resident}")
        lines.append(f"  its update   {head.update / GIB:8.3f} GiB  {update}; never together with the policy's update")
    lines += [
        "",
        f"  training     {found.train / GIB:8.3f} GiB",
        f"  rollout      {found.rollout / GIB:8.3f} GiB",
        f"  peak         {found.peak / GIB:8.3f} GiB  with the allocator's share and CUDA's own memory; an estimate",
    ]
    if found.heads:
        alone = estimate(shape, settings.but(heads=())).peak
        names = ", ".join(f"{head.name.replace('_', ' ')} ({head.kind})" for head in found.heads)
        share = found.peak / alone - 1
        lines.append(f"  without      {alone / GIB:8.3f} GiB  the peak of the policy alone: {names} adds {share:.1%}")
    return "\n".join(lines)


def _yaml(asked: Asked, found: "Fit") -> str:
    chosen = found.settings
    values = {
        **asked.values,
        "lora_r": chosen.rank,
        "gradient_checkpointing": chosen.checkpointing,
        "per_device_train_batch_size": chosen.micro_batch,
        "gradient_accumulation_steps": asked.rows // chosen.micro_batch,
        "max_completion_length": chosen.completion_length,
        **({"rollout": f"{{how: auto, rows: {chosen.rollout_rows}}}"} if chosen.rollout_rows else {}),
        **asked.more,
    }
    return "\n".join(
        f"{key}: {str(value).lower() if isinstance(value, bool) else value}" for key, value in values.items()
    )
