"""Defaults of the command line for a quantised run, each printed with its reason.

They are the same for an 8-bit base (``load_in_8bit``) and a 4-bit one, except for the second quantisation of the
scales, which only NF4 has.
"""

import argparse
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from grpo_plus.qlora.checks import read_config
from grpo_plus.qlora.model import method_of, requested_bits
from grpo_plus.trl.fields import other_samplers, resolve_renamed_fields
from grpo_verifiers.registry import is_reference

LEARNING_RATE = 2e-5
"""Between the 1e-5 and 3e-5 usual for adapters in reinforcement learning; TRL's 1e-6 is for full fine-tuning."""


@dataclass(frozen=True)
class Device:
    """The torch device's type, and its native support of bfloat16."""

    kind: str
    bf16: bool

    @classmethod
    def present(cls, *, use_cpu: bool = False) -> "Device":
        """Return the device that a run here would train on."""
        import torch

        if use_cpu or not torch.accelerator.is_available():
            return cls("cpu", bf16=False)
        kind = torch.accelerator.current_accelerator()
        if kind is None or kind.type != "cuda":
            return cls("cpu" if kind is None else kind.type, bf16=True)
        return cls("cuda", bf16=torch.cuda.is_bf16_supported(including_emulation=False))


@dataclass(frozen=True)
class Default:
    """An option, its value and the reason."""

    name: str
    value: Any
    why: str

    def __str__(self) -> str:
        value = str(self.value).lower() if isinstance(self.value, bool) else self.value
        return f"{self.name}: {value}  ({self.why})"


def quantised_defaults(
    values: Mapping[str, Any], explicit: Collection[str], device: Device, stored: int | None = None
) -> list[Default]:
    """Return the defaults of a run on a 4-bit or 8-bit base; empty for any other.

    Options set by the user in a file or as a flag (``explicit``) are never changed. ``stored`` is 4 or 8 for a
    checkpoint already quantised by bitsandbytes.
    """
    bits = requested_bits(values) or stored
    if bits is None:
        return []
    precision = _precision(values, explicit, device)
    dtype = {"bf16": "bfloat16", "fp16": "float16", "none": "float32"}[precision]
    cuda = device.kind == "cuda"
    defaults = [
        Default("use_peft", True, f"a {bits}-bit base cannot be trained itself, adapters can"),
        *_precision_defaults(precision, explicit),
        Default("dtype", dtype, "of products, embeddings and cache; TRL's float32 takes twice the memory"),
    ]
    if requested_bits(values) == 4:
        defaults.append(Default("use_bnb_nested_quant", True, "quantises the scales too: 0.4 bits a weight less"))
    if values.get("use_peft") or "use_peft" not in explicit:
        optimizer = "paged_adamw_8bit" if cuda else "adamw_torch"
        why = "states in 8 bits, paged out when memory is short" if cuda else "8-bit states need a CUDA device"
        defaults += [
            Default("learning_rate", LEARNING_RATE, "adapters need about ten times the rate of full fine-tuning"),
            Default("lora_target_modules", ["all-linear"], "every linear layer but the head, for any model"),
            Default("lora_dropout", 0.0, "dropout would make the trained policy differ from the sampled one"),
            Default("optim", optimizer, why),
        ]
    if not other_samplers(values):
        defaults.append(Default("rollout", "auto", "prompts are read once, completions that ended leave the batch"))
    if {**values, **resolve_renamed_fields(values, {})[1]}.get("gradient_checkpointing"):
        plain = {"use_reentrant": False}
        defaults.append(Default("gradient_checkpointing_kwargs", plain, "the variant that works with frozen inputs"))
    return [default for default in defaults if default.name not in explicit and default.name in values]


def stored_bits(values: Mapping[str, Any]) -> int | None:
    """Return 4 or 8 for a checkpoint quantised by bitsandbytes."""
    name = values.get("model_name_or_path")
    if not name or is_reference(name):
        return None
    config = read_config(
        name, {"revision": values.get("model_revision")}, trust_remote_code=bool(values.get("trust_remote_code"))
    )
    return requested_bits(getattr(config, "quantization_config", None)) if method_of(config) == "bitsandbytes" else None


def _precision(values: Mapping[str, Any], explicit: Collection[str], device: Device) -> str:
    """Return ``bf16``, ``fp16`` or ``none``: as set, else the best of the device."""
    for name in ("bf16", "fp16"):
        if name in explicit and values.get(name):
            return name
    if "bf16" in explicit and "fp16" in explicit:
        return "none"
    if device.kind == "cpu":
        return "none"
    best = "bf16" if device.bf16 else "fp16"
    return "none" if best in explicit else best


def _precision_defaults(precision: str, explicit: Collection[str]) -> list[Default]:
    if precision == "bf16":
        return [Default("bf16", True, "the card computes in bfloat16")] if "fp16" not in explicit else []
    if precision == "fp16":
        return [
            Default("bf16", False, "the card has no bfloat16 of its own; TRL would assume it"),
            Default("fp16", True, "autocast in float16 with loss scaling; the adapters stay in float32"),
        ]
    return [Default("bf16", False, "float32 throughout on this device; TRL would assume bfloat16")]


def fill_parser(
    parser: argparse.ArgumentParser, arguments: Sequence[str], from_file: Collection[str], device: Device | None = None
) -> list[Default]:
    """Set and return the defaults of the run that a parser is about to parse.

    The parser has TRL's options, with the values of a file (its options are ``from_file``) as defaults. ``device`` is
    by default the one present.
    """
    values = vars(parser.parse_known_args(list(arguments))[0])
    flags = {argument.partition("=")[0] for argument in arguments}
    actions = parser._actions  # noqa: SLF001 - argparse has no public list of its options
    explicit = {*from_file, *(action.dest for action in actions if flags & set(action.option_strings))}
    stored = None if requested_bits(values) is not None else stored_bits(values)
    if requested_bits(values) is None and stored is None:
        return []
    device = device or Device.present(use_cpu=bool(values.get("use_cpu")))
    defaults = quantised_defaults(values, explicit, device, stored)
    parser.set_defaults(**{default.name: default.value for default in defaults})
    return defaults
