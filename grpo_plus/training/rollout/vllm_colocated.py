"""vLLM in the trainer's own process: transfer of adapters without a merge, and of weights on a CPU."""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from grpo_plus.qlora.checks import Request
from grpo_plus.recipe.values import mapping
from grpo_plus.sampling.vllm_colocate import Colocated, load_vllm, on_cpu
from grpo_plus.sampling.vllm_push import adapter_problems
from grpo_plus.sampling.vllm_server import BY_TRAINING, key_problems
from grpo_plus.training.hooks import Setup, TrainerStage
from grpo_plus.training.update import request_for
from grpo_plus.trl.host import Host
from grpo_plus.trl.ranks import unwrapped_model
from grpo_plus.trl.rollout import build_vllm_with, sync_weights_with, weights_for_vllm
from grpo_verifiers.errors import Problem
from grpo_verifiers.redaction import get_logger

logger = get_logger(__name__)


def merge_reasons(request: Request, *, sleeps: bool) -> list[str]:
    """Reasons against a transfer of the adapter alone; with ``sleeps`` vLLM drops its weights between batches."""
    reasons = adapter_problems(request.adapter)
    if request.sharded or request.zero_stage == 3:
        reasons.append("use_vllm: the adapter is sharded (FSDP or ZeRO-3): use plain data parallelism or ZeRO-2.")
    if sleeps:
        reasons.append(
            "vllm_enable_sleep_mode is true: vLLM drops its weights between batches, and only a transfer of all of "
            "them restores them. Set it to false."
        )
    return reasons


class ColocatedRollout(TrainerStage):
    """Transfers weights to a vLLM in the same process; without one it does nothing.

    vLLM gets the adapter alone if it can load it. Otherwise TRL merges it into a plain base, which is logged; adapters
    of a quantised base are never merged. ``llm`` is the vLLM; None without one in this process.
    """

    def __init__(self) -> None:
        self._rank: int | None = None
        self._active = False
        self._dtype: str | None = None
        self.llm: Colocated | None = None

    def problems(self, setup: Setup) -> Sequence[Problem]:
        """Quantised bases that vLLM cannot load, or whose adapter would have to be merged; reserved keywords."""
        args = setup.args
        if not _colocated(args):
            return []
        keywords, request = mapping("generation_kwargs", args.generation_kwargs), request_for(setup)
        problems: list[Problem] = [*key_problems(keywords, dict.fromkeys(("n", "logprobs"), BY_TRAINING))]
        if request.bits is None:
            return problems
        problems += merge_reasons(request, sleeps=args.vllm_enable_sleep_mode)
        if request.bits == 8:
            problems.append(
                "vllm_mode is 'colocate' and the base is 8-bit, which vLLM in the same process cannot hold. Set "
                "vllm_mode: server, load_in_4bit: true, or use_vllm: false."
            )
        return problems

    def before_loading(self, setup: Setup) -> None:
        """Choose the transfer of the adapter, and read the dtype of training."""
        self._active = _colocated(setup.args)
        if not self._active:
            return
        args, init = setup.args, setup.args.model_init_kwargs or {}
        if args.bf16 or args.fp16:  # the dtype of training; vLLM's default would round a 32-bit checkpoint to 16 bits
            dtype: Any = "bfloat16" if args.bf16 else "float16"
        elif isinstance(setup.model, str):
            dtype = init.get("dtype", init.get("torch_dtype"))
        else:
            dtype = setup.model.dtype
        self._dtype = str(dtype or "float32").removeprefix("torch.")
        request = request_for(setup)
        reasons = merge_reasons(request, sleeps=setup.args.vllm_enable_sleep_mode) if request.adapters else []
        if request.adapters and request.bits is None and not isinstance(setup.model, str):
            reasons.append("The model was passed as an object; its weights may differ from those that vLLM loads.")
        if reasons:
            logger.warning("vLLM gets the adapter merged into all weights, by TRL: %s", " ".join(reasons))
        elif request.adapters:
            self._rank = int(request.adapter.r)

    def loading(self, args: Any) -> AbstractContextManager[Any]:  # noqa: ARG002 - the hook's signature
        """TRL creates a vLLM with support for adapters, in the dtype of training."""

        def load(**arguments: Any) -> Colocated:
            self.llm = load_vllm(arguments, dtype=self._dtype, rank=self._rank)
            return self.llm

        return build_vllm_with(load) if self._active else nullcontext()

    def after_loading(self, host: Host) -> None:
        """Replace TRL's transfer of weights if that would merge or fail."""
        super().after_loading(host)
        llm = self.llm
        if llm is not None and self._rank is not None:
            sync_weights_with(host, lambda: llm.take_adapter(unwrapped_model(host)))
        elif llm is not None and on_cpu():
            sync_weights_with(host, lambda: llm.take_weights(weights_for_vllm(host)))


def _colocated(args: Any) -> bool:
    return bool(args.use_vllm) and args.vllm_mode == "colocate"
