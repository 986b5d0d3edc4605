"""Options of ours that nothing reads under some condition, and fields of TRL that a part of ours makes inert.

A field of TRL makes a note, since TRL runs such a config too. An option of ours makes a problem where that is known
beforehand: none is silently ignored.
"""

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from grpo_plus.recipe.defaults import records, rollout_of
from grpo_plus.recipe.forms import read_form
from grpo_plus.recipe.launch import process_count
from grpo_plus.recipe.options import changed_fields

Condition = Callable[[Any], bool]


@dataclass(frozen=True)
class Unread:
    """A row of the table.

    Attributes:
        names: fields, or keys of fields (``engine.layout``), with blanks between them; unset ones are skipped.
        when: the condition on a config.
        why: ends the sentence "FIELD (VALUE) is not read: ".
        way_out: what to do about it; for problems.
    """

    names: str
    when: Condition
    why: str
    way_out: str = ""

    @property
    def fields(self) -> tuple[str, ...]:
        """The fields one by one."""
        return tuple(self.names.split())


def _word(config: Any, name: str) -> str:
    """The text of a field that holds a word or an enumeration's member."""
    value = getattr(config, name, None)
    return str(getattr(value, "value", value))


def _evaluates(config: Any) -> bool:
    return _word(config, "eval_strategy") != "no" or bool(getattr(config, "eval_on_start", False))


def under_deepspeed(config: Any) -> bool:
    """The config or a launcher asks for DeepSpeed."""
    return bool(config.deepspeed) or os.environ.get("ACCELERATE_USE_DEEPSPEED", "").lower() == "true"


def _in_pieces(config: Any) -> bool:
    """ZeRO-3, and no process has the whole model while completions are drawn."""
    stage = getattr(getattr(config, "deepspeed_plugin", None), "zero_stage", 0)
    return under_deepspeed(config) and stage == 3 and not config.ds3_gather_for_generation


def under_fsdp(config: Any) -> bool:
    """The config or a launcher asks for FSDP."""
    return bool(config.fsdp) or os.environ.get("ACCELERATE_USE_FSDP", "").lower() == "true"


def _fsdp1(config: Any) -> bool:
    """The version before FSDP2: accelerate's default, and not transformers'."""
    given = config.fsdp_config if isinstance(config.fsdp_config, dict) else {}
    version = given.get("version", 2) if config.fsdp else os.environ.get("FSDP_VERSION", "1")
    return under_fsdp(config) and str(version) != "2"


NOTES: tuple[Unread, ...] = (
    Unread(
        "vllm_group_port",
        lambda c: c.use_vllm and read_form("rollout", c.rollout).get("vllm_sync") in {"files", "adapter"},
        "vllm_sync takes the weights another way than through a group of processes",
    ),
    Unread(
        "eval_verifiers",
        lambda c: not _evaluates(c),
        "eval_strategy is 'no', so there is no evaluation but one that you start yourself",
    ),
    Unread(
        "rollout.how rollout.rows",
        lambda c: _fsdp1(c) or _in_pieces(c),
        "the parameters are sharded (FSDP1, or ZeRO-3 without ds3_gather_for_generation), so TRL draws the "
        "completions, all rows at once",
    ),
)
"""Rows that make a note."""

PROBLEMS: tuple[Unread, ...] = (
    Unread(
        "engine.layout",
        lambda c: (
            read_form("engine", c.engine)["layout"] in {"packed", "trimmed"} and c.neftune_noise_alpha is not None
        ),
        "with noise on embeddings (neftune_noise_alpha) every pass is TRL's own",
        "leave it unset, or remove neftune_noise_alpha",
    ),
    Unread(
        "engine.tokens_per_pass",
        lambda c: process_count() > 1 or under_fsdp(c) or under_deepspeed(c),
        "it works on a single device only, where no other process waits for a pass",
        "leave it unset, or train in one process",
    ),
    Unread(
        "engine.tokens_per_pass",
        lambda c: read_form("engine", c.engine).get("layout") == "stock",
        "engine is 'stock', which is TRL's own path",
        "leave it unset, or choose another layout",
    ),
    Unread(
        "rollout.rows",
        lambda c: rollout_of(c) == "stock",
        "the completions are not drawn by rollout: auto",
        "set rollout: auto, or leave it unset",
    ),
    Unread(
        "rollout.vllm_sync",
        lambda c: not c.use_vllm,
        "no vLLM server draws the completions",
        "set use_vllm: true and vllm_mode: server, or leave it unset",
    ),
    Unread(
        "rollout.vllm_sync",
        lambda c: c.use_vllm and c.vllm_mode != "server",
        "vllm_mode is 'colocate', so there is no server",
        "set vllm_mode: server, or leave it unset",
    ),
    Unread(
        "report.every",
        lambda c: bool(read_form("report", c.report).get("every")) and not records(c),
        "a report needs the record, which is kept where a part of ours is set",
        "set report: {record: true, …}, or remove every",
    ),
)
"""Rows that refuse the config: certain, and about an option of ours."""

MODEL_NOTES = (
    Unread(
        "lora_r lora_alpha lora_dropout lora_target_modules use_rslora use_dora",
        lambda model: not model.use_peft,
        "use_peft is false",
    ),
)
"""The same for the model's options of a command line: the whole model trains where an adapter was meant to."""


def unread_notes(config: Any, rows: Iterable[Unread] = NOTES) -> list[str]:
    """One sentence for each field that is set and not read."""
    found = {}
    for row in rows:
        for name in _set(config, row.fields):
            if name not in found and row.when(config):
                found[name] = f"{name} ({_shown(config, name)}) is not read: {row.why}."
    return list(found.values())


def unread_problems(config: Any) -> list[str]:
    """The same for options of ours, which must be read."""
    return [
        f"{name} ({_shown(config, name)}) would be read by nobody: {row.why}. To go on: {row.way_out}."
        for row in PROBLEMS
        for name in _set(config, row.fields)
        if row.when(config)
    ]


def rollout_func_problems(config: Any) -> list[str]:
    """Rollout fields that are set beside a trainer's ``rollout_func``, which replaces them."""
    return [
        f"{name} ({_shown(config, name)}) would be read by nobody: rollout_func draws the completions. Remove one of "
        "the two."
        for name in _set(config, ("rollout.how", "rollout.rows"))
    ]


def why_unread(config: Any, name: str) -> str | None:
    """The reason why a field, or a key of one, is not read, set or not; None if it is read."""
    rows = (row for row in (*NOTES, *PROBLEMS) if name in row.fields)
    return next((row.why for row in rows if row.when(config)), None)


def _set(config: Any, names: Sequence[str]) -> list[str]:
    empty: tuple[Any, ...] = ([], {})  # what an unset list or mapping of ours is normalised to
    changed = changed_fields(config, [name.partition(".")[0] for name in names])
    return [name for name in names if name.partition(".")[0] in changed and _value(config, name) not in (None, *empty)]


def _value(config: Any, name: str) -> Any:
    field, dot, key = name.partition(".")
    value = getattr(config, field)
    return read_form(field, value).get(key) if dot else value


def _shown(config: Any, name: str) -> str:
    value = _value(config, name)
    return repr(getattr(value, "value", value))
