"""The parts of 4-bit training that work beside a trainer, wired to it."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

from grpo_plus import _trl
from grpo_plus.engine import EngineError
from grpo_plus.qlora.advice import capacity_of, settings_of, suggestion
from grpo_plus.qlora.decode import Decoded
from grpo_plus.qlora.memory import estimate
from grpo_plus.qlora.model import bits_of
from grpo_plus.qlora.retry import Retry
from grpo_plus.qlora.rollout import Rollout
from grpo_plus.qlora.shape import shape_of


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


def retry_of(trainer: Any, *, active: bool) -> Retry:
    """What lets a trainer's update survive a lack of memory.

    Args:
        trainer: fully built, with its engine.
        active: whether it should.
    """
    engine = trainer.engine

    def refusal() -> str | None:
        if trainer.accelerator.num_processes > 1:
            return "with several processes, the others would wait for this one's retry"
        if engine.layout == "stock":
            return "engine is 'stock', and only the engine splits a pass"
        before = engine.tokens_per_pass
        engine.tokens_per_pass = before or 1
        try:
            engine.check(trainer.model)
        except EngineError as error:
            return str(error)
        finally:
            engine.tokens_per_pass = before
        return None

    def shrink(tokens: int) -> None:
        engine.tokens_per_pass = tokens

    return Retry(
        trainer.model,
        active=active,
        lists=lambda: _trl.metrics_of(trainer),
        objects=lambda: _trl.parts_with_state(trainer),
        names=lambda: [(trainer, _trl.LOSS_STATE)],
        part=lambda: engine.tokens_per_pass,
        shrink=shrink,
        refusal=refusal,
        advice=lambda: advice_for(trainer),
    )


def advice_for(trainer: Any) -> str:
    """Settings that would fit, for a trainer that ran out of memory."""
    plain = _trl.plain_model(trainer, trainer.model)
    adapters = getattr(trainer.accelerator.unwrap_model(trainer.model), "peft_config", None) or {}
    settings = settings_of(trainer.args, next(iter(adapters.values()), None), four_bit=bits_of(plain) == 4)
    name = getattr(plain.config, "_name_or_path", "") or type(plain).__name__
    capacity = capacity_of(trainer.accelerator.device)
    if capacity is not None:
        # The estimate may have said that it fits; what happened says otherwise.
        capacity = min(capacity, 0.85 * estimate(shape_of(plain.config, name), settings).peak)
    return suggestion(plain.config, name, settings, capacity, trainer.num_generations)
