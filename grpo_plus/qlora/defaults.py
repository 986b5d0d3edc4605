"""Defaults of the command line for a quantised run; each is printed with its reason.

All of it holds for an 8-bit base (``load_in_8bit``) as for a 4-bit one, but for the second quantisation of the scales,
which only NF4 has.
"""

import argparse
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from grpo_plus import _trl
from grpo_plus.qlora.checks import read_config
from grpo_plus.qlora.model import method_of, requested_bits
from grpo_verifiers.registry import is_reference

LEARNING_RATE = 2e-5
"""Between the 1e-5 and 3e-5 at which adapters are usually trained by reinforcement; TRL's 1e-6 is for whole models."""


@dataclass(frozen=True)
class Device:
    """The torch device's type, and whether it computes in bfloat16 itself, not by emulation."""

    kind: str
    bf16: bool

    @classmethod
    def present(cls, *, use_cpu: bool = False) -> "Device":
        """The device that a run here would train on."""
        import torch

        if use_cpu or not torch.accelerator.is_available():
            return cls("cpu", bf16=False)
        kind = torch.accelerator.current_accelerator()
        if kind is None or kind.type != "cuda":
            return cls("cpu" if kind is None else kind.type, bf16=True)
        return cls("cuda", bf16=torch.cuda.is_bf16_supported(including_emulation=False))


@dataclass(frozen=True)
class Default:
    """One option, the value it gets, and why."""

    name: str
    value: Any
    why: str

    def __str__(self) -> str:
        value = str(self.value).lower() if isinstance(self.value, bool) else self.value
        return f"{self.name}: {value}  ({self.why})"


def quantised_defaults(
    values: Mapping[str, Any], given: Collection[str], device: Device, stored: int | None = None
) -> list[Default]:
    """The defaults of a run on a 4-bit or 8-bit base; empty for any other.

    Options that were ``given``, in a file or as a flag, are never touched. ``stored`` is 4 or 8 for a checkpoint that
    bitsandbytes has quantised already.
    """
    bits = bits_of_options(values) or stored
    if bits is None:
        return []
    precision = _precision(values, given, device)
    dtype = {"bf16": "bfloat16", "fp16": "float16", "none": "float32"}[precision]
    cuda = device.kind == "cuda"
    wanted = [
        Default("use_peft", True, f"a {bits}-bit base cannot be trained itself, adapters can"),
        *_precision_defaults(precision, given),
        Default("dtype", dtype, "of products, embeddings and cache; TRL's float32 takes twice the memory"),
    ]
    if bits_of_options(values) == 4:
        wanted.append(Default("use_bnb_nested_quant", True, "quantises the scales too: 0.4 bits a weight less"))
    if values.get("use_peft") or "use_peft" not in given:
        optimizer = "paged_adamw_8bit" if cuda else "adamw_torch"
        why = "states in 8 bits, paged out when memory is short" if cuda else "8-bit states need a CUDA device"
        wanted += [
            Default("learning_rate", LEARNING_RATE, "adapters need about ten times the rate of whole models"),
            Default("lora_target_modules", ["all-linear"], "every linear layer but the head, whatever the model"),
            Default("lora_dropout", 0.0, "dropout would make the trained policy differ from the sampled one"),
            Default("optim", optimizer, why),
        ]
    if not _trl.other_samplers(values):
        wanted.append(Default("rollout", "auto", "prompts are read once, completions that ended leave the batch"))
    if {**values, **_trl.under_new_names(values, {})[1]}.get("gradient_checkpointing"):
        plain = {"use_reentrant": False}
        wanted.append(Default("gradient_checkpointing_kwargs", plain, "the variant that works with frozen inputs"))
    return [default for default in wanted if default.name not in given and default.name in values]


def bits_of_options(values: Mapping[str, Any]) -> int | None:
    """4 or 8 if the run asks bitsandbytes for it; both at once are refused by TRL."""
    if values.get("load_in_4bit"):
        return 4
    return 8 if values.get("load_in_8bit") else None


def stored_bits(values: Mapping[str, Any]) -> int | None:
    """4 or 8 if the checkpoint is one that bitsandbytes has quantised."""
    name = values.get("model_name_or_path")
    if not name or is_reference(name):
        return None
    config = read_config(
        name, {"revision": values.get("model_revision")}, trust_remote_code=bool(values.get("trust_remote_code"))
    )
    return requested_bits(getattr(config, "quantization_config", None)) if method_of(config) == "bitsandbytes" else None


def _precision(values: Mapping[str, Any], given: Collection[str], device: Device) -> str:
    """``bf16``, ``fp16`` or ``none``: as set, else what the device is good at."""
    for name in ("bf16", "fp16"):
        if name in given and values.get(name):
            return name
    if "bf16" in given and "fp16" in given:
        return "none"
    if device.kind == "cpu":
        return "none"
    best = "bf16" if device.bf16 else "fp16"
    return "none" if best in given else best


def _precision_defaults(precision: str, given: Collection[str]) -> list[Default]:
    if precision == "bf16":
        return [Default("bf16", True, "the card computes in bfloat16")] if "fp16" not in given else []
    if precision == "fp16":
        return [
            Default("bf16", False, "the card has no bfloat16 of its own; TRL would assume it"),
            Default("fp16", True, "autocast in float16 with loss scaling; the adapters stay in float32"),
        ]
    return [Default("bf16", False, "float32 throughout on this device; TRL would assume bfloat16")]


def fill_parser(
    parser: argparse.ArgumentParser, arguments: Sequence[str], from_file: Collection[str], device: Device | None = None
) -> list[Default]:
    """Give a parser the defaults that the run it is about to parse calls for, and return them for printing.

    The parser knows TRL's options and has the values of a file, whose options ``from_file`` names, as its defaults.
    Without a device it looks what will train.
    """
    values = vars(parser.parse_known_args(list(arguments))[0])
    flags = {argument.partition("=")[0] for argument in arguments}
    known = parser._actions  # noqa: SLF001 - argparse has no public list of its options
    given = {*from_file, *(action.dest for action in known if flags & set(action.option_strings))}
    stored = None if bits_of_options(values) is not None else stored_bits(values)
    if bits_of_options(values) is None and stored is None:
        return []
    device = device or Device.present(use_cpu=bool(values.get("use_cpu")))
    found = quantised_defaults(values, given, device, stored)
    parser.set_defaults(**{default.name: default.value for default in found})
    return found
