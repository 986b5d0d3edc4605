"""The help of ``grpo-plus train``: our options by topic, common options, and all others on request.

Everything is read from the sources of the argument classes, so the help does not import torch.
"""

import argparse
import io
import os
import shutil
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

import grpo_plus
from grpo_plus import _trl
from grpo_plus.cli._declared import Declared, declared
from grpo_plus.recipe.values import HEADS

OURS = (("config.py", "GRPOPlusConfig"), ("cli/_arguments.py", "PlusScriptArguments"))

TOPICS: Mapping[str, tuple[str, ...]] = {
    "advantage (from the rewards of a group)": ("advantage", "critic"),
    "objective (the maximised quantity)": ("objective",),
    "verifiers (rewards of a completion)": (
        "verifiers",
        "verifier_column",
        "plugins",
        "reward_funcs",
        "reward_model_name_or_path",
        "reward_model",
    ),
    "tools (what the model may call)": ("tools", "environment"),
    "prompts (which are drawn, how often)": ("selection", "dead_groups"),
    "sampling": ("rollout",),
    "engine (how the update runs)": ("engine",),
    "4 bits": ("load_in_4bit", "use_peft", "lora_r"),
    "evaluation": ("eval_verifiers", "measure", "eval_strategy"),
    "record and report": ("report",),
    "diagnosis (what is wrong, in words)": ("diagnosis",),
    "prompt and run": (
        "prompt",
        "warm_start",
        "overwrite_output_dir",
        "resume_from_checkpoint",
        "allow_changes",
        "next_steps",
        "torch_threads",
    ),
}
"""Our options with related ones of TRL; options of ours that are missing here get their own topic."""

DAILY: Mapping[str, str] = {
    "model_name_or_path": "A name on the hub, folder, or function.",
    "dataset_name": "A file, folder, name on the hub, or function.",
    "output_dir": "Model, checkpoints and report.",
    "learning_rate": "Adapters want ten times this.",
    "max_steps": "-1: as num_train_epochs says.",
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

_BESIDE_OURS: Mapping[str, str] = {
    "load_in_4bit": "Hold the base in 4 bits (NF4) and train adapters.",
    "use_peft": "Train LoRA adapters.",
    "lora_r": "Their rank.",
    "eval_strategy": "When to evaluate: no, steps or epoch.",
    "resume_from_checkpoint": "A folder, or last or auto: the newest one.",
}
"""Short help texts for options of TRL among ours."""

CODES = (
    "Exit codes: 0, 2 (a mistake), 3 (stop_on), 74 (checkpoint or model not written), 130 and 143 (Ctrl-C, SIGTERM)."
)
_WIDEST = 110


def show(prog: str, *, everything: bool) -> int:
    """Print the help, and return the exit code; a closed pipe, as with ``head``, is no error."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # the host's help has Greek letters
    try:
        print(text(prog, everything=everything), flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or the exit reports the pipe
    return 0


def text(prog: str, *, everything: bool) -> str:
    """The help text for the width of the terminal."""
    parser = argparse.ArgumentParser(
        prog=prog,
        usage=f"{prog} config.yaml [--any.option VALUE ...]",
        description="Train a model from a YAML file. Keys of the file and flags have the same names, and a flag wins. "
        "One key of a MAPPING is set by .KEY behind the flag.",
        epilog=CODES
        if everything
        else f"{prog} --help-all lists every option of TRL and transformers as well. {CODES}",
        formatter_class=_Formatter,
        add_help=False,
    )
    command = parser.add_argument_group("command")
    command.add_argument("--config", metavar="FILE", help="the config file, where it is not the first argument")
    command.add_argument("--help", "--help-all", action="store_true", help="these options, or all there are")
    ours, host = our_options(), host_options()
    known, shown = {**host, **ours}, set[str]()
    more = "resume_from_checkpoint"  # it does more here than the host's own help says
    brief = {more: _BESIDE_OURS[more]} if everything else {**DAILY, **_BESIDE_OURS}

    def add(title: str, fields: Iterable[Declared]) -> None:
        group = parser.add_argument_group(title)
        for field in fields:
            shown.add(field.name)
            about = f"{brief.get(field.name, field.help)} (default: {field.default})".strip().replace("%", "%%")
            group.add_argument(f"--{field.name}", metavar=_metavar(field.name, field.kind), help=about)

    for title, names in TOPICS.items():
        add(title, [known[name] for name in names if name in known])
    if forgotten := [field for name, field in ours.items() if name not in shown]:
        add("more of ours", forgotten)
    launch = parser.add_argument_group("several processes, with any option of accelerate launch")
    launch.add_argument("--accelerate_config", metavar="FILE", help="a file of accelerate, or fsdp2, zero2, ...")
    launch.add_argument("--num_processes", metavar="N", help="processes to start (default: as the file says)")
    add("of TRL, set every day", [host[name] for name in DAILY if name in host])
    if everything:
        add("the rest of TRL and transformers", [field for name, field in sorted(host.items()) if name not in shown])
    return parser.format_help()


def our_options() -> dict[str, Declared]:
    """The options of this project."""
    folder = Path(grpo_plus.__file__).parent
    return {name: field for path, owner in OURS for name, field in declared(folder / path, owner).items()}


def host_options() -> dict[str, Declared]:
    """The options of TRL and transformers; a subclass overrides its base."""
    found: dict[str, Declared] = {}
    for package, path, owner in (*_trl.CONFIG_SOURCES, *_trl.SCRIPT_SOURCES):
        found |= declared(_trl.source_file(package, path), owner)
    return found


def _metavar(name: str, kind: str) -> str:
    """The placeholder of an option's value."""
    if "list[" in kind:
        return "A ..."
    if "dict" in kind:
        return "WORD|MAPPING" if name in HEADS else "MAPPING"
    plain = [part for part in kind.split(" | ") if part != "None"]
    if len(plain) == 1 and kind.startswith("Literal["):
        return plain[0].removeprefix("Literal[").removesuffix("]").replace("'", "").replace(", ", "|")
    return {"bool": "true|false", "int": "N", "float": "X"}.get(plain[0], "TEXT") if len(plain) == 1 else "VALUE"


class _Formatter(argparse.HelpFormatter):
    """Options in one column, help in another, at most 110 characters wide."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=25, width=min(shutil.get_terminal_size().columns - 1, _WIDEST))
