"""The parts of 4-bit training that work beside a trainer, wired to it."""

from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from grpo_plus import _trl
from grpo_plus.memory.advice import (
    LOWER,
    capacity_of,
    optimizer_of,
    optimizer_suggestion,
    resident,
    settings_of,
    suggestion,
)
from grpo_plus.memory.calibration import slack_of
from grpo_plus.memory.estimate import estimate
from grpo_plus.memory.shape import shape_of
from grpo_plus.qlora.model import bits_of, quantises_twice
from grpo_plus.sampling.decode import Decoded
from grpo_plus.sampling.rollout import Rollout
from grpo_plus.sampling.vllm_adapter import AdapterServer, CloseAtEnd, warn_of_raw
from grpo_verifiers.redaction import get_logger

logger = get_logger(__name__)


class Rollouts:
    """Leaner rollouts for a trainer whose config asks for them."""

    def __init__(self, trainer: Any) -> None:
        """Look at the config once.

        Args:
            trainer: fully built.
        """
        self._trainer = trainer
        wanted = getattr(trainer.args, "rollout", "stock") == "auto"
        sharded = trainer.is_fsdp_enabled or trainer.is_deepspeed_enabled
        self._lists: dict[str, list[float]] = {}
        self._rollout: Rollout | None = None
        if wanted and not sharded:
            self._rollout = Rollout(trainer.args.rollout_rows, self._report)
        elif wanted and trainer.accelerator.is_main_process:
            logger.warning(
                "rollout is 'auto', but the parameters are sharded (FSDP or DeepSpeed): TRL draws the completions, all "
                "rows at once."
            )

    @property
    def most_rows(self) -> int | None:
        """Rows drawn at once, at most; None for no bound, and where TRL draws them."""
        return None if self._rollout is None else self._rollout.most_rows

    def whole(self) -> str:
        """Why completions cannot be drawn in smaller parts than they were, and what to do; a sentence."""
        again = "drawing rows again, fewer at once, would favour short completions"
        if self._trainer.use_vllm:
            return "vLLM drew them: lower vllm_gpu_memory_utilization."
        if self._rollout is None:
            return (
                f"TRL's own sampling draws all rows at once, and {again}: set rollout: auto, which starts with fewer."
            )
        if self._rollout.stock is not None:
            return f"The model's own generate drew all rows at once ({self._rollout.stock}), and {again}."
        return "Not even one completion at a time fits."

    def applied(self) -> AbstractContextManager[None]:
        """Around the drawing of completions."""
        if self._rollout is None:
            return nullcontext()
        # Asked for now: which lists are those of the present mode shows by the model, which samples in another one.
        self._lists = _trl.metrics_of(self._trainer)
        return self._rollout.applied(self._trainer.accelerator.unwrap_model(self._trainer.model_wrapped))

    def _report(self, cost: Decoded) -> None:
        self._lists["rollout/row_steps"].append(float(cost.row_steps))
        self._lists["rollout/row_steps_saved"].append(1 - cost.row_steps / max(cost.stock_row_steps, 1))
        self._lists["rollout/prefills"].append(float(cost.prefills))
        if cost.failures:
            self._trainer.retry.note(self._lists, cost.failures)


def draw_from_server(trainer: Any) -> None:
    """Have completions drawn by a vLLM server that is handed the adapter alone, where the guard found that to be asked.

    Args:
        trainer: built so far that it has its model.
    """
    client = trainer.guard.client
    if client is None:
        return
    sampling = _trl.sampling_parameters(trainer)
    if trainer.args.vllm_importance_sampling_correction and trainer.accelerator.is_main_process:
        warn_of_raw(client, sampling)
    server = AdapterServer(
        client,
        model=lambda: trainer.accelerator.unwrap_model(trainer.model),
        accelerator=trainer.accelerator,
        folder=Path(trainer.args.output_dir) / "vllm_adapter",
        sampling=sampling,
        name=getattr(_trl.plain_model(trainer, trainer.model).config, "_name_or_path", ""),
    )
    _trl.draw_from(trainer, server)
    trainer.add_callback(CloseAtEnd(server))


def advice_for(trainer: Any) -> str:
    """Settings that would fit, for a trainer that ran out of memory."""
    plain = _trl.plain_model(trainer, trainer.model)
    adapters = getattr(trainer.accelerator.unwrap_model(trainer.model), "peft_config", None) or {}
    if not adapters:
        return f"{LOWER}. {resident(plain, optimizer_of(trainer.args))}"
    stored = getattr(plain.config, "quantization_config", None)
    settings = settings_of(
        trainer.args, next(iter(adapters.values())), bits=bits_of(plain), double=quantises_twice(stored)
    )
    name = getattr(plain.config, "_name_or_path", "") or type(plain).__name__
    capacity = capacity_of(trainer.accelerator.device)
    slack = slack_of(trainer.accelerator.device)
    try:
        if capacity is not None:
            # The estimate may have said that it fits; what happened says otherwise.
            capacity = min(capacity, 0.85 * estimate(shape_of(plain.config, name), settings, slack).peak)
        return suggestion(plain.config, name, settings, capacity, trainer.num_generations, slack=slack)
    except ValueError:  # no causal language model: what it takes is not known here
        return f"{LOWER}."


def optimizer_advice_for(trainer: Any) -> str:
    """What makes the optimizer's step smaller."""
    return optimizer_suggestion(_trl.plain_model(trainer, trainer.model), optimizer_of(trainer.args))
