"""Types, ranges and words that the fields of a config may have: one table, read before anything computes with them.

Types come from the annotations, and so do words of an enumeration; `RULES` says the rest. Only plain values (what YAML
can hold) are judged: an object, such as an `AcceleratorConfig` in the place of a mapping, is left to the host.
"""

import datetime as dt
import enum
import json
import os
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, fields
from functools import lru_cache
from numbers import Integral, Real
from pathlib import Path
from types import NoneType, UnionType
from typing import Any

from grpo_plus.recipe.options import is_off
from grpo_verifiers.errors.messages import did_you_mean, unknown
from grpo_verifiers.options import Range

NOT_NEGATIVE = Range(0, finite=True)
POSITIVE = Range(0, open_low=True, finite=True)
COUNT = Range(1)
UPPER_LIMIT = Range(1, told="a positive integer")
SHARE = Range(0, 1)
SEED = Range(0, 2**32 - 1)
PORT = Range(1, 65535)
PARTS = Range(0, open_low=True, finite=True, whole_from=1, told="a whole number of at least 1, or a fraction below 1")
"""A number of steps or rows, or a fraction of all."""


FILES = ("accelerator_config", "fsdp_config", "deepspeed")
"""Fields that take a mapping or the path of a file; other mappings may be given as JSON text."""
LISTS = ("fsdp",)
"""Fields of text that the host takes as a list of texts too, though their annotation does not say so."""
SCALARS = (bool, int, float, str, NoneType)
OFF: Mapping[str, Any] = {
    "dead_groups": "keep",
    "rollout": "stock",
    "engine": "stock",
    "report_to": "none",
    "debug": "",
    **dict.fromkeys(("advantage", "objective", "selection", "environment", "vllm_sync", "verifier_column")),
}
"""What false, or YAML's ``off``, means for fields of a word: that one which changes nothing."""
PLAIN = (Real, str, list, tuple, dict, set, bytes, dt.date)
"""What YAML can hold."""


@dataclass(frozen=True)
class Rule:
    """Further conditions of fields, beside their types.

    Attributes:
        bounds: the values of a number, or of each number in a list.
        words: the values of a string, or of each string in a list; a function where a library has to be asked.
        also: values that are allowed besides.
        when: another field and the value of it for which the rule counts; None: always.
        note: what to add to the message: what to set instead.
        thing: what the words name, where there is a short word for it.
        required: nothing (None) is refused, whatever the annotation allows.
    """

    names: str
    bounds: Range | None = None
    words: Sequence[str] | Callable[[], Sequence[str]] = ()
    also: tuple[Any, ...] = ()
    when: tuple[str, Any] | None = None
    note: str = ""
    thing: str = ""
    required: bool = False


def _caches() -> Sequence[str]:
    from transformers.generation.configuration_utils import ALL_CACHE_IMPLEMENTATIONS

    return list(ALL_CACHE_IMPLEMENTATIONS)


def _compile_modes() -> Sequence[str]:
    import torch

    return list(torch._inductor.list_mode_options())  # noqa: SLF001 - torch.compile names them nowhere else


def _trackers() -> Sequence[str]:
    from transformers.integrations.integration_utils import INTEGRATION_TO_CALLBACK

    return [*INTEGRATION_TO_CALLBACK, "all", "none"]


