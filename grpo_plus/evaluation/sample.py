"""Sample completions that depend on their own seeds only, not on the batch or the order of the rows."""

import hashlib
import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Annotated, Any, get_type_hints

import torch

from grpo_plus.engine.dropout import without_dropout
from grpo_plus.engine.forward import leave_out_cudnn
from grpo_plus.sampling.decode import decode, is_adapted
from grpo_plus.sampling.rollout import affordable_rows, refusal
from grpo_plus.sampling.sampler import Sampling
from grpo_verifiers.options import Range, value_problems

PositiveInt = Annotated[int, Range(1, text="a whole number of at least 1")]


@dataclass(frozen=True)
class SampleSettings:
    """Sampling settings.

    ``max_completion_length`` is in tokens. ``temperature`` 0 takes the most probable token. ``top_p`` is the
    remaining probability mass, ``top_k`` the number of most probable tokens (0 for all), ``min_p`` the least
    probability as a share of the greatest (None for no limit). ``repetition_penalty`` divides the logits of earlier
    tokens; 1 for none.
    """

    max_completion_length: PositiveInt = 256
    temperature: Annotated[float, Range(0, 1e6, text="0 (greedy) or more")] = 1.0
    top_p: Annotated[float, Range(0, 1, open_low=True, text="a number above 0 and up to 1")] = 1.0
    top_k: Annotated[int, Range(0, text="a whole number, 0 for no limit")] = 0
    min_p: Annotated[float, Range(0, 1, text="a number from 0 to 1")] | None = None
    repetition_penalty: Annotated[float, Range(1e-6, 1e6, text="a number above 0")] = 1.0

    def __post_init__(self) -> None:
        """Refuse values out of range."""
        hints = get_type_hints(type(self), include_extras=True)
        problems = [text for name, hint in hints.items() for text in value_problems(name, getattr(self, name), hint)]
        if problems:
            raise ValueError(" ".join(problems))


def seed_of(seed: int, row: int, sample: int, turn: int = 0) -> int:
    """Return the seed of one turn of a completion, from the evaluation's seed and the numbers of row and sample."""
    text = (f"{seed}/{row}/{sample}" + (f"/{turn}" if turn else "")).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest())


