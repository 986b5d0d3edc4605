"""Values of config fields: read from YAML or text, their types, the ranges of our fields and of a few of TRL's.

Types come from the annotations. Only plain values (those of YAML) are judged: an object, such as an
`AcceleratorConfig` in place of a mapping, is left to the host, and so is any field that `HOST` does not name.
"""

import codecs
import copy
import datetime as dt
import enum
import os
import typing
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import MISSING, Field, fields
from functools import lru_cache
from numbers import Real
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, NamedTuple, get_type_hints

import yaml

from grpo_verifiers.errors.messages import did_you_mean, short, unknown
from grpo_verifiers.options import Range, fits, numbers, spell, value_problems

HEADS: Mapping[str, str] = {
    **dict.fromkeys(("advantage", "objective", "selection", "dead_groups"), "name"),
    "engine": "layout",
    "rollout": "how",
    "report": "record",
    "diagnosis": "judge",
}
"""The key of a word alone."""
POSITIVE = Range(0, open_low=True, finite=True)
NOT_NEGATIVE = Range(0, finite=True)
COUNT = Range(1)
PARTS = Range(0, open_low=True, finite=True, integer_from=1, text="a whole number of at least 1, or a fraction below 1")
"""A number of steps, or a fraction of all."""

ALSO: Mapping[str, tuple[Any, ...]] = {
    "fsdp": (True, False),
    "resume_from_checkpoint": (True, False),
    "scale_rewards": (True, False),
    "logging_steps": (None,),
    "save_steps": (None,),
    "gradient_checkpointing": (None,),
}
"""Values that the host takes though their annotation does not say so."""
REQUIRED = ("num_generations",)
"""Fields that may not be null, in spite of their annotation."""
FILES = ("accelerator_config", "fsdp_config", "deepspeed")
"""Fields that take a mapping or the path of a file; other mappings may be texts."""
OFF_VALUES: Mapping[str, Any] = {"report_to": "none", "debug": "", **dict.fromkeys(("environment", "verifier_column"))}
"""The neutral word, for false or YAML's ``off``, of fields of a word."""
SCALARS = (bool, int, float, str, NoneType)
PLAIN = (Real, str, list, tuple, dict, set, bytes, dt.date)
"""Types of YAML values."""


NO_YAML = (yaml.YAMLError, ValueError, KeyError, AttributeError, TypeError, RecursionError)
"""Errors of PyYAML about a text: not its own alone, for the date 2024-13-45 raises a ValueError."""


class StrictLoader(yaml.SafeLoader):
    """YAML in which a duplicate key is an error, and the words on, off, yes and no are text where they are keys."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Refuse duplicate keys: plain YAML silently keeps the last. It also takes the key ``on`` for true."""
        keys: set[Any] = set()
        for key_node, _ in node.value:
            if key_node.tag == "tag:yaml.org,2002:bool":
                key_node.tag = "tag:yaml.org,2002:str"
            if key_node.tag == "tag:yaml.org,2002:merge":
                continue
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, str | int | float | bool):
                continue
            if key in keys:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key!r} appears twice", key_node.start_mark
                )
            keys.add(key)
        return super().construct_mapping(node, deep=deep)


def read_yaml(path: Path) -> dict[str, Any]:
    """The mapping in a YAML file."""
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"the config file {path} cannot be read: {no_utf8(path, error)}") from error
    except OSError as error:
        raise ValueError(f"the config file {path} cannot be read: {error}.") from error
    try:
        value = numbers(yaml.load(text, StrictLoader))  # noqa: S506 - a subclass of the safe loader
    except NO_YAML as error:
        why = error if isinstance(error, yaml.YAMLError) else repr(error)
        raise ValueError(f"the config file {path} is no valid YAML: {why}") from error
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        raise ValueError(f"the config file {path} must hold a mapping of option names to values, like 'beta: 0.0'.")
    return dict(value)