RULES = (
    # The run: batches, steps, seeds.
    Rule("per_device_train_batch_size per_device_eval_batch_size gradient_accumulation_steps", COUNT),
    Rule("max_steps", COUNT, also=(-1,), note=", or -1 for num_train_epochs"),
    Rule("num_train_epochs", POSITIVE, when=("max_steps", -1)),
    Rule("num_train_epochs", Range(finite=True)),
    Rule("seed data_seed", SEED),
    Rule(
        "logging_steps",
        PARTS,
        when=("logging_strategy", "steps"),
        note=" (logging_strategy: no for none)",
        required=True,
    ),
    Rule("save_steps", PARTS, when=("save_strategy", "steps"), note=" (save_strategy: no for none)", required=True),
    Rule("eval_steps", PARTS, when=("eval_strategy", "steps"), note=" (eval_strategy: no for none)"),
    Rule("logging_steps save_steps gradient_checkpointing", also=(None,)),
    Rule("eval_delay", NOT_NEGATIVE),
    Rule("eval_accumulation_steps torch_empty_cache_steps", COUNT),
    Rule("save_total_limit", Range(0), note=" (0 or nothing: keep all)"),
    # The optimizer.
    Rule("learning_rate weight_decay adam_epsilon warmup_steps neftune_noise_alpha", NOT_NEGATIVE),
    Rule("adam_beta1 adam_beta2", Range(0, 1, open_high=True)),
    Rule("max_grad_norm", Range(0), note=" (0: no clipping)"),
    Rule("label_smoothing_factor", SHARE),
    # The machine.
    Rule("dataloader_num_workers", Range(0)),
    Rule("dataloader_prefetch_factor ddp_bucket_cap_mb ddp_timeout", COUNT),
    Rule("local_rank", Range(-1)),
    Rule("include_num_input_tokens_seen", words=("all", "non_padding", "no")),
    Rule("torch_compile_mode", words=_compile_modes),
    Rule("report_to", words=_trackers, thing="tracker"),
    Rule("fsdp resume_from_checkpoint", also=(True, False)),
    Rule("debug", also=(None,)),
    # Rollouts.
    Rule("num_generations", COUNT, required=True),
    Rule("num_generations_eval generation_batch_size steps_per_generation num_iterations", COUNT),
    Rule("max_completion_length pad_to_multiple_of vllm_max_model_length vllm_tensor_parallel_size", COUNT),
    Rule("pad_to_multiple_of", words=("auto", "none", "null")),
    Rule("temperature repetition_penalty", POSITIVE),
    Rule("top_p", Range(0, 1, open_low=True)),
    Rule("top_k", Range(0), when=("use_vllm", False), note=" (0: all)"),
    Rule("top_k", Range(-1), note=" (0 or -1: all)"),
    Rule("min_p", SHARE),
    Rule("cache_implementation", words=_caches),
    Rule("max_tool_calling_iterations", Range(0)),
    Rule("vllm_mode", words=("server", "colocate")),
    Rule("vllm_model_impl", words=("auto", "vllm", "transformers", "terratorch")),
    Rule("vllm_server_port vllm_group_port", PORT),
    Rule("vllm_server_timeout", POSITIVE),
    Rule("vllm_gpu_memory_utilization", Range(0, 1, open_low=True)),
    # The loss.
    Rule("beta router_aux_loss_coef", NOT_NEGATIVE),
    Rule("epsilon epsilon_high", Range(0)),
    Rule("delta sapo_temperature_neg sapo_temperature_pos", Range(0, open_low=True)),
    Rule("vespo_k_pos vespo_lambda_pos vespo_k_neg vespo_lambda_neg", NOT_NEGATIVE),
    Rule("loss_type", words=("grpo", "bnpo", "dr_grpo", "dapo", "cispo", "sapo", "vespo", "luspo")),
    Rule("importance_sampling_level", words=("token", "sequence")),
    Rule("scale_rewards", words=("group", "batch", "none"), also=(True, False)),
    Rule("multi_objective_aggregation", words=("sum_then_normalize", "normalize_then_sum")),
    Rule("reward_weights", Range(finite=True)),
    Rule("ref_model_mixup_alpha top_entropy_quantile", SHARE),
    Rule("ref_model_sync_steps", COUNT),
    Rule("entropy_coef entropy_coef_min entropy_coef_max", Range(finite=True)),
    Rule("entropy_coef_delta entropy_target", NOT_NEGATIVE),
    Rule("vllm_importance_sampling_mode", words=("token_truncate", "token_mask", "sequence_truncate", "sequence_mask")),
    Rule("vllm_importance_sampling_clip_max vllm_importance_sampling_cap", Range(0, open_low=True)),
    Rule("vllm_importance_sampling_clip_min", NOT_NEGATIVE),
    Rule("off_policy_mask_threshold num_completions_to_print", Range(0)),
    # Ours.
    Rule("engine_tokens_per_pass", UPPER_LIMIT, note=", or nothing for no bound"),
    Rule("rollout_rows", UPPER_LIMIT, note=", or nothing for as many as memory allows"),
    Rule("report_steps", Range(0), note=" (0: never; nothing: at the end only)"),
    Rule("torch_threads", COUNT, note=", or nothing for torch's own choice"),
    # The model and the data.
    Rule("lora_r lora_alpha", COUNT),
    Rule("lora_dropout", Range(0, 1, open_high=True)),
    Rule("bnb_4bit_quant_storage", words=("float16", "float32", "float64", "bfloat16", "int8", "uint8")),
    Rule(
        "lora_task_type",
        words=("CAUSAL_LM", "SEQ_CLS", "SEQ_2_SEQ_LM", "TOKEN_CLS", "QUESTION_ANS", "FEATURE_EXTRACTION"),
    ),
    Rule("test_split_size", PARTS),
)
"""A field may have several: each that counts must hold."""


