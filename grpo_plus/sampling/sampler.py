"""From logits to the next tokens, as `generate` does it: transformers' own processors in its own order."""

from dataclasses import dataclass
from typing import Any

import torch

KNOWN = {
    "bos_token_id", "disable_compile", "do_sample", "eos_token_id", "max_length", "max_new_tokens", "min_p",
    "pad_token_id", "repetition_penalty", "temperature", "top_k", "top_p", "transformers_version",
}  # fmt: skip
"""Settings of a generation config that are followed here, or that change nothing."""


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
    from transformers import GenerationConfig

    # Values that change nothing, beside None and False.
    neutral = {
        **GenerationConfig._get_default_generation_params(),  # noqa: SLF001 - what generate fills in
        "cache_implementation": "dynamic",
        "guidance_scale": 1,
    }
    values = dict(defaults.to_dict()) if defaults is not None else {}
    values |= {name: value for name, value in config.to_dict().items() if value is not None}
    for name, value in values.items():
        if name in KNOWN or value is None or value is False or name.startswith("_"):
            continue
        if value != neutral.get(name):
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


def pick(scores_RV: torch.Tensor, numbers_R: torch.Tensor) -> torch.Tensor:
    """The token in whose part of the softmax each number in [0, 1) falls; V where scores are NaN.

    A large vocabulary is searched in two steps, so that only a part of it is summed up in float64.
    """
    chances_RV = scores_RV.softmax(dim=-1)
    vocabulary = chances_RV.shape[1]
    if vocabulary <= 4 * _PART:
        return _place(*_sums(chances_RV, numbers_R[:, None])).squeeze(1)
    parts_RPC = torch.nn.functional.pad(chances_RV, (0, -vocabulary % _PART)).view(len(scores_RV), -1, _PART)
    part_R1, reached_R1 = _reached(parts_RPC.sum(dim=-1), numbers_R[:, None])
    part_R1 = part_R1.clamp(max=parts_RPC.shape[1] - 1)
    part_RC = parts_RPC.gather(1, part_R1[:, :, None].expand(-1, 1, _PART)).squeeze(1)
    inside_R1 = _reached(part_RC, reached_R1)[0]
    return (part_R1 * _PART + inside_R1).squeeze(1).clamp(max=vocabulary)


_PART = 128
"""Tokens of a large vocabulary that are summed up together."""


def _reached(chances_RV: torch.Tensor, share_R1: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Where a share of the sum is reached, and the share of that entry's own part."""
    reached_RV, wanted_R1 = _sums(chances_RV, share_R1)
    place_R1 = _place(reached_RV, wanted_R1)
    found_R1 = place_R1.clamp(max=chances_RV.shape[1] - 1)
    own_R1 = chances_RV.gather(1, found_R1).double()
    rest_R1 = wanted_R1 - (reached_RV.gather(1, found_R1) - own_R1)
    return place_R1, (rest_R1 / own_R1).clamp(0, 1)


def _sums(chances_RV: torch.Tensor, share_R1: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The running sum, and the share of it.

    Scaled by the sum, which rounding leaves beside 1, and always below it: past it there is no token.
    """
    reached_RV = chances_RV.cumsum(dim=-1, dtype=torch.float64)
    whole_R1 = reached_RV[:, -1:]
    return reached_RV, torch.minimum(share_R1.to(reached_RV) * whole_R1, whole_R1.nextafter(whole_R1.new_zeros(())))


def _place(reached_RV: torch.Tensor, wanted_R1: torch.Tensor) -> torch.Tensor:
    return torch.searchsorted(reached_RV, wanted_R1, right=True)


class Numbers:
    """Random numbers in [0, 1) for rows and places, from one number of torch's own generator.

    A row's are the same whatever the order in which they are asked for.
    """

    def __init__(self, rows: int, device: Any) -> None:
        self._generator = torch.Generator(device or "cpu").manual_seed(int(torch.randint(2**62, ())))
        self._numbers_NT = torch.zeros(rows, 0, dtype=torch.float64, device=device)

    def reserve(self, places: int) -> None:
        """Have numbers for as many places of each row."""
        while self._numbers_NT.shape[1] < places:
            more = torch.empty(len(self._numbers_NT), 64, dtype=torch.float64, device=self._numbers_NT.device)
            self._numbers_NT = torch.cat([self._numbers_NT, more.uniform_(generator=self._generator)], dim=1)

    def __call__(self, rows: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        """The numbers of these rows and places."""
        return self._numbers_NT[rows, places]
