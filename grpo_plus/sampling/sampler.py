"""From logits to the next tokens, as `generate` does it: transformers' own processors in its own order."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

KNOWN = {
    "bos_token_id", "disable_compile", "do_sample", "eos_token_id", "max_length", "max_new_tokens", "min_p",
    "pad_token_id", "repetition_penalty", "temperature", "top_k", "top_p", "transformers_version",
}  # fmt: skip
"""Settings of a generation config that are followed here, or that change nothing."""

NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "cache_implementation": ("dynamic",),
    "encoder_repetition_penalty": (1.0,),
    "diversity_penalty": (0.0,),
    "encoder_no_repeat_ngram_size": (0,),
    "epsilon_cutoff": (0.0,),
    "eta_cutoff": (0.0,),
    "guidance_scale": (1, 1.0),
    "length_penalty": (1.0,),
    "min_length": (0,),
    "no_repeat_ngram_size": (0,),
    "num_assistant_tokens": (20,),
    "num_assistant_tokens_schedule": ("constant",),
    "num_beam_groups": (1,),
    "num_beams": (1,),
    "num_return_sequences": (1,),
    "assistant_confidence_threshold": (0.4,),
    "assistant_lookbehind": (10,),
    "target_lookbehind": (10,),
    "typical_p": (1.0,),
    "use_cache": (True,),
}
"""Values that change nothing, beside None and False."""


@dataclass(frozen=True)
class Sampling:
    """How tokens are chosen, and when a row ends: at one of ``stops``, or after ``most`` tokens; then comes ``pad``.

    Without ``draw`` the most probable token is taken. ``top_k`` is 0 for all tokens. ``top_p`` is the share of the
    probability that must remain, and ``min_p`` the least one as a share of the greatest, None for none. A repetition
    penalty of 1 is none.
    """

    stops: tuple[int, ...]
    most: int
    pad: int
    draw: bool = True
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float | None = None
    repetition_penalty: float = 1.0


def read_sampling(config: Any, defaults: Any) -> Sampling | str:
    """The sampling that a config given to ``generate`` asks for; or the option that is unknown here, in words.

    The model's own ``defaults`` fill in what it leaves at None.
    """
    values = dict(defaults.to_dict()) if defaults is not None else {}
    values |= {name: value for name, value in config.to_dict().items() if value is not None}
    for name, value in values.items():
        if name in KNOWN or value is None or value is False or name.startswith("_"):
            continue
        if value not in NEUTRAL.get(name, ()):
            return f"the generation setting {name} is {value!r}"
    eos, most = values.get("eos_token_id"), values.get("max_new_tokens")
    if most is None or values.get("pad_token_id") is None or values.get("top_k") is None:
        return "max_new_tokens, pad_token_id or top_k is unset"
    return Sampling(
        stops=() if eos is None else tuple(eos) if isinstance(eos, list | tuple) else (int(eos),),
        most=int(most),
        pad=int(values["pad_token_id"]),
        draw=bool(values.get("do_sample")),
        temperature=_or(values.get("temperature"), 1.0),
        top_k=int(values["top_k"]),
        top_p=_or(values.get("top_p"), 1.0),
        min_p=values.get("min_p"),
        repetition_penalty=_or(values.get("repetition_penalty"), 1.0),
    )


def _or(value: float | None, default: float) -> float:
    return default if value is None else float(value)


def processors(sampling: Sampling) -> Any:
    """The chain of transformers' logits processors that `generate` would build."""
    from transformers import (
        LogitsProcessorList,
        MinPLogitsWarper,
        RepetitionPenaltyLogitsProcessor,
        TemperatureLogitsWarper,
        TopKLogitsWarper,
        TopPLogitsWarper,
    )

    chain = LogitsProcessorList()
    if sampling.repetition_penalty != 1.0:
        chain.append(RepetitionPenaltyLogitsProcessor(sampling.repetition_penalty))
    if not sampling.draw:
        return chain
    if sampling.temperature != 1.0:
        chain.append(TemperatureLogitsWarper(sampling.temperature))
    if sampling.top_k != 0:
        chain.append(TopKLogitsWarper(sampling.top_k))
    if sampling.top_p < 1.0:
        chain.append(TopPLogitsWarper(sampling.top_p))
    if sampling.min_p is not None:
        chain.append(MinPLogitsWarper(sampling.min_p))
    return chain


def next_tokens(
    chain: Any,
    sampling: Sampling,
    seen_RS: torch.Tensor,
    logits_RV: torch.Tensor,
    uniform_R: torch.Tensor | None = None,
) -> torch.Tensor:
    """One token for each row.

    ``chain`` is from `processors`. ``seen_RS`` is what each row has held so far; padding must repeat a token of the
    row. The logits are float32. ``uniform_R`` are numbers in [0, 1) that pick the tokens; None draws from torch's own
    generator.
    """
    scores_RV: torch.Tensor = chain(seen_RS, logits_RV)
    if not sampling.draw:
        return scores_RV.argmax(dim=-1)
    chances_RV = scores_RV.softmax(dim=-1)
    if uniform_R is None:
        return torch.multinomial(chances_RV, num_samples=1).squeeze(1)
    reached_RV = chances_RV.double().cumsum(dim=-1)
    # Scaled by the sum, which rounding leaves beside 1, and always below it: past it there is no token.
    whole_R1 = reached_RV[:, -1:]
    wanted_R1 = torch.minimum(uniform_R.to(reached_RV)[:, None] * whole_R1, whole_R1.nextafter(whole_R1.new_zeros(())))
    return torch.searchsorted(reached_RV, wanted_R1, right=True).squeeze(1)
