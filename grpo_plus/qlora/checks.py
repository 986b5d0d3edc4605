"""Combinations with a quantised base that cannot work, found before anything loads."""

import os
import re
from dataclasses import dataclass
from typing import Any

import torch

from grpo_plus.qlora.model import bits_of, format_of, method_of, quantises_twice, requested_bits
from grpo_plus.sampling.decode import is_adapted
from grpo_verifiers.lazy import installed

FROZE_BELOW = 1e-5
"""Learning rates under this moved at most one adapter weight in 25 when adapters were held in bfloat16."""


@dataclass(frozen=True)
class Request:
    """The settings of a run that concern a quantised base.

    ``bits`` is 4 or 8 if bitsandbytes holds or will hold the base, else None. ``stored_as`` says how the checkpoint is
    already quantised, if it is; ``asked`` whether the run itself asks for it. ``adapters`` are there or will be, on
    ``targets``. ``device`` is the type of device that will be trained on, ``zero_stage`` that of DeepSpeed ZeRO, and
    with ``sharded`` FSDP shards the parameters. ``format`` is that of 4-bit weights.
    """

    name: str
    bits: int | None
    stored_as: str | None = None
    asked: bool = False
    adapters: bool = True
    targets: Any = None
    device: str = "cpu"
    zero_stage: int | None = None
    sharded: bool = False
    adapter: Any = None
    learning_rate: float = 1e-4
    double_quantisation: bool = True
    format: str = "nf4"


def request_of(model: Any, args: Any, quantization_config: Any, peft_config: Any) -> Request:
    """Gather what `problems` looks at from a trainer's arguments; the model is a name, a folder or a model."""
    kwargs = args.model_init_kwargs or {}
    asked = requested_bits(quantization_config) or requested_bits(kwargs.get("quantization_config"))
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
        bits=(asked or stored_bits) if isinstance(model, str) else bits_of(model),
        stored_as=stored_as,
        asked=asked is not None,
        adapters=peft_config is not None or adapted,
        targets=getattr(peft_config, "target_modules", None),
        device=args.device.type,
        zero_stage=getattr(plugin, "zero_stage", None),
        sharded=bool(getattr(args, "fsdp", None)) or os.environ.get("ACCELERATE_USE_FSDP", "").lower() in ("1", "true"),
        adapter=peft_config if peft_config is not None or not adapted else model.peft_config[model.active_adapters[0]],
        learning_rate=args.learning_rate,
        double_quantisation=quantises_twice(quantisation),
        format=format_of(quantisation),
    )


def read_config(name: str, kwargs: Any, *, trust_remote_code: bool = False) -> Any:
    """A checkpoint's config, or None where it cannot be read: loading will say why in its own words."""
    from huggingface_hub.errors import StrictDataclassError
    from transformers import AutoConfig

    wanted = {key: kwargs[key] for key in ("revision", "token", "cache_dir", "subfolder") if kwargs.get(key)}
    trust = bool(kwargs.get("trust_remote_code", trust_remote_code))
    try:
        return AutoConfig.from_pretrained(name, trust_remote_code=trust, **wanted)
    except (OSError, ValueError, KeyError, ImportError, TypeError, AttributeError, StrictDataclassError):
        return None


def problems(request: Request) -> list[str]:
    """Everything that rules the request out; each message names the way out."""
    found = storage_problems(request)
    if request.bits is None:
        return found
    bits, article = f"{request.bits}-bit", "an" if request.bits == 8 else "a"
    if not installed("bitsandbytes"):
        found.append(
            f"{article} {bits} base needs bitsandbytes, which is not installed: pip install 'bitsandbytes>=0.49'."
        )
    else:
        found += _platform_problems(request, bits)
    if bits == "4-bit" and request.format not in ("nf4", "fp4"):
        found.append(f"bnb_4bit_quant_type is {request.format!r}, expected nf4 or fp4; nf4 is the more exact one.")
    if not request.adapters:
        found.append(
            f"the base {request.name} is {bits} and there are no adapters, so nothing can be trained. Set use_peft: "
            "true, or pass a peft_config such as LoraConfig(target_modules='all-linear')."
        )
    if targets_head(request.targets):
        found.append(
            f"target_modules is {request.targets!r}, which puts an adapter on lm_head: log-probabilities are computed "
            "from its weight directly, so the adapter would never be trained. Take lm_head out of the list, or use "
            "'all-linear', which leaves it out."
        )
    if request.zero_stage == 3:
        found.append(
            f"DeepSpeed ZeRO-3 cannot shard {article} {bits} base: packed weights have no rows to divide. Use ZeRO-2 "
            f"or plain data parallelism (each card then holds the whole base), or drop load_in_{request.bits}bit."
        )
    if request.sharded:
        found.append(
            f"FSDP with {article} {bits} base is not supported: it wants one type for all that it flattens, and "
            "adapters here stay in float32. Use plain data parallelism (each card then holds the whole base), or drop "
            f"load_in_{request.bits}bit."
        )
    return found


def storage_problems(request: Request) -> list[str]:
    """Problems of the way the checkpoint is stored."""
    stored = request.stored_as
    if stored in (None, "bitsandbytes") or not (request.asked or stored in ("gptq", "awq")):
        return []
    clash = " and the run asks for bitsandbytes on top of it" if request.asked else ""
    message = (
        f"the checkpoint {request.name} is already quantised with {stored}{clash}; training goes through bitsandbytes "
        "only. Name the original 16-bit checkpoint and set load_in_4bit: true, or a checkpoint quantised with "
        "bitsandbytes."
    )
    return [message]


def _platform_problems(request: Request, bits: str) -> list[str]:
    import bitsandbytes

    supported = set(getattr(bitsandbytes, "supported_torch_devices", {"cpu", "cuda"}))
    if request.device in supported:
        return []
    there = ", ".join(sorted(supported))
    message = (
        f"bitsandbytes has no {bits} layers for the device {request.device!r}, only for {there}. Train on one of those "
        f"(use_cpu: true runs everywhere), or drop load_in_{request.bits}bit."
    )
    return [message]


def targets_head(targets: Any) -> bool:
    """An adapter's targets include the language-model head; a pattern must match the whole name, as in PEFT."""
    if targets is None or targets == "all-linear":
        return False
    if isinstance(targets, str):
        try:
            return targets == "lm_head" or re.fullmatch(targets, "lm_head") is not None
        except re.error:
            return False
    return any(str(target).rsplit(".", maxsplit=1)[-1] == "lm_head" for target in targets)


def warnings(request: Request) -> list[str]:
    """Settings that work, but probably not as meant."""
    if request.bits is None or not request.adapters or request.learning_rate >= FROZE_BELOW:
        return []
    message = (
        f"learning_rate is {request.learning_rate:g}: adapters need about ten times the rate of full fine-tuning (1e-5 "
        f"to 1e-4). Under {FROZE_BELOW:g} adapters held in bfloat16 would hardly have moved; here they are held in "
        "float32 and move, if slowly."
    )
    return [message]


def compute_dtype(quantization_config: Any, args: Any) -> torch.dtype:
    """The type that everything but the 4-bit weights is loaded in.

    That of the 4-bit layers' products where one was chosen; else the type of the run's autocast. bitsandbytes' own
    default, float32, cannot be told from a choice, and as a storage type it costs twice the memory for nothing under
    autocast.
    """
    chosen = getattr(quantization_config, "bnb_4bit_compute_dtype", None)
    if isinstance(chosen, torch.dtype) and chosen != torch.float32:
        return chosen
    if args.bf16:
        return torch.bfloat16
    return torch.float16 if args.fp16 else torch.float32
