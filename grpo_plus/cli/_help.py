"""Help of ``grpo-plus train``: options of grpo_plus by topic, common options, and all others on request.

All texts are read from the sources of the argument classes, so the help does not import torch.
"""

import argparse
import ast
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import grpo_plus
from grpo_plus.recipe.values import HEADS
from grpo_plus.trl.fields import CONFIG_SOURCES, SCRIPT_SOURCES
from grpo_plus.trl.versions import source_file


@dataclass(frozen=True)
class StaticField:
    """A field of a dataclass; ``default`` is in YAML form, "unset" for None; ``help`` and ``choices`` may be empty."""

    name: str
    kind: str
    default: str
    help: str
    choices: tuple[str, ...] = ()


@lru_cache
def static_fields(path: Path, name: str) -> dict[str, StaticField]:
    """Return the fields declared by a class in a source file; empty if the file or class is missing."""
    if not path.is_file():
        return {}
    tree = ast.parse(path.read_text(encoding="utf-8"))
    owner = next((node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name), None)
    if owner is None:
        return {}
    constants = _constants(owner)
    fields = {}
    for node in owner.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            field = node.target.id
            default, about = _value(node.value, constants)
            fields[field] = StaticField(field, ast.unparse(node.annotation), default, *_help(about))
    return fields


@lru_cache
def static_words(path: Path) -> dict[str, list[str]]:
    """Return the words of each enumeration in a source file, by its class."""
    nodes = ast.parse(path.read_text(encoding="utf-8")).body if path.is_file() else []
    classes = [node for node in nodes if isinstance(node, ast.ClassDef)]
    return {one.name: [*_constants(one).values()] for one in classes if "Enum" in ast.unparse(ast.Tuple(one.bases))}


def _constants(owner: ast.ClassDef) -> dict[str, str]:
    """Return the names with literal values in the class body, each with all its values: some depend on the machine."""
    values: dict[str, list[str]] = {}
    for node in ast.walk(owner):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant):
            for target in node.targets:
                if isinstance(target, ast.Name):
                    values.setdefault(target.id, []).append(as_written(node.value.value))
    return {name: " or ".join(dict.fromkeys(texts)) for name, texts in values.items()}


def _value(node: ast.expr | None, constants: dict[str, str]) -> tuple[str, ast.expr | None]:
    if not isinstance(node, ast.Call):
        return ("required" if node is None else _text(node, constants)), None
    parts = {keyword.arg: keyword.value for keyword in node.keywords}
    default = "required"
    if "default" in parts:
        default = _text(parts["default"], constants)
    elif "default_factory" in parts:
        factory = parts["default_factory"]
        empty = {"list": "[]", "dict": "{}"}
        default = _text(factory.body, constants) if isinstance(factory, ast.Lambda) else ast.unparse(factory)
        default = empty.get(default, default)
    return default, parts.get("metadata")


def _help(metadata: ast.expr | None) -> tuple[str, tuple[str, ...]]:
    pairs = zip(metadata.keys, metadata.values, strict=True) if isinstance(metadata, ast.Dict) else ()
    parts = {key.value: value for key, value in pairs if isinstance(key, ast.Constant)}
    about, choices = parts.get("help", ast.Constant("")), parts.get("choices")
    text = about.value if isinstance(about, ast.Constant) else ast.unparse(about)
    words = choices.elts if isinstance(choices, ast.List | ast.Tuple) else ()
    return " ".join(str(text).replace("%%", "%").split()), tuple(each.value for each in words)  # type: ignore[attr-defined]


def _text(node: ast.expr, constants: dict[str, str]) -> str:
    if isinstance(node, ast.Name):
        return constants.get(node.id, node.id)
    try:
        return as_written(ast.literal_eval(node))
    except ValueError:
        return ast.unparse(node)


def as_written(value: Any) -> str:
    """Return a value in YAML form; None is "unset"."""
    if value is None:
        return "unset"
    return str(value).lower() if isinstance(value, bool) else str(value)


OURS = (("config.py", "GRPOPlusConfig"), ("cli/_arguments.py", "PlusScriptArguments"))

TOPICS: Mapping[str, tuple[str, ...]] = {
    "advantage (from the rewards of a group)": ("advantage", "critic"),
    "objective (the maximised quantity)": ("objective",),
    "verifiers (rewards of a completion)": (
        *("verifiers", "verifier_column", "plugins", "reward_funcs"),
        *("reward_model_name_or_path", "reward_model"),
    ),
    "tools (functions for the model to call)": ("tools", "environment"),
    "prompts (selection and dead groups)": ("selection", "dead_groups"),
    "sampling": ("rollout",),
    "engine (how the update runs)": ("engine",),
    "4 bits": ("load_in_4bit", "use_peft", "lora_r"),
    "evaluation": ("eval_verifiers", "measure", "eval_strategy"),
    "record and report": ("report",),
    "diagnosis (problems, in words)": ("diagnosis",),
    "prompt and run": (
        *("prompt", "warm_start", "check", "overwrite_output_dir", "resume_from_checkpoint"),
        *("allow_changes", "next_steps", "torch_threads"),
    ),
}
"""Options of grpo_plus with related ones of TRL; options missing here get a topic of their own."""

