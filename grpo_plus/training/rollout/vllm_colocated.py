"""vLLM in the trainer's own process: adapters go over alone, and weights reach it on a CPU too."""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from grpo_plus.qlora.checks import Request
from grpo_plus.recipe.truncation import truncation
from grpo_plus.recipe.values import mapping
from grpo_plus.sampling.vllm_colocate import Colocated, load_vllm, on_cpu
from grpo_plus.sampling.vllm_push import adapter_problems, logprobs_count, start_command
from grpo_plus.sampling.vllm_server import BY_TRAINING, key_problems
from grpo_plus.training.hooks import Setup, TrainerStage
from grpo_plus.training.update.quantised import request_for
from grpo_plus.trl.host import Host
from grpo_plus.trl.ranks import unwrapped_model
from grpo_plus.trl.vllm import build_vllm_with, sync_weights_with, weights_for_vllm
from grpo_verifiers.errors import Problem
from grpo_verifiers.redaction import get_logger

logger = get_logger(__name__)


def merge_reasons(request: Request, *, sleeps: bool) -> list[str]:
    """Why an adapter cannot go over alone; with ``sleeps`` vLLM drops its weights between batches."""
    found = adapter_problems(request.adapter)
    if request.sharded or request.zero_stage == 3:
        found.append("use_vllm: the adapter is sharded (FSDP or ZeRO-3): use plain data parallelism or ZeRO-2.")
    if sleeps:
        found.append(
            "vllm_enable_sleep_mode is true: what vLLM drops asleep comes back by a push of all weights, which an "
            "adapter is not. Set it to false."
        )
    return found


class ColocatedRollout(TrainerStage):
    """Brings the weights of training to a vLLM in the same process; without one it does nothing.

    An adapter goes over alone wherever vLLM can take it. Where it cannot, TRL merges it into a plain base and says so
    here; a quantised base is never merged into. ``llm`` is the vLLM; None where there is none in this process.
    """

    def __init__(self) -> None:
        self._rank: int | None = None
        self._active = False
        self._dtype: str | None = None
        self.llm: Colocated | None = None

    def problems(self, setup: Setup) -> Sequence[Problem]:
        """A quantised base that vLLM cannot hold, or whose adapter could only be merged into it; reserved keywords."""
        args = setup.args
        if not _colocated(args):
            return []
        keywords, request = mapping("generation_kwargs", args.generation_kwargs), request_for(setup)
        found: list[Problem] = [*key_problems(keywords, dict.fromkeys(("n", "logprobs"), BY_TRAINING))]
        if request.bits is None:
            return found
        found += merge_reasons(request, sleeps=args.vllm_enable_sleep_mode)
        if request.bits == 8:
            command = start_command(request.name, getattr(request.adapter, "r", None), logprobs_count(truncation(args)))
            found.append(
                "vllm_mode is 'colocate' and the base is 8-bit, which vLLM in the same process cannot hold. Set "
                f"vllm_mode: server for a server that takes the adapter alone ({command}), load_in_4bit: true, or "
                "use_vllm: false (rollout: auto makes the plain path leaner)."
            )
        return found

    def before_loading(self, setup: Setup) -> None:
        """Choose how the adapter goes over, and note the type that is trained in."""
        self._active = _colocated(setup.args)
        if not self._active:
            return
        self._dtype = _dtype(setup.model, setup.args)
        request = request_for(setup)
        reasons = merge_reasons(request, sleeps=setup.args.vllm_enable_sleep_mode) if request.adapters else []
        if request.adapters and request.bits is None and not isinstance(setup.model, str):
            reasons.append("The model was handed over as an object, whose weights may not be those that vLLM loads.")
        if reasons:
            logger.warning("vLLM gets the adapter merged into all weights, as TRL does it: %s", " ".join(reasons))
        elif request.adapters:
            self._rank = int(request.adapter.r)

    def loading(self, args: Any) -> AbstractContextManager[Any]:  # noqa: ARG002 - the hook's signature
        """Have vLLM made for adapters, in the type that is trained in."""

        def make(**arguments: Any) -> Colocated:
            self.llm = load_vllm(arguments, dtype=self._dtype, rank=self._rank)
            return self.llm

        return build_vllm_with(make) if self._active else nullcontext()

    def after_loading(self, host: Host) -> None:
        """Take the place of TRL's push of weights, where that would merge or fail."""
        super().after_loading(host)
        llm = self.llm
        if llm is not None and self._rank is not None:
            sync_weights_with(host, lambda: llm.take_adapter(unwrapped_model(host)))
        elif llm is not None and on_cpu():
            sync_weights_with(host, lambda: llm.take_weights(weights_for_vllm(host)))


def _colocated(args: Any) -> bool:
    return bool(args.use_vllm) and args.vllm_mode == "colocate"


def _dtype(model: Any, args: Any) -> str:
    """The type that the forward passes of training compute in.

    vLLM left to itself makes 16 bits of a checkpoint in 32, and then draws from a rounded policy.
    """
    if args.bf16 or args.fp16:
        return "bfloat16" if args.bf16 else "float16"
    init = args.model_init_kwargs or {}
    asked = init.get("dtype", init.get("torch_dtype")) if isinstance(model, str) else model.dtype
    return str(asked or "float32").removeprefix("torch.")
