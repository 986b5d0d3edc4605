"""vLLM in the process that trains: it is handed the adapter alone, or all weights in a way that holds on a CPU too.

Merged into a quantised base the adapter is lost in the rounding, and in 16 bits every merge wears the base away. So the
adapter goes over as an adapter, under a name of its own each time: what vLLM has cached belongs to a name.

All weights go by `reload_weights`, which undoes what vLLM has made of them first: its kernels for CPUs repack a weight,
and nothing can be loaded over one that was repacked. It takes them by their names in a checkpoint.
"""

import itertools
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

from grpo_plus.sampling.support import listed
from grpo_plus.sampling.vllm_push import room_for
from grpo_plus.sampling.vllm_support import FARTHEST, asked_about, kept_ids


def on_cpu() -> bool:
    """A CPU is what vLLM runs on."""
    from vllm.platforms import current_platform

    return bool(current_platform.is_cpu())


def made(arguments: dict[str, Any], *, dtype: str | None, rank: int | None) -> "Colocated":
    """Make vLLM as it is asked for, in the type that is trained in; with a ``rank`` it takes adapters of that rank.

    On a CPU, where vLLM reads no weights of bitsandbytes, it holds a quantised base as its checkpoint does.
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
    """Stands where TRL keeps the ``LLM`` that it made; everything but drawing is the ``LLM``'s own.

    Attributes:
        supports: of the completions drawn last, what their tokens were drawn from; None where that is everything.
        asked: about how many tokens beside each sampled one vLLM is asked, to know it.
    """

    def __init__(self, llm: Any) -> None:
        self._llm = llm
        self._count = itertools.count(1)
        self._adapter: Any = None
        self.asked = 0
        self.supports: list[torch.Tensor] | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._llm, name)

    def generate(self, prompts: Any, sampling_params: Any, **keywords: Any) -> Any:
        """Completions, from the adapter that was handed over last if there is one."""
        if self._adapter is not None:
            keywords["lora_request"] = self._adapter
        named = {name: getattr(sampling_params, name) for name in ("top_p", "top_k", "min_p")}
        self.asked = asked_about(named, int(self._llm.llm_engine.model_config.get_vocab_size()))
        if self.asked:
            sampling_params = sampling_params.clone()
            sampling_params.logprobs = self.asked
        answers = self._llm.generate(prompts, sampling_params=sampling_params, **keywords)
        self.supports = self._supports(answers) if self.asked else None
        return answers

    def _supports(self, answers: Any) -> list[torch.Tensor]:
        """The supports of all completions; what was told beside the sampled tokens is taken out, as TRL wants it."""
        found = []
        for output in (output for answer in answers for output in answer.outputs):
            told = [{token: each.logprob for token, each in place.items()} for place in output.logprobs]
            found.append(listed([kept_ids(place) for place in told]))
            output.logprobs = [
                {token: place[token]} for token, place in zip(output.token_ids, output.logprobs, strict=True)
            ]
        return found

    def take_adapter(self, model: Any) -> None:
        """Hand over the active adapter of a PEFT model. vLLM has read it when this returns."""
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
        """Take all weights over; vLLM may read one later than it comes, so each is copied."""
        runner = self._llm.llm_engine.model_executor.driver_worker.model_runner
        runner.reload_weights(weights_iterator=((name, weight.detach().clone()) for name, weight in weights))
        self._llm.reset_prefix_cache()