DAILY: Mapping[str, str] = {
    "model_name_or_path": "A name on the hub, folder, or function.",
    "dataset_name": "A file, folder, name on the hub, or function.",
    "output_dir": "Model, checkpoints and report.",
    "learning_rate": "Adapters want ten times this.",
    "max_steps": "-1: until num_train_epochs.",
    "num_generations": "Completions of a prompt.",
    "per_device_train_batch_size": "Completions of a pass.",
    "gradient_accumulation_steps": "Passes of an optimizer step.",
    "num_iterations": "Updates on the same completions.",
    "max_completion_length": "Most tokens of a completion.",
    "beta": "KL coefficient; 0: no reference model.",
    "temperature": "Of sampling.",
    "logging_steps": "Steps between log entries.",
    "save_steps": "Steps between checkpoints.",
    "report_to": "Trackers: trackio, wandb, ...",
    "seed": "Of everything random.",
    "use_cpu": "Train on the CPU.",
}
"""Common options of TRL and transformers, with short help texts."""

_RELATED: Mapping[str, str] = {
    "load_in_4bit": "Hold the base in 4 bits (NF4) and train adapters.",
    "use_peft": "Train LoRA adapters.",
    "lora_r": "Their rank.",
    "eval_strategy": "When to evaluate: no, steps or epoch.",
    "resume_from_checkpoint": "A folder, or last or auto: the newest one.",
}
"""Short help texts for options of TRL listed among those of grpo_plus."""

CODES = (
    "Exit codes: 0, 2 (a mistake), 3 (stop_on), 74 (checkpoint or model not written), 130 and 143 (Ctrl-C, SIGTERM)."
)
_WIDEST = 110


def text(prog: str, *, everything: bool) -> str:
    """Return the help text for the width of the terminal."""
    parser = argparse.ArgumentParser(
        prog=prog,
        usage=f"{prog} config.yaml [--any.option VALUE ...]",
        description="Train a model from a YAML file. Keys of the file and flags have the same names, and a flag wins. "
        "One key of a MAPPING is set by .KEY after the flag.",
        epilog=CODES
        if everything
        else f"{prog} --help-all lists every option of TRL and transformers as well. {CODES}",
        formatter_class=_Formatter,
        add_help=False,
    )
    command = parser.add_argument_group("command")
    command.add_argument("--config", metavar="FILE", help="the config file, if it is not the first argument")
    command.add_argument("--help", "--help-all", action="store_true", help="these options, or all there are")
    own, host = own_options(), host_options()
    options, shown = {**host, **own}, set[str]()
    more = "resume_from_checkpoint"  # with more values than in the host
    brief = {more: _RELATED[more]} if everything else {**DAILY, **_RELATED}

    def add(title: str, fields: Iterable[StaticField]) -> None:
        group = parser.add_argument_group(title)
        for field in fields:
            shown.add(field.name)
            about = f"{brief.get(field.name, field.help)} (default: {field.default})".strip().replace("%", "%%")
            group.add_argument(f"--{field.name}", metavar=_metavar(field.name, field.kind), help=about)

    for title, names in TOPICS.items():
        add(title, [options[name] for name in names if name in options])
    if forgotten := [field for name, field in own.items() if name not in shown]:
        add("more options of grpo_plus", forgotten)
    launch = parser.add_argument_group("several processes, with any option of accelerate launch")
    launch.add_argument("--accelerate_config", metavar="FILE", help="a file of accelerate, or fsdp2, zero2, ...")
    launch.add_argument("--num_processes", metavar="N", help="processes to start (default: from the file)")
    add("of TRL, set every day", [host[name] for name in DAILY if name in host])
    if everything:
        add("the rest of TRL and transformers", [field for name, field in sorted(host.items()) if name not in shown])
    return parser.format_help()


def own_options() -> dict[str, StaticField]:
    """Return the options of grpo_plus."""
    folder = Path(grpo_plus.__file__).parent
    return {name: field for path, owner in OURS for name, field in static_fields(folder / path, owner).items()}


def host_options() -> dict[str, StaticField]:
    """Return the options of TRL and transformers; a subclass overrides its base."""
    sources = [(source_file(package, path), owner) for package, path, owner in (*CONFIG_SOURCES, *SCRIPT_SOURCES)]
    return {name: field for source in sources for name, field in static_fields(*source).items()}


def _metavar(name: str, kind: str) -> str:
    if "list[" in kind:
        return "A ..."
    if "dict" in kind:
        return "WORD|MAPPING" if name in HEADS else "MAPPING"
    plain = [part for part in kind.split(" | ") if part != "None"]
    if len(plain) == 1 and kind.startswith("Literal["):
        return plain[0].removeprefix("Literal[").removesuffix("]").replace("'", "").replace(", ", "|")
    return {"bool": "true|false", "int": "N", "float": "X"}.get(plain[0], "TEXT") if len(plain) == 1 else "VALUE"


class _Formatter(argparse.HelpFormatter):
    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=25, width=min(shutil.get_terminal_size().columns - 1, _WIDEST))