@dataclass(frozen=True)
class Judgement:
    """What was found of a config's values.

    Attributes:
        problems: by field, each one line.
        instead: values to go on with: defaults in the place of wrong values, and right values in their field's type.
    """

    problems: Mapping[str, str]
    instead: Mapping[str, Any]


def judge(kind: type, values: Mapping[str, Any], skip: Sequence[str] = ()) -> Judgement:
    """Judge the values that a dataclass was, or is to be, made of.

    Fields without a value are left alone, and so are those to ``skip``, which are checked elsewhere.
    """
    specs = {spec.name: spec for spec in fields(kind) if spec.init and spec.name in values and spec.name not in skip}
    problems: dict[str, str] = {}
    instead: dict[str, Any] = {}
    for name, spec in specs.items():
        kinds, value = _kinds(kind)[name], _unpacked(values[name])
        if _switched_off(spec, kinds, value):
            meant = OFF.get(name, _default(spec)) if value is not None else _default(spec)
            instead |= {} if meant is value else {name: meant}
            continue
        wrong = _type_problem(spec, kinds, value)
        if wrong:
            problems[name], instead[name] = wrong, _default(spec)
        else:
            plain = _plain(spec, kinds, value)
            instead |= {} if plain is values[name] else {name: plain}
    now = {**values, **instead}
    listed = [Rule(name, words=tuple(spec.metadata["choices"])) for name, spec in specs.items() if _listed(spec)]
    for rule in (*RULES, *listed):
        for name in rule.names.split():
            if name not in specs or name in problems or not _counts(rule, now):
                continue
            wrong = _rule_problem(rule, name, now[name])
            if wrong:
                problems[name], instead[name] = wrong, _default(specs[name])
    return Judgement(problems, instead)


def entry_problems(kind: type, given: Mapping[str, Any]) -> list[str]:
    """Problems of a mapping that a dataclass is to be made of: its keys, and the values of its fields."""
    known = {spec.name: spec for spec in fields(kind)}
    missing = [name for name, spec in known.items() if spec.default is MISSING and name not in given]
    return [
        *(unknown("key", key, known) for key in given if key not in known),
        *(f"{name} is missing." for name in missing),
        *judge(kind, given).problems.values(),
    ]


def _counts(rule: Rule, values: Mapping[str, Any]) -> bool:
    if rule.when is None:
        return True
    name, wanted = rule.when
    value = values.get(name, wanted)
    return bool(getattr(value, "value", value) == wanted)