def no_utf8(path: Path, error: UnicodeDecodeError, at: int = 0) -> str:
    """The problem of a file in another encoding; ``at`` is the place of the part with the error."""
    kind = "utf-16" if error.object[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE) else "latin1"
    place = f"{error.reason} near byte {at + error.start}"
    return f"it is no UTF-8 ({place}). Convert it, as with: iconv -f {kind} -t utf-8 {path.name} > new{path.suffix}"


OFF = ("", "none", "null", "false")
"""Words of a command line or of YAML that mean unset, besides null and false."""


def is_off(value: Any) -> bool:
    """Null, false, or a word for them: the part or the options are not there.

    >>> [is_off(value) for value in (None, False, "none", {}, "sign")]
    [True, True, True, False, False]
    """
    return value is None or value is False or (isinstance(value, str) and value.strip().lower() in OFF)


def mapping(field: str, value: Any) -> dict[str, Any]:
    """The keywords of a field, from a mapping or its text; none where it is null or false."""
    return mapping_or_none(field, value) or {}


def mapping_or_none(field: str, value: Any) -> dict[str, Any] | None:
    """As `mapping`; None where it is null or false, unlike ``{}``, which means the defaults."""
    if isinstance(value, str):
        try:
            value = numbers(yaml.load(value, StrictLoader))  # noqa: S506 - a subclass of the safe loader; JSON is YAML
        except NO_YAML as error:
            raise ValueError(f"{field} is no valid JSON or YAML: {value!r} ({error})") from error
    if is_off(value):
        return None
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        expected = f"expected a mapping of keywords to values, like {{'eps': 1.0e-4}}{_DEFAULTS * (value is True)}."
        raise ValueError(f"{field} is {value!r}, {expected}")
    return {key: numbers(copy.deepcopy(item)) for key, item in value.items()}


_DEFAULTS = ", or {} for the defaults"


def checked_mapping(field: str, value: Any, schema: type, example: str) -> tuple[dict[str, Any], list[str]]:
    """A field that holds a mapping, and its problems; the mapping is empty if it cannot be read.

    ``schema`` is a ``TypedDict`` with the keys and the values that each takes; ``example`` is for the message.
    """
    try:
        values = mapping(field, value)
    except ValueError:
        more = _DEFAULTS * (value is True)
        return {}, [f"{field} is {value!r}, expected a mapping, like {example}{more}."]
    hints = get_type_hints(schema, include_extras=True)
    problems = [unknown("key", key, hints) for key in values if key not in hints]
    for key, hint in hints.items():
        problems += value_problems(key, values[key], hint) if key in values else []
    return values, [f"{field}: {problem}" for problem in problems]


def changed_fields(config: Any, names: Sequence[str]) -> list[str]:
    """The fields that differ from their default, in order; unknown ones are skipped."""
    fields = config.__dataclass_fields__
    return [name for name in names if name in fields and getattr(config, name) != default_of(fields[name])]


def default_of(spec: "Field[Any]") -> Any:
    """The default of a field; None where it has none."""
    if spec.default is not MISSING:
        return spec.default
    return None if spec.default_factory is MISSING else spec.default_factory()


class Limit(NamedTuple):
    """Further conditions of fields: ``bounds`` of a number, or of each in a list, and ``words`` of a text.

    The values ``also`` are allowed besides. It counts ``when`` another field has a value; None: always. ``note`` is the
    end of the message: the remedy.
    """

    names: str
    bounds: Range | None = None
    words: Sequence[str] = ()
    also: tuple[Any, ...] = ()
    when: tuple[str, Any] | None = None
    note: str = ""


