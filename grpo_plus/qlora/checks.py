"""Checks for impossible combinations with a quantised base, before anything loads."""

import os
import re
from dataclasses import dataclass
from typing import Any

import torch

from grpo_plus.qlora.model import bits_of, format_of, method_of, quantises_twice, requested_bits
from grpo_plus.sampling.decode import is_adapted
from grpo_verifiers.lazy import installed


@dataclass(frozen=True)
class Request:
    """The settings of a run that concern a quantised base.

    ``bits`` is 4 or 8 for a bitsandbytes base, else None. ``stored_as`` is the quantisation of the checkpoint;
    ``requested`` is True if the run asks for bitsandbytes. ``adapters`` is True for a model with adapters now or later,
    on ``targets``. ``zero_stage`` is that of DeepSpeed ZeRO; with ``sharded`` FSDP shards the parameters. ``format`` is
    that of 4-bit weights.
    """

    name: str
    bits: int | None
    stored_as: str | None = None
    requested: bool = False
    adapters: bool = True
    targets: Any = None
    zero_stage: int | None = None
    sharded: bool = False
    adapter: Any = None
    double_quantisation: bool = True
    format: str = "nf4"


def request_of(model: Any, args: Any, quantization_config: Any, peft_config: Any) -> Request:
    """Return the request of a trainer's arguments; the model is a name, a folder or a model."""
    kwargs = args.model_init_kwargs or {}
    requested = requested_bits(quantization_config) or requested_bits(kwargs.get("quantization_config"))
    config = getattr(model, "config", None)
    if isinstance(model, str):
        config = read_config(model, kwargs, trust_remote_code=getattr(args, "trust_remote_code", False))
    stored_as = method_of(config)
    stored = getattr(config, "quantization_config", None)
    stored_bits = requested_bits(stored)
    adapted = False if isinstance(model, str) or model is None else is_adapted(model)
    quantisation = quantization_config or kwargs.get("quantization_config") or stored
    plugin = getattr(args, "deepspeed_plugin", None)
    return Request(
        name=model if isinstance(model, str) else type(model).__name__,
        bits=(requested or stored_bits) if isinstance(model, str) else bits_of(model),
        stored_as=stored_as,
        requested=requested is not None,
        adapters=peft_config is not None or adapted,
        targets=getattr(peft_config, "target_modules", None),
        zero_stage=getattr(plugin, "zero_stage", None),
        sharded=bool(getattr(args, "fsdp", None)) or os.environ.get("ACCELERATE_USE_FSDP", "").lower() in ("1", "true"),
        adapter=peft_config if peft_config is not None or not adapted else model.peft_config[model.active_adapters[0]],
        double_quantisation=quantises_twice(quantisation),
        format=format_of(quantisation),
    )


def read_config(name: str, kwargs: Any, *, trust_remote_code: bool = False) -> Any:
    """Return a checkpoint's config, or None if it cannot be read; loading raises the error."""
    from huggingface_hub.errors import StrictDataclassError
    from transformers import AutoConfig

    options = {key: kwargs[key] for key in ("revision", "token", "cache_dir", "subfolder") if kwargs.get(key)}
    trust = bool(kwargs.get("trust_remote_code", trust_remote_code))
    try:
        return AutoConfig.from_pretrained(name, trust_remote_code=trust, **options)
    except (OSError, ValueError, KeyError, ImportError, TypeError, AttributeError, StrictDataclassError):
        return None


def problems(request: Request) -> list[str]:
    """Return the reasons against a request; each message names the way out."""
    messages = storage_problems(request)
    if request.bits is None:
        return messages
    bits, article = f"{request.bits}-bit", "an" if request.bits == 8 else "a"
    if not installed("bitsandbytes"):
        messages.append(
            f"{article} {bits} base needs bitsandbytes, which is not installed: pip install 'bitsandbytes>=0.49'."
        )
    if bits == "4-bit" and request.format not in ("nf4", "fp4"):
        messages.append(f"bnb_4bit_quant_type is {request.format!r}, expected nf4 or fp4; nf4 is the more exact one.")
    if not request.adapters:
        messages.append(
            f"the base {request.name} is {bits} and there are no adapters, so nothing can be trained. Set use_peft: "
            "true, or pass a peft_config such as LoraConfig(target_modules='all-linear')."
        )
    if targets_head(request.targets):
        messages.append(
            f"target_modules is {request.targets!r}, which puts an adapter on lm_head: log-probabilities are computed "
            "from its weight directly, so the adapter would never be trained. Take lm_head out of the list, or use "
            "'all-linear', which leaves it out."
        )
    if request.zero_stage == 3:
        messages.append(
            f"DeepSpeed ZeRO-3 cannot shard {article} {bits} base: packed weights have no rows to divide. Use ZeRO-2 "
            f"or plain data parallelism (each card then has a full base), or drop load_in_{request.bits}bit."
        )
    if request.sharded:
        messages.append(
            f"FSDP with {article} {bits} base is not supported: it wants one type for all that it flattens, and "
            "adapters here stay in float32. Use plain data parallelism (each card then has a full base), or drop "
            f"load_in_{request.bits}bit."
        )
    return messages


def storage_problems(request: Request) -> list[str]:
    """Return the problems of the stored form of the checkpoint."""
    stored = request.stored_as
    if stored in (None, "bitsandbytes") or not (request.requested or stored in ("gptq", "awq")):
        return []
    clash = " and the run requests bitsandbytes on top of it" if request.requested else ""
    message = (
        f"the checkpoint {request.name} is already quantised with {stored}{clash}; training uses bitsandbytes "
        "only. Name the original 16-bit checkpoint and set load_in_4bit: true, or a checkpoint quantised with "
        "bitsandbytes."
    )
    return [message]


def targets_head(targets: Any) -> bool:
    """Return True if the targets include the language-model head; a pattern must match the full name, as in PEFT."""
    if targets is None or targets == "all-linear":
        return False
    if isinstance(targets, str):
        try:
            return targets == "lm_head" or re.fullmatch(targets, "lm_head") is not None
        except re.error:
            return False
    return any(str(target).rsplit(".", maxsplit=1)[-1] == "lm_head" for target in targets)


def compute_dtype(quantization_config: Any, args: Any) -> torch.dtype:
    """Return the dtype of all weights except the 4-bit ones.

    It is the compute dtype of the 4-bit layers if one was chosen, else the dtype of the run's autocast. bitsandbytes'
    default, float32, cannot be distinguished from a choice; as a storage dtype it takes twice the memory without any
    benefit under autocast.
    """
    chosen = getattr(quantization_config, "bnb_4bit_compute_dtype", None)
    if isinstance(chosen, torch.dtype) and chosen != torch.float32:
        return chosen
    if args.bf16:
        return torch.bfloat16
    return torch.float16 if args.fp16 else torch.float32