def _listed(spec: "Field[Any]") -> bool:
    """Whether the field lists its words itself."""
    return bool(spec.metadata.get("choices"))


@lru_cache
def _kinds(kind: type) -> dict[str, set[Any]]:
    """The members of each field's annotation; beside an enumeration, `str` means its words.

    From the class, for the host's parser writes simpler types into the fields themselves.
    """
    found = {}
    for name, hint in typing.get_type_hints(kind).items():
        kinds = set(typing.get_args(hint)) if typing.get_origin(hint) in {typing.Union, UnionType} else {hint}
        kinds = {dict if typing.get_origin(each) is dict else each for each in kinds}
        found[name] = kinds - {str} if any(isinstance(each, enum.EnumMeta) for each in kinds) else kinds
    return found


def _default(spec: "Field[Any]") -> Any:
    if spec.default is not MISSING:
        return spec.default
    return None if spec.default_factory is MISSING else spec.default_factory()


def _switched_off(spec: "Field[Any]", kinds: set[Any], value: Any) -> bool:
    """Null, false or a word for them in the place of a mapping, of a list or of a word that may be left out."""
    if spec.name in OFF:
        return value is False or (value is None and spec.default is not None)
    if not is_off(value) or bool in kinds or not any(kind is dict or typing.get_origin(kind) is list for kind in kinds):
        return False
    optional = spec.default is None or spec.default_factory is not MISSING
    return optional and not any(value is each for each in _also(spec.name))


def _also(name: str) -> Iterator[Any]:
    return (value for rule in RULES if name in rule.names.split() for value in rule.also)


def _type_problem(spec: "Field[Any]", kinds: set[Any], value: Any) -> str | None:
    if isinstance(value, str | os.PathLike) and "\0" in str(value):
        return f"{spec.name} is {_shown(value)}, expected text without the character '\\0', which no path may hold."
    if _fits(spec, kinds, value):
        if not isinstance(value, str) or dict not in kinds or _names_mapping(spec.name, value):
            return None
        way = "path of a file" if spec.name in FILES else "JSON text of one"
        return f"{spec.name} is {_shown(value)}, expected a mapping, or the {way}."
    bounds = (rule.bounds for rule in RULES if rule.bounds and spec.name in rule.names.split())
    expected = [each.told for each in bounds if each.told] or sorted(filter(None, map(_spelled, kinds)))
    enums: list[Any] = [kind for kind in kinds if isinstance(kind, enum.EnumMeta)]
    words = [str(one.value) for each in enums for one in each]
    note = " In YAML, put text that looks like something else in quotes." if str in kinds and value is not None else ""
    note += did_you_mean(value, words) if isinstance(value, str) else ""
    return f"{spec.name} is {_shown(value)}, expected {' or '.join(expected)}.{note}"


def _fits(spec: "Field[Any]", kinds: set[Any], value: Any) -> bool:
    if any(value is each for each in _also(spec.name)) or any(_is_a(value, kind) for kind in kinds):
        return True
    if value is None:
        return NoneType in kinds or spec.default is None or spec.default is False
    if isinstance(value, list) and spec.name in LISTS:
        return all(isinstance(each, str) for each in value)
    if isinstance(value, PLAIN):
        return isinstance(value, str) and _items(kinds) is str
    return any(isinstance(kind, type) and kind not in SCALARS for kind in kinds)


def _unpacked(value: Any) -> Any:
    """An array or tensor of any library as the list, or the number, that it holds."""
    if isinstance(value, Real) or not (hasattr(value, "tolist") and hasattr(value, "dtype")):
        return value
    return value.tolist()