HOST = (
    Limit(
        "per_device_train_batch_size per_device_eval_batch_size gradient_accumulation_steps num_generations "
        "num_generations_eval generation_batch_size steps_per_generation num_iterations lora_r "
        "max_completion_length ref_model_sync_steps",
        COUNT,
    ),
    Limit("logging_steps", PARTS, when=("logging_strategy", "steps"), note=" (logging_strategy: no for none)"),
    Limit("max_steps", COUNT, also=(-1,), note=", or -1 for num_train_epochs"),
    Limit("num_train_epochs", POSITIVE, when=("max_steps", -1)),
    Limit("save_steps", PARTS, when=("save_strategy", "steps"), note=" (save_strategy: no for none)"),
    Limit("eval_steps", PARTS, when=("eval_strategy", "steps"), note=" (eval_strategy: no for none)"),
    Limit("beta epsilon weight_decay", NOT_NEGATIVE),
    Limit("seed data_seed dataloader_num_workers", Range(0)),
    Limit("temperature repetition_penalty", POSITIVE),
    Limit("top_p ref_model_mixup_alpha", Range(0, 1, open_low=True)),
    Limit("top_entropy_quantile learning_rate min_p adam_beta1 adam_beta2", Range(0, 1)),
    Limit("top_k", Range(0), when=("use_vllm", False), note=" (0: all)"),
    Limit("loss_type", words=("grpo", "bnpo", "dr_grpo", "dapo", "cispo", "sapo", "vespo", "luspo")),
    Limit("scale_rewards", words=("group", "batch", "none")),
    Limit("multi_objective_aggregation", words=("sum_then_normalize", "normalize_then_sum")),
)
"""Frequent mistakes that the host accepts in silence, or refuses once the model is loaded: no more than 20
rows with those of `grpo_plus.recipe.host`. A field may have several: each that counts must hold."""
OURS = (
    # of fields that are no parts, whose keys have their ranges in the options' annotations
    Limit("torch_threads", COUNT, note=", or nothing for torch's own choice"),
)


class Judgement(NamedTuple):
    """Problems by field, one line each, and values ``instead``: defaults for wrong ones, right ones in their type."""

    problems: Mapping[str, str]
    instead: Mapping[str, Any]


def judge(kind: type, values: Mapping[str, Any], skip: Sequence[str] = ()) -> Judgement:
    """Judge the values of a dataclass.

    Fields without a value are left alone, and so are those to ``skip`` and parts, which are checked elsewhere.
    """
    left_out = {*skip, *HEADS}
    specs = {
        spec.name: spec for spec in fields(kind) if spec.init and spec.name in values and spec.name not in left_out
    }
    problems: dict[str, str] = {}
    instead: dict[str, Any] = {}
    for name, spec in specs.items():
        plain = _plain(spec, _kinds(kind)[name], values[name])
        if wrong := _type_problem(spec, _kinds(kind)[name], plain):
            problems[name], instead[name] = wrong, default_of(spec)
        elif plain is not values[name]:
            instead[name] = plain
    now = {**values, **instead}
    listed = [Limit(name, words=spec.metadata["choices"]) for name, spec in specs.items() if "choices" in spec.metadata]
    for rule in (*HOST, *OURS, *listed):
        for name in rule.names.split():
            counts = name in specs and name not in problems and _counts(rule, now)
            if counts and (wrong := _rule_problem(rule, name, now[name])):
                problems[name], instead[name] = wrong, default_of(specs[name])
    return Judgement(problems, instead)


def _counts(rule: Limit, values: Mapping[str, Any]) -> bool:
    if rule.when is None:
        return True
    name, expected = rule.when
    value = values.get(name, expected)
    return bool(getattr(value, "value", value) == expected)


@lru_cache
def _kinds(kind: type) -> dict[str, set[Any]]:
    """The members of each field's annotation; words of an enumeration are text, which the host reads.

    From the class, for the host's parser writes simpler types into the fields themselves.
    """
    members = {}
    for name, hint in typing.get_type_hints(kind).items():
        kinds = set(typing.get_args(hint)) if typing.get_origin(hint) in {typing.Union, UnionType} else {hint}
        kinds = {dict if typing.get_origin(each) is dict else each for each in kinds}
        kinds = kinds - {NoneType} if name in REQUIRED else kinds
        members[name] = kinds | {str} if any(isinstance(each, enum.EnumMeta) for each in kinds) else kinds
    return members


