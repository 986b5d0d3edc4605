"""Fields of TRL's configs, old field names, and arguments of TRL's trainers."""

import inspect
import os
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from grpo_plus.trl.host import Loop, temporary_attribute
from grpo_verifiers.errors.messages import short

CONFIG_SOURCES = (
    ("transformers", "training_args.py", "TrainingArguments"),
    ("trl", "trainer/base_config.py", "_BaseConfig"),
    ("trl", "trainer/grpo_config.py", "GRPOConfig"),
)
"""The classes of TRL's config, base classes first."""

SCRIPT_SOURCES = (
    ("trl", "trainer/model_config.py", "ModelConfig"),
    ("trl", "scripts/utils.py", "ScriptArguments"),
    ("trl", "scripts/utils.py", "DatasetMixtureConfig"),
)
"""Further classes of TRL's command lines: the model and the data."""

RENAMED_FIELDS = {
    "use_transformers_paged": "use_transformers_continuous_batching",
    "vllm_importance_sampling_cap": "vllm_importance_sampling_clip_max",
}
"""Deprecated config fields and their replacements."""
MIRRORED_FIELDS = {
    "gradient_checkpointing": "activation_checkpointing",
    "gradient_checkpointing_kwargs": "activation_checkpointing_kwargs",
}
"""Old fields with defaults of their own that follow the new field once it is set."""


def resolve_renamed_fields(
    values: Mapping[str, Any], defaults: Mapping[str, Any]
) -> tuple[dict[str, str], dict[str, Any]]:
    """Move values of old fields to the new ones before validation; TRL does so after its own.

    Returns problems by field, where old and new differ, and the values to set. ``defaults`` may lack some new fields.
    """
    problems, renamed = {}, {}
    for old, new in RENAMED_FIELDS.items():
        value = values.get(old)
        if not value or new not in values:
            continue
        if values[new] not in (value, defaults.get(new, value)):
            problems[old] = f"{old} ({value!r}) is the old name of {new} ({values[new]!r}): remove {old}."
        else:
            renamed[new] = value
    renamed |= {old: values[new] for old, new in MIRRORED_FIELDS.items() if values.get(new) is not None}
    return problems, renamed


def other_samplers(values: Mapping[str, Any]) -> list[str]:
    """Enabled fields, old names included, that replace the plain sampling path."""
    names = ("use_vllm", "use_transformers_continuous_batching", "use_transformers_paged")
    return [name for name in names if values.get(name)]


class _Single(int):
    """The number 1, never less than TRL's minimum number of generations."""

    def __lt__(self, other: int) -> bool:
        return False


def allow_single_generation(config: Any) -> AbstractContextManager[Any]:
    """Make TRL's config accept ``num_generations=1``.

    TRL refuses it because of its own advantages. `Recipe` decides whether the estimator in use supports it.
    """
    return temporary_attribute(config, "num_generations", _Single(1)) if config.num_generations == 1 else nullcontext()


def drop_backend_without_launcher(config: Any) -> AbstractContextManager[Any]:
    """Unset ``ddp_backend`` in a process without a launcher: with no group to join, it would be an error."""
    return temporary_attribute(config, "ddp_backend", config.ddp_backend if "WORLD_SIZE" in os.environ else None)


def bind_trainer_arguments(further: Sequence[Any], keywords: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of TRL's trainer after ``eval_dataset``, by name."""
    from trl import GRPOTrainer

    first = (None,) * 6  # self, model, reward_funcs, args, train_dataset, eval_dataset
    return dict(list(inspect.signature(GRPOTrainer.__init__).bind(*first, *further, **keywords).arguments.items())[6:])


def reward_problems(functions: Any) -> list[str]:
    """Reward functions that the first call would end: TRL passes more keywords than a function may name."""
    problems = []
    for each in functions if isinstance(functions, list | tuple) else [] if functions is None else [functions]:
        name = getattr(each, "__name__", type(each).__name__)
        if not callable(each) and not isinstance(each, str):
            problems.append(f"reward_funcs has {each!r:.80}, expected a function, a model or its name.")
        elif inspect.isfunction(each) and not any(
            one.kind is one.VAR_KEYWORD for one in inspect.signature(each).parameters.values()
        ):
            text = f"the reward function {name} takes no **kwargs, and is called with prompts, completions,"
            problems.append(f"{text} completion_ids, trainer_state and every column: add **kwargs.")
    return problems


_QUESTIONS = ("question", "problem", "instruction", "query", "input", "text", "messages", "conversations")


def data_problem(name: str, rows: Any, columns: Sequence[str], *, owned: bool = False) -> str:
    """The reason why TRL cannot read the prompts of a dataset, by its columns and first row; empty if it can.

    ``owned``: an environment writes the prompts of rows that have none.
    """
    transformed = getattr(rows, "format", {}).get("type") == "custom"
    if transformed or (owned and "prompt" not in columns):
        return ""
    if "prompt" in columns:
        return (
            prompt_problem(rows[0]["prompt"], f"{name}: the prompt of row 0") if getattr(rows, "__len__", int)() else ""
        )
    best = next((each for each in _QUESTIONS if each in columns), "question")
    rename = f"dataset.rename_column({best!r}, 'prompt')"
    return f"{name} has no column 'prompt'. There is: {', '.join(columns)}. Rename the one with the question: {rename}."


def prompt_problem(prompt: Any, where: str) -> str:
    """The reason why TRL cannot read a prompt; empty for text and for messages. ``where`` names it."""
    messages = prompt if isinstance(prompt, list) else [prompt]
    keys = [{*message} if isinstance(message, Mapping) else set() for message in messages]
    if isinstance(prompt, str) or (keys and all("role" in each and each & {"content", "tool_calls"} for each in keys)):
        return ""
    turn = "{'role': 'user' if turn['from'] == 'human' else 'assistant', 'content': turn['value']}"
    way = f" Convert turns with from and value to {turn} by dataset.map." if keys and "from" in keys[0] else ""
    return f"{where} is {short(prompt)}, expected text or messages with role and content.{way}"


def supervised_trainer(model: str, settings: Mapping[str, Any], rows: Any, tokenizer: Any, **further: Any) -> Loop:
    """TRL's supervised trainer on tokenized rows: columns ``input_ids`` and ``completion_mask``."""
    from trl import SFTConfig, SFTTrainer

    trainer: Loop = SFTTrainer(
        model, args=SFTConfig(**settings), train_dataset=rows, processing_class=tokenizer, **further
    )
    return trainer