def _is_a(value: Any, kind: Any) -> bool:
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Literal:
        return any(value is each or (isinstance(value, str) and value == each) for each in args)
    if kind is bool:
        return isinstance(value, bool) or type(value).__name__ in ("bool", "bool_")  # the second is numpy's
    if isinstance(value, bool):
        return False
    if kind is float:
        return isinstance(value, Real) and value == value  # noqa: PLR0124 - NaN alone is not
    if kind is int:
        return isinstance(value, Real) and _is_whole(value)
    if kind is str:
        return isinstance(value, str | os.PathLike)
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return isinstance(value, kind) or (isinstance(value, str) and value in [each.value for each in kind])
    if origin is list:
        return isinstance(value, list | tuple) and all(_is_item(each, args[0]) for each in value)
    if kind is dict:
        return isinstance(value, dict)
    return False


def _names_mapping(name: str, text: str) -> bool:
    """Whether text says a mapping, in the way that a field understands."""
    try:
        if name in FILES and not text.startswith("{"):
            return text == "" or name == "deepspeed" or Path(text).expanduser().is_file()  # DeepSpeed has further ways
        return text == "" or isinstance(json.loads(text), dict)
    except (ValueError, OSError):  # no JSON; a name too long for a file
        return False


def _is_item(value: Any, kind: Any) -> bool:
    if not isinstance(kind, type) or kind in (str, int, float):
        return _is_a(value, kind)
    return isinstance(value, kind | dict) or _is_a(value, kind)


def _items(kinds: set[Any]) -> Any:
    """The type of the items where a field takes a list only."""
    found = [typing.get_args(kind)[0] for kind in kinds if typing.get_origin(kind) is list]
    return found[0] if found else None


def _is_whole(value: Any) -> bool:
    whole = isinstance(value, Integral) or float(value).is_integer()  # YAML writes 1e3 as a float
    return whole and -(2**63) <= int(value) < 2**63


def _spelled(kind: Any) -> str:
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    names = {float: "a number", int: "an integer", bool: "true or false", str: "text", dict: "a mapping"}
    if origin is typing.Literal:
        return "one of " + ", ".join(map(_shown, args))
    if origin is list:
        return f"a list of {({str: 'texts', float: 'numbers'}).get(args[0], 'mappings')}"
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return "one of " + ", ".join(repr(each.value) for each in kind)
    return names.get(kind, "" if kind is NoneType else f"a {getattr(kind, '__name__', kind)}")


def _shown(value: Any) -> str:
    """A value for a message of one line."""
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:200]}…"


def _plain(spec: "Field[Any]", kinds: set[Any], value: Any) -> Any:
    """A right value in its field's type: 8.0 as 8 where integers belong, one text as the list of it."""
    if value is None and spec.default is False and NoneType not in kinds:
        return False
    if isinstance(value, str) and value == "" and dict in kinds:
        return None
    kinds = kinds - {NoneType}
    if kinds == {int} and isinstance(value, float):
        return int(value)
    if kinds == {int, str} and isinstance(value, str) and value.isdecimal():
        return int(value)
    if isinstance(value, str) and str not in kinds and _items(kinds) is str:
        return [value]
    if isinstance(value, tuple) and _items(kinds) is not None:
        return list(value)
    return value


def _rule_problem(rule: Rule, name: str, value: Any) -> str | None:
    if value is None and rule.required and rule.bounds is not None:
        return f"{name} is None, expected {rule.bounds.words()}{rule.note}."
    if value is None or any(value is each or value == each for each in rule.also if type(value) is type(each)):
        return None
    for each in value if isinstance(value, list | tuple) else [value]:
        shown = f"{name} is {_shown(value)}"
        if rule.bounds is not None and isinstance(each, Real) and not rule.bounds.holds(each):
            return f"{shown}, expected {rule.bounds.words()}{rule.note}."
        words = rule.words() if callable(rule.words) else rule.words
        if words and isinstance(each, str) and each not in words:
            if rule.thing:
                return f"{name}: {unknown(rule.thing, each, words)}"
            return f"{shown}, expected one of {', '.join(map(repr, words))}.{did_you_mean(each, words)}"
    return None
