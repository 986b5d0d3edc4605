"""The host's own checks of a config: each error in one line with its field, and all of them, not the first alone."""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from grpo_plus.recipe.values import default_of
from grpo_plus.trl.fields import allow_single_generation, drop_backend_without_launcher

Check = Callable[[dict[str, Any]], object]
"""Raises the first error that the host finds in the values of a dataclass."""


@dataclass(frozen=True)
class HostError:
    """An error of the host that names no way out.

    Attributes:
        text: a part of it.
        reads: the fields that it comes from.
        words: our words for it; ``{0}`` is the host's, and ``{1}`` and so on are its numbers.
        instead: values with which the rest is checked, where defaults would end in the same error.
    """

    text: str
    reads: Sequence[str]
    words: str
    instead: Mapping[str, Any] = field(default_factory=dict)


_BATCH = ("per_device_train_batch_size", "gradient_accumulation_steps", "steps_per_generation", "generation_batch_size")
ERRORS = (
    HostError(
        "You need to assign use_cpu",
        ("bf16", "bf16_full_eval", "use_cpu"),
        "no accelerator is here, and bf16 is on (TRL's default): a run on the CPU takes use_cpu: true and bf16: false, "
        "and fits small models only.",
        {"use_cpu": True},
    ),
    HostError(
        "must be divisible by num_generations",
        (*_BATCH, "num_generations"),
        "num_generations is {2}, which does not divide the completions of a generation batch ({1}): "
        "per_device_train_batch_size times the processes times gradient_accumulation_steps, unless "
        "generation_batch_size is set. Set {advice}.",
    ),
    HostError(
        "one of fp16 and bf16",
        ("fp16", "bf16"),
        "fp16 and bf16 are both true (bf16 is TRL's default): keep one, and set the other to false.",
    ),
    HostError(
        "must be divisible by the number of generations used for evaluation",
        ("per_device_eval_batch_size", "num_generations_eval"),
        "{0} Set per_device_eval_batch_size, or num_generations_eval, which divides it.",
        {"per_device_eval_batch_size": 0},  # which everything divides
    ),
)
"""Rows of the table in `grpo_plus.recipe.values`, for errors that the host raises itself."""


def host_problems(kind: type, settings: Mapping[str, Any], check: Check, wrong: Sequence[str] = ()) -> list[str]:
    """Return the host's errors about the values of a dataclass, one line each.

    ``check`` stops at the first error: with its field at the default it gets to the next. Fields in ``wrong`` are at
    their default already, and errors about those are passed over.
    """
    values, reset, problems = dict(settings), set(wrong), {}
    defaults = {spec.name: default_of(spec) for spec in fields(kind) if spec.init}
    while (error := _raised(check, values)) is not None and str(error) not in problems:
        match = next((one for one in ERRORS if one.text in str(error)), None)
        about = _about(check, values, defaults, error) if match is None else tuple(match.reads)
        named = {name for name in defaults if re.search(rf"\b{name}\b", str(error))}
        problem = _in_one_line(error, {name: values[name] for name in about if not named}, match, values)
        problems[str(error)] = problem if reset.isdisjoint({*about, *named}) else ""
        values |= {name: defaults[name] for name in about} | dict({} if match is None else match.instead)
        reset |= set(about)
    return list(filter(None, problems.values()))


def host_check(config: Any, post_init: Callable[[], None]) -> Check:
    """Let TRL and transformers check and complete a config with other values in place of its own."""

    def check(values: dict[str, Any]) -> None:
        config.__dict__.clear()
        config.__dict__.update(values)
        with allow_single_generation(config), drop_backend_without_launcher(config):
            post_init()

    return check


def unseen_best_problems(config: Any) -> list[str]:
    """A best model without an evaluation: the host trains to the end and saves none."""
    evaluates, saves = (str(getattr(each, "value", each)) for each in (config.eval_strategy, config.save_strategy))
    if evaluates != "no" or not (saves == "best" or (saves == "no" and config.load_best_model_at_end)):
        return []
    setting = "save_strategy is 'best'" if saves == "best" else "load_best_model_at_end is true"
    return [f"{setting}, but eval_strategy is 'no', so the best model is unknown: set eval_strategy: steps."]


def _raised(check: Check, values: Mapping[str, Any]) -> Exception | None:
    try:
        check(dict(values))
    except Exception as error:  # noqa: BLE001 - an OSError of a file, an ImportError of a backend, a KeyError of a mapping
        error.__cause__ = error.__context__ = None
        return error.with_traceback(None)  # frames keep half-built objects alive, such as a config of DeepSpeed
    return None


def _about(check: Check, values: Mapping[str, Any], defaults: Mapping[str, Any], error: Exception) -> tuple[str, ...]:
    """The field without which the error is another one, or none: first those that it names."""
    changed = [name for name, default in defaults.items() if name in values and repr(values[name]) != repr(default)]
    changed.sort(key=lambda name: re.search(rf"\b{name}\b", str(error)) is None)
    matches = (name for name in changed if str(_raised(check, {**values, name: defaults[name]})) != str(error))
    return tuple(next(([name] for name in matches), ()))


def _in_one_line(
    error: Exception, unnamed: Mapping[str, Any], match: HostError | None, values: Mapping[str, Any]
) -> str:
    """An error in one line, with its type if it is unusual, and with fields that it does not name."""
    text = " ".join(str(error).split())
    if match is not None:
        numbers = [int(number) for number in re.findall(r"\((\d+)\)", text)]
        advice = fitting(numbers[0], numbers[1], values) if "{advice}" in match.words else ""
        return match.words.format(text, *numbers, advice=advice)
    if not isinstance(error, ValueError | TypeError):
        text = f"TRL cannot use the config: {type(error).__name__}: {text}"
    return "".join(f"{name} is {value!r:.200}: " for name, value in unnamed.items()) + text


def fitting(rows: int, group: int, values: Mapping[str, Any]) -> str:
    """The nearest settings with which groups of equal size fill a generation batch.

    >>> fitting(8, 3, {"per_device_train_batch_size": 4})
    'num_generations to 2 or 4, or per_device_train_batch_size to 6'
    """
    sizes = [size for size in range(2, rows + 1) if rows % size == 0]
    near = sorted(sorted(sizes, key=lambda size: abs(size - group))[:2])
    each = values.get("per_device_train_batch_size") or 1
    step = group // math.gcd(group, max(1, rows // each))
    groups = f"num_generations to {' or '.join(map(str, near))}, or " if near else ""
    return f"{groups}per_device_train_batch_size to {-(-each // step) * step}"
