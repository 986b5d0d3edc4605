"""Trial builds: what a run builds from mappings and texts of a config, built from them alone before any model loads.

Errors of transformers or torch are reported with the field. Keys that nobody reads are in `grpo_plus.recipe.notes`.
"""

import copy
import inspect
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import torch

from grpo_plus.recipe.options import mapping, strange_key
from grpo_plus.recipe.ranges import COUNT, judge
from grpo_verifiers.lazy import installed
from grpo_verifiers.options import Range

_COUNTS: Mapping[str, Range] = dict.fromkeys(("max_new_tokens", "num_beams", "num_return_sequences"), COUNT)
_SCORED = frozenset(["TemperatureLogitsWarper", "TopKLogitsWarper", "TopPLogitsWarper", "MinPLogitsWarper"])
"""Processors of transformers that log-probabilities account for, or that have notes of their own."""
_SAME = frozenset(["LogitNormalization", "InfNanRemoveLogitsProcessor"])
"""Processors that leave probabilities as they are."""
_LONG = 100_000
"""Optimizer steps of a run whose data is not known yet."""


def built_problems(config: Any) -> list[str]:
    """Values of a config from which nothing can be built."""
    checks = (_generation_problems, _schedule_problems, _optimizer_problems, _checkpointing_problems, _liger_problems)
    problems: list[str] = []
    for check in checks:
        try:
            problems += check(config)
        except ValueError as error:  # a mapping whose keys are no texts
            problems.append(str(error))
    return problems


def _raised(build: Callable[[], object]) -> str | None:
    try:
        build()
    except Exception as error:  # noqa: BLE001 - each library has errors of its own
        return f"{type(error).__name__}: {' '.join(str(error).split())}"
    return None


def _generation_problems(config: Any) -> list[str]:
    """Values of `generation_kwargs` that cannot sample; vLLM has checks of its own."""
    keywords = {key: v for key, v in _mapping(config, "generation_kwargs").items() if v is not None}
    if config.use_vllm or not keywords:
        return []
    fields = {key: value for key, value in keywords.items() if key in config.__dataclass_fields__}
    problems = list(judge(type(config), fields).problems.values())
    for key, bounds in _COUNTS.items():
        value = keywords.get(key, 1)
        if isinstance(value, bool) or not isinstance(value, int) or not bounds.holds(value):
            problems.append(f"{key} is {value!r}, expected an integer of {bounds.words()}.")
    raised = None if problems else _drawing_error(config, keywords)
    problems += [f"{keywords} cannot be drawn with: {raised}"] if raised else []
    return [f"generation_kwargs: {problem}" for problem in problems]


def _drawing_error(config: Any, keywords: Mapping[str, Any]) -> str | None:
    """Errors of transformers' generation config and logits processors for these values.

    A stand-in takes the model's place, so only errors of values count: others may come from the stand-in.
    """
    from transformers import GenerationConfig

    names = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "cache_implementation")
    values = {**{name: getattr(config, name) for name in names}, **keywords}
    raised = _raised(lambda: GenerationConfig(**_SAMPLED | values))
    if raised:
        return raised
    raised = _raised(lambda: _processors(values))
    return raised if raised and raised.startswith(("ValueError", "TypeError")) else None


UNSCORED = (
    "{}: this changes what is drawn, and the loss scores tokens without it: log-probabilities are not those of what "
    "was drawn. To be without it: a neutral value in generation_kwargs."
)
_SAMPLED = {"max_new_tokens": 16, "do_sample": True}


def _processors(values: Mapping[str, Any]) -> tuple[Any, Any]:
    """A generation config of these values, and the logits processors that `generate` builds of it."""
    from transformers import GenerationConfig, GenerationMixin

    config = GenerationConfig(**{**_SAMPLED, **values})
    for token in ("eos", "pad", "bos"):
        setattr(config, f"_{token}_token_tensor", torch.tensor([0]))
    model: Any = object.__new__(type("Unloaded", (GenerationMixin,), {}))
    model.config, model.generation_config = SimpleNamespace(vocab_size=2**31, is_encoder_decoder=False), config
    return config, model._get_logits_processor(config, input_ids_seq_length=1, device="cpu", model_kwargs={})  # noqa: SLF001 - the one place that builds them


