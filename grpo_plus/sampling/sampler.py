"""Sampling of the next tokens with transformers' processors, in the order of `generate`."""

from dataclasses import dataclass
from typing import Any

import torch

SUPPORTED = {
    "bos_token_id", "disable_compile", "do_sample", "eos_token_id", "max_length", "max_new_tokens", "min_p",
    "pad_token_id", "repetition_penalty", "temperature", "top_k", "top_p", "transformers_version",
}  # fmt: skip
"""Settings of a generation config that are followed or have no effect here."""


@dataclass(frozen=True)
class Sampling:
    """Sampling parameters. A row ends at one of ``stops`` or after ``most`` tokens and is padded with ``pad``.

    Without ``draw`` decoding is greedy. ``top_k`` 0 means all tokens. ``top_p`` is the probability mass that must
    remain; ``min_p`` the least probability as a share of the greatest, or None. A repetition penalty of 1 has no
    effect.
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
    """Return the sampling of a generation config, or a sentence about an option that is not supported.

    The model's ``defaults`` replace values of None.
    """
    from transformers import GenerationConfig

    # Values without effect, in addition to None and False.
    neutral = {
        **GenerationConfig._get_default_generation_params(),  # noqa: SLF001 - the defaults of generate
        "cache_implementation": "dynamic",
        "guidance_scale": 1,
    }
    values = dict(defaults.to_dict()) if defaults is not None else {}
    values |= {name: value for name, value in config.to_dict().items() if value is not None}
    for name, value in values.items():
        if name in SUPPORTED or value is None or value is False or name.startswith("_"):
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
    """Return the chain of logits processors that `generate` would build."""
    import transformers

    chain: list[tuple[Any, float | None, float | None]] = [
        (transformers.RepetitionPenaltyLogitsProcessor, sampling.repetition_penalty, 1.0)
    ]
    if sampling.draw:
        chain += [
            (transformers.TemperatureLogitsWarper, sampling.temperature, 1.0),
            (transformers.TopKLogitsWarper, sampling.top_k, 0),
            (transformers.TopPLogitsWarper, min(sampling.top_p, 1.0), 1.0),
            (transformers.MinPLogitsWarper, sampling.min_p, None),
        ]
    return transformers.LogitsProcessorList([kind(value) for kind, value, neutral in chain if value != neutral])


def pick(scores_RV: torch.Tensor, numbers_R: torch.Tensor) -> torch.Tensor:
    """Return the token whose interval of the cumulative softmax contains each number in [0, 1); V for NaN scores.

    A large vocabulary is searched in two steps, so that only a part of it is summed in float64.
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
"""Tokens of a large vocabulary in one partial sum."""


def _reached(chances_RV: torch.Tensor, share_R1: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the entry at which a share of the sum is reached, and the share within that entry."""
    reached_RV, target_R1 = _sums(chances_RV, share_R1)
    place_R1 = _place(reached_RV, target_R1)
    entry_R1 = place_R1.clamp(max=chances_RV.shape[1] - 1)
    own_R1 = chances_RV.gather(1, entry_R1).double()
    rest_R1 = target_R1 - (reached_RV.gather(1, entry_R1) - own_R1)
    return place_R1, (rest_R1 / own_R1).clamp(0, 1)


def _sums(chances_RV: torch.Tensor, share_R1: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the cumulative sum and the share of its total.

    Rounding leaves the total near 1. The share stays below the total: no token follows it.
    """
    reached_RV = chances_RV.cumsum(dim=-1, dtype=torch.float64)
    total_R1 = reached_RV[:, -1:]
    return reached_RV, torch.minimum(share_R1.to(reached_RV) * total_R1, total_R1.nextafter(total_R1.new_zeros(())))


def _place(reached_RV: torch.Tensor, target_R1: torch.Tensor) -> torch.Tensor:
    return torch.searchsorted(reached_RV, target_R1, right=True)


class RandomNumbers:
    """Random numbers in [0, 1) for rows and positions, seeded with one number of torch's generator.

    They do not depend on the order of the calls.
    """

    def __init__(self, rows: int, device: Any) -> None:
        self._generator = torch.Generator(device or "cpu").manual_seed(int(torch.randint(2**62, ())))
        self._numbers_NT = torch.zeros(rows, 0, dtype=torch.float64, device=device)

    def reserve(self, places: int) -> None:
        """Generate numbers for at least ``places`` positions of each row."""
        while self._numbers_NT.shape[1] < places:
            more = torch.empty(len(self._numbers_NT), 64, dtype=torch.float64, device=self._numbers_NT.device)
            self._numbers_NT = torch.cat([self._numbers_NT, more.uniform_(generator=self._generator)], dim=1)

    def __call__(self, rows: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        """Return the numbers of these rows and positions."""
        return self._numbers_NT[rows, places]
