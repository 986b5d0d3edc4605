"""Replace a model's `generate` by `decode` if both sample from the same distribution."""

import importlib.util
import inspect
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import cache
from pathlib import Path
from typing import Any

import torch

from grpo_plus.memory.shape import head_sizes
from grpo_plus.sampling.allowed_tokens import AllowedTokensLog, truncates
from grpo_plus.sampling.decode import DecodeResult, decode, is_adapted
from grpo_plus.sampling.sampler import read_sampling
from grpo_verifiers.redaction import get_logger

logger = get_logger(__name__)

METHODS = (
    "generate", "_sample", "_get_logits_processor", "_get_stopping_criteria", "_prepare_generation_config",
    "_update_model_kwargs_for_generation", "prepare_inputs_for_generation",
)  # fmt: skip
"""Methods that ``generate`` calls; a model that overrides one must use its own ``generate``."""
SHARE = 0.7
"""Share of the free memory for caches: one layer exists twice while a cache grows."""


class Rollout:
    """Replaces a model's ``generate`` inside a block.

    At most ``most_rows`` rows are in flight; None: as many as fit. It falls when memory runs out. ``report`` is called
    with the result of each generation. If the user set the option (``explicit``), a refusal is a warning. ``stock`` is
    the reason why the model's own ``generate`` ran last; None if it did not. ``allowed`` has the allowed tokens of the
    latest completions; None without truncation. With ``alone`` no other rank takes part in passes, so a failed pass may
    be repeated.
    """

    def __init__(
        self,
        most_rows: int | None,
        report: Callable[[DecodeResult], None],
        *,
        explicit: bool = True,
        alone: bool = True,
    ) -> None:
        self._alone = alone
        self._level = logging.WARNING if explicit else logging.INFO
        self.most_rows = most_rows
        self._report = report
        self._logged: set[str] = set()
        self.stock: str | None = None
        self.allowed: list[torch.Tensor] | None = None

    @contextmanager
    def applied(self, model: Any) -> Iterator[None]:
        """Replace the unwrapped model's ``generate``; calls with unknown options use the model's own method."""
        self.allowed = None
        reason = refusal(model)
        if reason is not None:
            self._say(reason)
            yield
            return
        own = model.generate

        def generate(*arguments: Any, **keywords: Any) -> torch.Tensor:
            result = self._decode(model, arguments, keywords)
            return own(*arguments, **keywords) if result is None else result

        model.generate = generate
        try:
            yield
        finally:
            del model.generate

    def _decode(self, model: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> torch.Tensor | None:
        if arguments or set(keywords) != {"input_ids", "attention_mask", "generation_config"}:
            self._say(f"generate was called with {', '.join(map(str, keywords))}")
            return None
        sampling = read_sampling(keywords["generation_config"], model.generation_config)
        if isinstance(sampling, str):
            self._say(sampling)
            return None
        ids, mask = keywords["input_ids"], keywords["attention_mask"].bool()
        prompts = [row[real].tolist() for row, real in zip(ids.cpu(), mask.cpu(), strict=True)]
        if not all(prompts):
            self._say("a prompt is empty")
            return None
        rows = self.most_rows or affordable_rows(model, max(map(len, prompts)) + sampling.most, ids.device)
        # Adapters are inside the plain model. PEFT's generate also calls it, without any autocast around it.
        plain = model.get_base_model() if is_adapted(model) else model
        self.stock = None
        log = AllowedTokensLog() if truncates(sampling) else None
        # Around all passes, so that autocast's cache of cast weights lives across them; each pass turns it on again.
        with torch.autocast(ids.device.type, enabled=False) if self._alone else nullcontext():
            decoded = decode(
                plain, prompts, sampling, most_rows=rows, device=ids.device, support=log, again=self._alone
            )
        if log is not None:
            self.allowed = log.rows([len(row) for row in decoded.completions])
        if decoded.places < min(rows or len(prompts), len(prompts)):
            self.most_rows = decoded.places
            logger.warning(
                "Out of memory while drawing completions; the rows in flight were read again. From now on at most %d "
                "are drawn at once. To start with this limit, set rollout: {rows: %d}.",
                decoded.places,
                decoded.places,
            )
        self._report(decoded)
        width = max(map(len, decoded.completions))
        filled = [row + [sampling.pad] * (width - len(row)) for row in decoded.completions]
        return torch.cat([ids, torch.tensor(filled, dtype=ids.dtype, device=ids.device)], dim=1)

    def _say(self, reason: str) -> None:
        self.stock = reason
        if reason not in self._logged:
            self._logged.add(reason)
            logger.log(self._level, "Rollouts run through the model's own generate: %s.", reason)


def refusal(model: Any) -> str | None:
    """Return the reason why a model must use its own ``generate``; None if `decode` can replace it."""
    from transformers import DynamicCache, GenerationMixin
    from transformers.cache_utils import DynamicLayer

    plain = model
    if is_adapted(model):
        from peft import PeftModelForCausalLM

        if type(model).generate is not PeftModelForCausalLM.generate or not _as_installed(type(model).generate):
            return f"{type(model).__name__} has a generate of its own"
        for name in model.active_adapters:
            kind = model.peft_config[name]
            if kind.is_prompt_learning or getattr(kind, "alora_invocation_tokens", None):
                return f"the adapter {name!r} changes the prompt"
        plain = model.get_base_model()
    name = type(plain).__name__
    if not isinstance(plain, GenerationMixin):
        return f"{name} is no generating model of transformers"
    if "generate" in vars(model) or any(method in vars(plain) for method in METHODS):
        return "generate was replaced on this model"
    for method in METHODS:
        own = getattr(type(plain), method, None)
        if own is not getattr(GenerationMixin, method, None) or not (own is None or _as_installed(own)):
            return f"{name} has a {method} of its own"
    if len(set((getattr(plain, "hf_device_map", None) or {}).values())) > 1:
        return f"{name} is spread over several devices"
    if plain.config.is_encoder_decoder or plain.config.get_text_config() is not plain.config:
        return f"{name} reads more than a row of tokens"
    parameters = inspect.signature(type(plain).forward).parameters
    if "position_ids" not in parameters or "logits_to_keep" not in parameters:
        return f"{name} takes no positions"
    layers = DynamicCache(config=plain.config).layers
    if not layers or any(type(layer) is not DynamicLayer for layer in layers):
        return f"{name} does not keep keys and values of all tokens (sliding-window or linear attention)"
    return None


def _as_installed(method: Any) -> bool:
    """Return True if a method and all its wrappers come from the libraries and not from a patch."""
    while method is not None:
        code = getattr(method, "__code__", None)
        if code is None or not code.co_filename.startswith(_libraries()):
            return False
        method = getattr(method, "__wrapped__", None)
    return True


@cache
def _libraries() -> tuple[str, ...]:
    names = ("torch", "transformers", "peft")
    specs = [importlib.util.find_spec(name) for name in names]
    return tuple(f"{Path(spec.origin).parent}{os.sep}" for spec in specs if spec is not None and spec.origin)


def affordable_rows(model: Any, length: int, device: torch.device) -> int | None:
    """Return the number of rows of ``length`` tokens that fit in the free memory; None except on CUDA."""
    if device.type != "cuda":
        return None
    free, total = torch.cuda.mem_get_info(device)
    reserved = torch.cuda.memory_reserved(device)
    free = min(free, int(torch.cuda.get_per_process_memory_fraction(device) * total) - reserved)
    return rows_that_fit(model, length, SHARE * (free + reserved - torch.cuda.memory_allocated(device)))


def rows_that_fit(model: Any, length: int, memory: float) -> int:
    """Return the number of rows, at least one, whose keys and values of ``length`` tokens fit in ``memory`` bytes."""
    text = model.config.get_text_config()
    _, heads, width = head_sizes(text)
    size = torch.finfo(model.dtype).bits // 8 if model.dtype.is_floating_point else 2
    return max(1, int(memory // (2 * text.num_hidden_layers * heads * width * length * size)))