def reshaping(values: Mapping[str, Any]) -> str:
    """The settings, with their values, that change the distribution of tokens and that log-probabilities leave out.

    >>> reshaping({"typical_p": 0.5, "top_p": 0.9, "use_cache": True})
    'typical_p (0.5)'
    """
    return ", ".join(
        f"{name} ({value!r})" for name, value in values.items() if value is not None and _reshapes(name, value)
    )


def _reshapes(name: str, value: Any) -> bool:
    try:
        config, chain = _processors({name: value})
        mode = str(getattr(config.get_generation_mode(), "value", ""))
    except Exception:  # noqa: BLE001 - reported where values are checked
        return False
    kinds = {type(one).__name__ for one in chain}
    return bool(kinds - _SCORED - _SAME) or mode not in ("sample", "assisted_generation")


def _schedule_problems(config: Any) -> list[str]:
    keywords = _mapping(config, "lr_scheduler_kwargs")
    raised = _raised(lambda: _follow_schedule(config, keywords))
    kind = getattr(config.lr_scheduler_type, "value", config.lr_scheduler_type)
    what = f"lr_scheduler_type ({kind!r}) with lr_scheduler_kwargs ({keywords})"
    return [f"{what} gives no schedule: {raised}"] if raised else []


def _follow_schedule(config: Any, keywords: dict[str, Any]) -> None:
    """Build the schedule for an optimizer of one number and read the rate at some steps."""
    from transformers import get_scheduler

    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(()))], lr=float(config.learning_rate))
    steps = config.max_steps if config.max_steps > 0 else _LONG
    warmup = config.get_warmup_steps(steps)
    schedule = get_scheduler(config.lr_scheduler_type, optimizer, warmup, steps, keywords or None)
    for rate in getattr(schedule, "lr_lambdas", ()):
        for step in {0, min(warmup + 1, steps), steps // 2, steps}:
            float(rate(step))


def _optimizer_problems(config: Any) -> list[str]:
    """Optimizer arguments that are not pairs, and optimizers whose package is missing."""
    from transformers import Trainer
    from transformers.training_args import OptimizerNames

    pairs = [pair for pair in (config.optim_args or "").replace(" ", "").split(",") if config.optim_args]
    if any(pair.count("=") != 1 for pair in pairs):
        return [f"optim_args is {config.optim_args!r}, expected pairs like 'key=value, other=value'."]
    settled = copy.copy(config)
    settled.optim = OptimizerNames(config.optim)
    try:
        Trainer.get_optimizer_cls_and_kwargs(settled)
    except ImportError as error:
        return [f"optim is {settled.optim.value!r}: {' '.join(str(error).split())}"]
    except Exception as error:  # noqa: BLE001 - whatever reads the arguments
        if not pairs:  # some need the model
            return []
        return [f"optim_args is {config.optim_args!r}, which {settled.optim.value} cannot use: {error}"]
    return []


def _checkpointing_problems(config: Any) -> list[str]:
    from torch.utils.checkpoint import checkpoint

    named = inspect.signature(checkpoint).parameters
    keys = ["preserve_rng_state", *(name for name in named if name not in ("function", "args", "kwargs"))]
    fields = ("gradient_checkpointing_kwargs", "activation_checkpointing_kwargs")
    return [
        strange_key(field, key, value, keys)
        for field in fields
        for key, value in _mapping(config, field).items()
        if key not in keys
    ]


def _liger_problems(config: Any) -> list[str]:
    if not config.use_liger_kernel or installed("liger_kernel"):
        return []
    return ["use_liger_kernel is True, but the package liger-kernel is not installed: install it, or set false."]


def _mapping(config: Any, name: str) -> dict[str, Any]:
    return mapping(name, getattr(config, name, None))
