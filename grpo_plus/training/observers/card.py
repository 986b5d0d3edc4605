"""The model card: TRL's own, completed with the parts that trained the model, so that a run can be repeated."""

import dataclasses
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from grpo_plus.recipe.rewards import equivalent_advantage
from grpo_plus.training.observers.about import installed
from grpo_plus.training.observers.run import RunHost
from grpo_verifiers.files import write_atomic
from grpo_verifiers.redaction import redact, redact_text
from grpo_verifiers.redaction.names import secret_kind

TAGS = ("grpo", "grpo_plus", "trl")
PACKAGES = ("grpo-plus", "trl", "transformers", "torch", "accelerate", "peft", "datasets")
MARK = "## How it was trained"

_IN_OTHER_TABLES = ("advantage", "objective", "selection", "verifiers", "eval_verifiers", "verifier_column", "plugins")
_OF_THE_MACHINE = (
    *("output_dir", "logging_dir", "run_name", "resume_from_checkpoint", "hub_model_id", "model_init_kwargs"),
)
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
    args = trainer.args
    rows: list[tuple[str, str]] = [
        *_parts(trainer),
        ("Rollouts", f"`{trainer.recipe.rollout.how}`"),
        ("Update engine", f"`{trainer.recipe.engine.layout}`"),
        ("Rewards", ", ".join(f"`{name}`" for name in trainer.reward_func_names)),
        *([("Tools", ", ".join(f"`{_text(tool.__name__)}`" for tool in trainer.tools))] if trainer.tools else []),
        *((name, _value(value)) for name, value in trainer.card_facts.items()),
        ("Steps", str(trainer.state.global_step)),
        ("Processes", str(trainer.accelerator.num_processes)),
    ]
    lines = [MARK, "", "Trained with grpo_plus, which runs on TRL.", "", *_table(("part", "this run"), rows)]
    verifiers = _verifiers(trainer)
    if verifiers:
        lines += ["", "### Verifiers", "", *_table(("verifier", "used in", "weight", "settings"), verifiers)]
    lines += ["", "### Options that were set", "", *_table(("option", "value"), _options(args))]
    lines += ["", "### Versions", "", *_table(("package", "version"), list(installed(*PACKAGES).items())), ""]
    return "\n".join(lines)


def _parts(trainer: RunHost) -> Iterator[tuple[str, str]]:
    """Yield the row of each part that can be swapped."""
    args, recipe = trainer.args, trainer.recipe
    name, keywords = equivalent_advantage(args)
    rows = [
        ("advantage", "Advantage estimator", f"TRL's own, which is `{name}`{_keywords(keywords)}", ""),
        ("objective", "Objective", f"TRL's own loss, `{args.loss_type}`, beta {args.beta:g}", f", beta {args.beta:g}"),
    ]
    if (chosen := recipe.selection) is not None:
        kind = "" if not chosen.selection.draws else ", unbiased" if chosen.weighted else ", a curriculum"
        rows.append(("selection", "Selection of prompts", "", kind))
    for field, title, stock, more in rows:
        own = f"`{_base(recipe.names.get(field, ''))}`{_keywords(recipe.keywords.get(field))}{more}"
        yield title, own if field in recipe.names else stock


def _verifiers(trainer: RunHost) -> list[tuple[str, str, str, str]]:
    weights = dict(zip(trainer.reward_func_names, trainer.reward_weights.tolist(), strict=False))
    rows = []
    recipe = trainer.recipe
    for used, parts in (("training", recipe.verifiers), ("evaluation", recipe.eval_verifiers)):
        for entry in (part.entry for part in parts):
            weight = 1.0 if entry.weight is None else entry.weight
            weight = weights.get(entry.label, weight) if used == "training" else weight
            settings = {"name": entry.name, **entry.kwargs, "columns": entry.columns, "timeout": entry.timeout}
            own = {key: value for key, value in settings.items() if value and value != entry.label}
            rows.append((f"`{entry.label}`", used, f"{weight:g}", _keywords(own).strip()))
    return rows


def _keywords(keywords: Any) -> str:
    if not keywords:
        return ""
    return " " + ", ".join(f"`{key}: {_value(value)}`" for key, value in redact(dict(keywords)).items())


def _options(args: Any) -> list[tuple[str, str]]:
    rows = []
    for field in dataclasses.fields(args):
        if not field.init or field.name in {*_OF_THE_MACHINE, *_IN_OTHER_TABLES} or secret_kind(field.name):
            continue
        value = getattr(args, field.name)
        default = field.default if field.default is not dataclasses.MISSING else None
        if field.default_factory is not dataclasses.MISSING:
            default = field.default_factory()
        if value not in (default, None, [], {}) and isinstance(value, str | int | float | list | dict):
            rows.append((f"`{field.name}`", f"`{_value(value)}`"))
    return rows


def _value(value: Any) -> str:
    value = redact(getattr(value, "value", value))
    text = value if isinstance(value, str) else json.dumps(value, default=str, ensure_ascii=False)
    return _text(_base(text))


def _base(name: str) -> str:
    """Shorten a reference or path to its name, without the folders of this machine."""
    path, colon, attr = name.partition(".py:")
    if colon:
        return f"{Path(path).name}.py:{attr}"
    return Path(name).name if name.startswith(("/", "./", "../", "~")) else name


def _text(value: Any) -> str:
    """Format one cell of a table: on one line, without the characters that end a cell or code."""
    return " ".join(str(value).split()).replace("|", "\\|").replace("`", "'")


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}", *(f"| {' | '.join(row)} |" for row in rows)]