class Sampler:
    """Complete prompts with a causal language model.

    ``stops`` are the tokens that end a completion, ``most`` bounds its tokens. ``refusal`` is the reason why the model
    needs its own ``generate``; None if the decoder of grpo_plus supports it.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        drawing: SampleSettings,
        template_keywords: Mapping[str, Any] | None = None,
        *,
        device: torch.device | None = None,
        alone: bool = True,
    ) -> None:
        """Inspect the unwrapped model, with or without adapters; its mode does not change.

        ``template_keywords`` are further arguments of the chat template. ``device`` is the device of the passes, by
        default that of the weights. ``alone`` is True if no other process shares the passes, so that a pass may be
        repeated when memory runs out.
        """
        self._model = model
        self.tokenizer = tokenizer
        self._template_keywords = dict(template_keywords or {})
        self.stops = _stops(model, tokenizer)
        pad = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else next(iter(self.stops), None)
        if pad is None:
            raise ValueError("the tokenizer has neither a pad token nor an end token: set tokenizer.pad_token.")
        self._pad = int(pad)
        self.most = drawing.max_completion_length
        self._sampling = Sampling(
            stops=self.stops,
            most=self.most,
            pad=self._pad,
            draw=drawing.temperature > 0,
            temperature=drawing.temperature or 1.0,
            top_k=drawing.top_k,
            top_p=drawing.top_p,
            min_p=drawing.min_p,
            repetition_penalty=drawing.repetition_penalty,
        )
        self.refusal = refusal(model)
        self._device = next(model.parameters()).device if device is None else device
        self._alone = alone
        leave_out_cudnn(self._device)
        self._plain = model.get_base_model() if is_adapted(model) else model

    def tokenize(self, prompt: Any) -> list[int]:
        """Return the ids of a prompt; the chat template formats a conversation."""
        tokenizer = getattr(self.tokenizer, "tokenizer", self.tokenizer)
        if isinstance(prompt, str):
            ids = list(tokenizer(prompt)["input_ids"])
        elif getattr(tokenizer, "chat_template", None) is None:
            raise ValueError("the prompt is a conversation, but the tokenizer has no chat template.")
        else:
            encoded = tokenizer.apply_chat_template(
                prompt, add_generation_prompt=True, tokenize=True, return_dict=True, **self._template_keywords
            )
            ids = list(encoded["input_ids"])
        if not ids:
            raise ValueError("the prompt is empty.")
        return ids

    def complete(self, prompts: Sequence[list[int]], seeds: Sequence[int], most: int | None = None) -> list[list[int]]:
        """Return the tokens of one completion for each prompt, with the end token; at most ``most``.

        If the model needs its own ``generate`` (see `refusal`), the first seed is that of the batch.
        """
        sampling = self._sampling if most is None else replace(self._sampling, most=most)
        with without_dropout(self._model), restored_random_state():
            if self.refusal is None:
                return self._decode(prompts, seeds, sampling)
            torch.manual_seed(seeds[0] & 0x7FFF_FFFF)
            return self._generate(prompts, sampling)

    def text(self, ids: Sequence[int]) -> str:
        """Return the text of a completion for its verifier, without special tokens."""
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=True))

    def is_cut_off(self, ids: Sequence[int]) -> bool:
        """Return True if a completion has no end token."""
        return not ids or ids[-1] not in self.stops

    def _decode(self, prompts: Sequence[list[int]], seeds: Sequence[int], sampling: Sampling) -> list[list[int]]:
        most = sampling.most
        streams = [random.Random(seed) for seed in seeds]  # noqa: S311 - samples, not secrets
        numbers = torch.tensor([[stream.random() for _ in range(most)] for stream in streams], dtype=torch.float64)
        numbers = numbers.to(self._device)

        done = decode(
            self._plain,
            prompts,
            sampling,
            most_rows=affordable_rows(self._plain, max(map(len, prompts)) + most, self._device),
            device=self._device,
            uniform=lambda rows, places: numbers[rows, places],
            again=self._alone,
        )
        return done.completions

    @torch.no_grad()
    def _generate(self, prompts: Sequence[list[int]], s: Sampling) -> list[list[int]]:
        from transformers import GenerationConfig

        width = max(map(len, prompts))
        ids = torch.tensor([[self._pad] * (width - len(prompt)) + prompt for prompt in prompts])
        mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts])
        chosen: dict[str, Any] = {"do_sample": s.draw, "repetition_penalty": s.repetition_penalty}
        if s.draw:
            chosen |= {"temperature": s.temperature, "top_p": s.top_p, "top_k": s.top_k, "min_p": s.min_p}
        config = GenerationConfig(
            max_new_tokens=s.most, pad_token_id=s.pad, eos_token_id=list(s.stops) or None, **chosen
        )
        output = self._model.generate(
            input_ids=ids.to(self._device),
            attention_mask=mask.to(self._device),
            generation_config=config,
            synced_gpus=False,  # the caller synchronises ranks that share passes
        )
        rows = []
        for row in output[:, width:].tolist():
            end = next((place for place, token in enumerate(row) if token in s.stops), len(row) - 1)
            rows.append(row[: end + 1])
        return rows


def _stops(model: Any, tokenizer: Any) -> tuple[int, ...]:
    eos = getattr(getattr(model, "generation_config", None), "eos_token_id", None)
    listed = eos if isinstance(eos, list | tuple) else [eos]
    return tuple(dict.fromkeys(int(token) for token in (tokenizer.eos_token_id, *listed) if token is not None))


@contextmanager
def restored_random_state() -> Iterator[None]:
    """Restore torch's random state at the end."""
    devices = list(range(torch.cuda.device_count())) if torch.cuda.is_available() else []
    with torch.random.fork_rng(devices=devices):
        yield
