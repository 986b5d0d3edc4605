"""The model card: TRL's own, completed with the parts that trained the model, so that a run can be repeated."""

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from grpo_plus.training.observers.about import installed, parts
from grpo_plus.training.observers.run import RunHost
from grpo_verifiers.files import write_atomic
from grpo_verifiers.redaction import redact, redact_text
from grpo_verifiers.redaction.names import secret_kind

TAGS = ("grpo", "grpo_plus", "trl")
PACKAGES = ("grpo-plus", "trl", "transformers", "torch", "accelerate", "peft", "datasets")
MARK = "## How it was trained"

_LEFT_OUT = {
    *("advantage", "objective", "selection", "verifiers", "eval_verifiers", "verifier_column", "plugins"),
    *("output_dir", "logging_dir", "run_name", "resume_from_checkpoint", "hub_model_id", "model_init_kwargs"),
}
"""Parts, which have rows of their own, and settings of the machine."""
_LOCAL_MODEL = {"[None](https://huggingface.co/None)": "a local model", 'model="None"': 'model="path/to/this/folder"'}


def complete_card(trainer: RunHost) -> None:
    """Add metadata and the section to the card that the trainer has just written into its output folder."""
    from huggingface_hub import ModelCard

    path = Path(trainer.args.output_dir) / "README.md"
    if not path.is_file():
        return
    card = ModelCard.load(str(path))
    card.data.tags = sorted({*(card.data.tags or ()), *TAGS})
    card.data.pipeline_tag = "text-generation"
    if getattr(trainer.accelerator.unwrap_model(trainer.model), "peft_config", None):
        card.data.library_name = "peft"
    before, _, _ = card.text.partition(MARK)
    for dead, text in _LOCAL_MODEL.items():  # the host's links to models that are not on the Hub
        before = before.replace(dead, text)
    card.text = before.rstrip() + "\n\n" + section(trainer)
    write_atomic(path, redact_text(str(card)))


def section(trainer: RunHost) -> str:
    """Write the section as Markdown."""
    named = parts(trainer)
    rows: dict[str, Any] = {name: _part(named[name]) for name in ("advantage", "objective", "selection") if named[name]}
    rows |= {"engine": named["engine"], "rollout": named["rollout"]}
    rows |= {"rewards": {reward["name"]: reward["weight"] for reward in named["rewards"]}}
    rows |= {"tools": [tool.__name__ for tool in trainer.tools]} if trainer.tools else {}
    for kind in ("verifiers", "eval_verifiers"):
        rows |= {f"{kind}, {one['label']}": one["settings"] for one in named[kind]}
    rows |= {**trainer.card_facts, "steps": trainer.state.global_step, "processes": trainer.accelerator.num_processes}
    tables = {"part": rows, "option that was set": _options(trainer.args), "package": installed(*PACKAGES)}
    lines = [line for title, table in tables.items() for line in _table(title, table)]
    return "\n".join([MARK, "", "Trained with grpo_plus, which runs on TRL.", *lines, ""])


def _part(part: Mapping[str, Any]) -> str:
    keywords = f" {_value(part['keywords'])}" if part["keywords"] else ""
    return f"{_value(part['name'])}{keywords}{' (of TRL)' * part['host']}"


def _options(args: Any) -> dict[str, Any]:
    options = {}
    for field in dataclasses.fields(args):
        value = getattr(args, field.name)
        default = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
        shown = field.init and field.name not in _LEFT_OUT and not secret_kind(field.name)
        if shown and value not in (default, None, [], {}) and isinstance(value, str | int | float | list | dict):
            options[field.name] = getattr(value, "value", value)
    return options


def _table(title: str, rows: Mapping[str, Any]) -> list[str]:
    cells = [f"| {_cell(name)} | {_cell(_value(value))} |" for name, value in rows.items()]
    return ["", f"| {title} | value |", "|---|---|", *cells]


def _value(value: Any) -> str:
    value = _without_folders(redact(value))
    return value if isinstance(value, str) else json.dumps(value, default=str, ensure_ascii=False)


def _without_folders(value: Any) -> Any:
    """Shorten references and paths to their names, without the folders of this machine."""
    if isinstance(value, Mapping):
        return {key: _without_folders(item) for key, item in value.items() if key != "source"}
    if isinstance(value, list | tuple):
        return [_without_folders(item) for item in value]
    path, colon, attribute = value.partition(".py:") if isinstance(value, str) else ("", "", "")
    if colon:
        return f"{Path(path).name}.py:{attribute}"
    return Path(value).name if isinstance(value, str) and value.startswith(("/", "./", "../", "~")) else value


def _cell(text: str) -> str:
    """Format one cell of a table: on one line, without the characters that end a cell or code."""
    return " ".join(text.split()).replace("|", "\\|").replace("`", "'")
