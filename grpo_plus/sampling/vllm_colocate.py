"""vLLM in the training process: it receives the adapter alone, or all weights in a way that works on CPUs too.

Merged into a quantised base the adapter is lost in the rounding, and every merge in 16 bits rounds the base again. So
the adapter is transferred alone, under a new name each time, as vLLM caches by name.

All weights go through `reload_weights`, which first restores the original layout: vLLM's CPU kernels repack weights,
and a repacked weight cannot be loaded over. It takes the weights by their checkpoint names.
"""

import itertools
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

from grpo_plus.sampling.allowed_tokens import from_ids
from grpo_plus.sampling.vllm_push import FARTHEST, allowed_ids, logprobs_count, room_for


def on_cpu() -> bool:
    """Return True if vLLM runs on a CPU."""
    from vllm.platforms import current_platform

    return bool(current_platform.is_cpu())


def load_vllm(arguments: dict[str, Any], *, dtype: str | None, rank: int | None) -> "Colocated":
    """Create vLLM's ``LLM`` in the training dtype; with a ``rank`` it takes adapters of that rank.

    On a CPU vLLM cannot read bitsandbytes weights; it loads a quantised base unquantised, as in its checkpoint.
    """
    from vllm import LLM

    arguments = {**arguments, "max_logprobs": FARTHEST}
    if dtype is not None:
        arguments["dtype"] = dtype
    if rank is not None:
        arguments |= {"enable_lora": True, "max_lora_rank": room_for(rank)}
        if on_cpu():
            arguments["quantization"] = None
    return Colocated(LLM(**arguments))


class Colocated:
    """Replaces TRL's ``LLM``; everything but sampling is the ``LLM``'s own.

    Attributes:
        allowed: the allowed tokens of the latest completions; None without truncation.
        top_n: the number of log-probabilities requested at each token to find them.
    """

    def __init__(self, llm: Any) -> None:
        self._llm = llm
        self._count = itertools.count(1)
        self._adapter: Any = None
        self.top_n = 0
        self.allowed: list[torch.Tensor] | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._llm, name)

    def generate(self, prompts: Any, sampling_params: Any, **keywords: Any) -> Any:
        """Return completions, from the latest adapter if there is one."""
        if self._adapter is not None:
            keywords["lora_request"] = self._adapter
        named = {name: getattr(sampling_params, name) for name in ("top_p", "top_k", "min_p")}
        self.top_n = logprobs_count(named, int(self._llm.llm_engine.model_config.get_vocab_size()))
        if self.top_n:
            sampling_params = sampling_params.clone()
            sampling_params.logprobs = self.top_n
        answers = self._llm.generate(prompts, sampling_params=sampling_params, **keywords)
        self.allowed = self._allowed(answers) if self.top_n else None
        return answers

    def _allowed(self, answers: Any) -> list[torch.Tensor]:
        """Return the rows of all completions, and reduce their log-probabilities to the sampled tokens for TRL."""
        rows = []
        for output in (output for answer in answers for output in answer.outputs):
            logps = [{token: each.logprob for token, each in place.items()} for place in output.logprobs]
            rows.append(from_ids([allowed_ids(place) for place in logps]))
            output.logprobs = [
                {token: place[token]} for token, place in zip(output.token_ids, output.logprobs, strict=True)
            ]
        return rows

    def take_adapter(self, model: Any) -> None:
        """Load the active adapter of a PEFT model into vLLM; it has been read on return."""
        from vllm.lora.request import LoRARequest

        active, number = model.active_adapters[0], next(self._count)
        with tempfile.TemporaryDirectory(prefix="grpo_plus_vllm_") as folder:
            model.save_pretrained(
                folder, selected_adapters=[active], safe_serialization=True, save_embedding_layers=False
            )
            path = folder if active == "default" else str(Path(folder) / active)
            before, self._adapter = self._adapter, LoRARequest(f"grpo-plus-{number}", number, path)
            if before is not None:
                self._llm.llm_engine.remove_lora(before.lora_int_id)
            self._llm.llm_engine.add_lora(self._adapter)
        self._llm.reset_prefix_cache()

    def take_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Load all weights into vLLM. Each is copied: vLLM may read it after the next one is produced."""
        runner = self._llm.llm_engine.model_executor.driver_worker.model_runner
        runner.reload_weights(weights_iterator=((name, weight.detach().clone()) for name, weight in weights))
        self._llm.reset_prefix_cache()
