"""4-bit training in a trainer: checks before loading, repairs after it, and a shield around sampling."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import nn

from grpo_plus.engine.dropout import without_dropout
from grpo_plus.memory.advice import capacity_of, settings_of, shortage
from grpo_plus.memory.estimate import Settings
from grpo_plus.memory.fit import DoesNotFitError
from grpo_plus.qlora.checks import Request, compute_dtype, problems, read_config, request_of
from grpo_plus.qlora.model import bits_of, keep_layout
from grpo_plus.qlora.precision import dtype_snapshot, float32_trainables, preserved_dtypes
from grpo_plus.recipe.recipe import recipe_of
from grpo_plus.sampling.decode import is_adapted
from grpo_plus.training.hooks import Setup, TrainerStage
from grpo_plus.trl.host import Host
from grpo_verifiers.errors import ConfigError, raise_all
from grpo_verifiers.redaction import get_logger

logger = get_logger(__name__)
_CONFIGS = ("quantization_config", "peft_config")


class QuantisedGuard(TrainerStage):
    """Protects the types of adapters on a base quantised by bitsandbytes; does nothing for any other base.

    ``capacity`` is the GPU's memory in bytes; None reads it from the GPU, if there is one.
    """

    def __init__(self, capacity: float | None = None) -> None:
        self.active = False
        self._capacity = capacity
        self._restore: Callable[[], None] | None = None

    def before_loading(self, setup: Setup) -> None:
        """Refuse impossible settings, and set a quantised model's ``dtype``."""
        model, args = setup.model, setup.args
        quantization_config, peft_config = (setup.further.get(key) for key in _CONFIGS)
        request = request_for(setup)
        raise_all(problems(request))
        if request.bits is None:
            return
        self.active = True
        if isinstance(model, str):
            init = dict(args.model_init_kwargs or {})
            quantization = quantization_config or init.get("quantization_config")
            if "dtype" not in init and "torch_dtype" not in init:  # the second is its former name
                init["dtype"] = str(compute_dtype(quantization, args)).removeprefix("torch.")
            if args.device.type == "cpu" and torch.cuda.is_available():  # by default a quantised base loads on the GPU
                init.setdefault("device_map", {"": "cpu"})
            args.model_init_kwargs = init
            capacity = self._capacity or capacity_of(args.device)
            _check_memory(model, args, peft_config, capacity, request.bits, double=request.double_quantisation)
            return
        raise_all(_trainability_problems(model) if is_adapted(model) else [])
        keep_layout(model)
        self._restore = dtype_snapshot(model, trainable_only=True)

    def after_loading(self, host: Host) -> None:
        super().after_loading(host)
        if self.active or bits_of(host.model) is not None:
            self.active = True
            keep_layout(host.model)
            if self._restore is not None:
                self._restore()
                self._restore = None
            float32_trainables(host.model)
            raise_all(_trainability_problems(host.model))

    @contextmanager
    def sampling(self) -> Iterator[None]:
        """Around sampling: no dropout, and no cast survives it."""
        if not self.active:
            yield
            return
        with preserved_dtypes(self.host.model), without_dropout(self.host.model):
            yield

    def evaluating(self) -> AbstractContextManager[None]:
        """Undo the casts of `bf16_full_eval` and `fp16_full_eval`, which reach adapters too and stay."""
        return preserved_dtypes(self.host.model) if self.active else nullcontext()


def request_for(setup: Setup) -> Request:
    """Read the model's storage and its adapter from a trainer's arguments."""
    return request_of(setup.model, setup.args, *(setup.further.get(key) for key in _CONFIGS))


def planned(args: Any, peft_config: Any, *, bits: int | None, double: bool) -> Settings:
    """Return the planner's settings of a run, with its rollout."""
    rollout = recipe_of(args).rollout
    lean, rows = rollout.how == "auto", rollout.rows
    return settings_of(args, peft_config, bits=bits, double=double, lean=lean, most_rows=rows)


def _check_memory(name: str, args: Any, peft_config: Any, capacity: float | None, bits: int, *, double: bool) -> None:
    """Warn before anything loads that it will not fit; refuse a GPU too small for the weights."""
    config = None if capacity is None else read_config(name, args.model_init_kwargs)
    if capacity is None or config is None:
        return
    settings = planned(args, peft_config, bits=bits, double=double)
    try:
        text = shortage(config, name, settings, capacity, args.num_generations)
    except DoesNotFitError as error:
        raise ConfigError([str(error)]) from error
    except ValueError:  # no causal language model: no estimate
        return
    if text is not None:
        logger.warning(text)


def _trainability_problems(model: nn.Module) -> list[str]:
    if any(parameter.requires_grad for parameter in model.parameters()):
        return []
    message = (
        "no parameter of the model is trainable. prepare_model_for_kbit_training freezes all parameters, so called "
        "after the adapters were added (or a second time) it freezes them too. The trainer needs no such call: pass it "
        "the quantised model and a peft_config, or a PeftModel with is_trainable=True."
    )
    return [message]