def _plain(spec: "Field[Any]", kinds: set[Any], value: Any) -> Any:
    """A right value in its field's type: 8.0 as 8 where integers belong, one text as the list of it.

    Null, false or a word for them in the place of a mapping, a list or a word that may be left out is the default.
    """
    if spec.name == "check" and isinstance(value, bool):
        return "stop" if value else "off"  # YAML reads the bare words on and off so
    if spec.name in OFF_VALUES and (value is False or (value is None and spec.default is not None)):
        return OFF_VALUES[spec.name] if value is False else default_of(spec)
    if isinstance(value, str) and kinds - {NoneType} <= {bool, int, float}:
        with suppress(*NO_YAML):
            value = numbers(yaml.load(value, StrictLoader))  # noqa: S506 - a subclass of the safe loader
    optional = spec.default is None or spec.default_factory is not MISSING
    if optional and spec.name not in ALSO and is_off(value) and any(kind is dict or _items(kind) for kind in kinds):
        return default_of(spec)
    number = isinstance(value, Real) and not isinstance(value, bool)
    if value is None and spec.default is False and NoneType not in kinds:
        return False
    if number and int in kinds and float not in kinds and abs(value) < 2**63 and value % 1 == 0:
        return int(value)  # YAML writes 1e3 as a float
    if number and not isinstance(value, int | float):
        return float(value)
    if isinstance(value, os.PathLike) and str in kinds:
        return os.fspath(value)
    if isinstance(value, str) and kinds - {NoneType} == {list[str]}:
        return [value]
    return list(value) if isinstance(value, tuple) and any(map(_items, kinds)) else value


def _type_problem(spec: "Field[Any]", kinds: set[Any], value: Any) -> str | None:
    if isinstance(value, str) and dict in kinds and spec.name not in FILES:
        try:
            mapping(spec.name, value)
        except ValueError as error:
            return str(error)
        return None
    if _fits(spec, kinds, value):
        return None
    expected = sorted(filter(None, map(_type_name, kinds)))
    words = [word for kind in kinds if typing.get_origin(kind) is typing.Literal for word in typing.get_args(kind)]
    note = " In YAML, put text that looks like something else in quotes." if str in kinds and value is not None else ""
    note += did_you_mean(value, words) if isinstance(value, str) else ""
    return f"{spec.name} is {short(value, 200)}, expected {' or '.join(expected)}.{note}"


def _fits(spec: "Field[Any]", kinds: set[Any], value: Any) -> bool:
    if isinstance(value, dict) and not all(isinstance(key, str) for key in value):
        return False
    if any(value is each for each in ALSO.get(spec.name, ())) or any(fits(value, kind) for kind in kinds):
        return not isinstance(value, int) or abs(value) < 2**63 or float in kinds
    if value is None:
        return spec.default is None
    if isinstance(value, PLAIN):  # mappings that make up a list of objects are read by the host
        of_objects = any(_items(kind) not in (None, str, float) for kind in kinds)
        return isinstance(value, list) and (spec.name == "fsdp" or of_objects)
    return any(isinstance(kind, type) and kind not in SCALARS for kind in kinds)


def _items(kind: Any) -> Any:
    return typing.get_args(kind)[0] if typing.get_origin(kind) is list else None


def _type_name(kind: Any) -> str:
    names = {float: "a number", int: "an integer", bool: "true or false", str: "text", dict: "a mapping"}
    if typing.get_origin(kind) is typing.Literal:
        return spell(kind)
    if items := _items(kind):
        return f"a list of {({str: 'texts', float: 'numbers'}).get(items, 'mappings')}"
    return names.get(kind, "")


def _rule_problem(rule: Limit, name: str, value: Any) -> str | None:
    if value is None or value in rule.also:
        return None
    for each in value if isinstance(value, list) else [value]:
        shown = f"{name} is {short(value, 200)}"
        if rule.bounds is not None and isinstance(each, Real) and not rule.bounds.holds(each):
            return f"{shown}, expected {rule.bounds.words()}{rule.note}."
        if rule.words and isinstance(each, str) and each not in rule.words:
            return f"{shown}, expected one of {', '.join(map(repr, rule.words))}.{did_you_mean(each, rule.words)}"
    return None
