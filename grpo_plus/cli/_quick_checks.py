"""Checks of a command line before torch and TRL are imported, which takes seconds."""

import argparse
import ast
import os
import sys
from collections.abc import Collection, Sequence
from functools import lru_cache
from pathlib import Path

from grpo_plus.cli import UserError
from grpo_plus.cli._data import READERS, local_data, local_model
from grpo_plus.cli._help import host_options, own_options
from grpo_plus.cli._parser import by_option, repeated
from grpo_plus.recipe.forms import KeywordAction, moved
from grpo_plus.recipe.values import read_yaml
from grpo_plus.trl.versions import source_file
from grpo_verifiers.errors.messages import nearest

LAUNCHED = "GRPO_PLUS_LAUNCHED"
"""Set in the processes that ``train`` launches with accelerate; they read the same arguments."""
_LAUNCHER = ("accelerate", "commands/launch.py")
_ALIASES = {"--model": "--model_name_or_path"}
"""Common misnamings whose nearest option is a wrong suggestion."""


def is_rank() -> bool:
    """Return True if a launcher started this process."""
    return LAUNCHED in os.environ or "WORLD_SIZE" in os.environ


def config_path(arguments: Sequence[str]) -> tuple[Path | None, list[str]]:
    """Split off the config file, which comes first or after ``--config``, from the other arguments."""
    rest = list(arguments)
    paths = [rest.pop(0)] if rest and not rest[0].startswith("-") else []
    for at in reversed(range(len(rest))):
        name, equals, value = rest[at].partition("=")
        if name != "--config":
            continue
        if not equals and at + 1 >= len(rest):
            raise UserError("--config is the last word: a config file must follow it.")
        paths.append(value if equals else rest[at + 1])
        del rest[at : at + 1 + (not equals)]
    if len(paths) > 1:
        raise UserError(f"give one config file, as the first argument or after --config: there are {', '.join(paths)}.")
    return (Path(paths[0]).expanduser() if paths else None), rest


def check_early(arguments: Sequence[str], *, own: Collection[str] = (), trains: bool = False) -> None:
    """Raise `UserError` for an unreadable config file and for unknown or repeated options.

    ``own`` are those that the command reads itself. A command that ``trains`` also needs its files and folders
    to exist, and prints a first line at its start.
    """
    if is_rank():
        return
    path, rest = config_path(arguments)
    if path is not None and path.suffix in READERS and path.suffix != ".json":
        raise UserError(f"the config file {path} is data: a config is YAML, and names data with dataset_name.")
    try:
        values = {} if path is None else read_yaml(path)
    except ValueError as error:
        raise UserError(str(error)) from error
    check_options(rest, own)
    if not trains:
        return
    base = Path.cwd() if path is None else path.resolve().parent
    flags = ((option, word.partition("=")[2] if word.startswith("--") else word) for option, word in by_option(rest))
    settings = values | {option.removeprefix("--"): value for option, value in flags if value}
    if isinstance(name := settings.get("dataset_name"), str):
        local_data(name, base)
    if isinstance(name := settings.get("model_name_or_path"), str):
        local_model(name)
    print(f"Reading {path or 'the options'}, and loading torch and TRL.", flush=True)


@lru_cache
def light_parser() -> argparse.ArgumentParser:
    """Return a parser of all options of ``train`` without types, read from the sources that declare them."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for name, field in {**host_options(), **own_options()}.items():
        if name in mappings():
            parser.add_argument(*_spellings(name), dest=name, action=KeywordAction)
        else:
            parser.add_argument(*_spellings(name), dest=name, nargs="*" if "list[" in field.kind else "?")
        if "bool" in field.kind:  # as transformers' parser has it
            parser.add_argument(*_spellings(f"no_{name}"), dest=name, action="store_false")
    return parser


def mappings() -> tuple[str, ...]:
    """Return the options with a mapping as value, whose keys are set by ``--option.key``."""
    return tuple(name for name, field in own_options().items() if "dict[" in field.kind)


def _spellings(name: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys((f"--{name}", f"--{name.replace('_', '-')}")))


def check_options(words: Sequence[str], own: Collection[str]) -> None:
    """Raise `UserError` for an option that is unknown, or that replaces its own value."""
    options = light_parser()._option_string_actions  # noqa: SLF001 - argparse has no public list
    launch = {option.replace("-", "_") for option in launch_options()}
    for word in words:
        name = word.partition("=")[0]
        field = name.removeprefix("--").partition(".")[0].replace("-", "_")
        known = name in options or field in mappings() or name in own or name.replace("-", "_") in launch
        if not word.startswith("--") or word == "--" or known:
            continue
        if now := moved([field]):
            raise UserError(f"unknown option {name}: {now[0]}")
        close = _ALIASES.get(name) or nearest(name, {*options, *launch_options(), *own})
        hint = f" Did you mean {close}?" if close else " grpo-plus train --help-all lists all."
        raise UserError(f"unknown option {name}.{hint}")
    if twice := repeated(light_parser(), words):
        raise UserError(twice)


@lru_cache
def launch_options() -> frozenset[str]:
    """Return the options of ``accelerate launch``, read from its source; empty if accelerate is not installed."""
    path = source_file(*_LAUNCHER)
    if not path.is_file():
        return frozenset()
    calls = [node for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(node, ast.Call)]
    words = [word.value for call in calls for word in call.args if isinstance(word, ast.Constant)]
    return frozenset({"--accelerate_config", *(w for w in words if isinstance(w, str) and w.startswith("--"))})


def on_cpu(words: Sequence[str]) -> list[str]:
    """Force ``--use_cpu true`` for commands that need no GPU."""
    at_option = [at for at, (option, _) in enumerate(by_option(words)) if option == "--use_cpu"]
    at_option = at_option[: 1 if at_option and "=" in words[at_option[0]] else 2]  # the option and its value
    return [*(word for at, word in enumerate(words) if at not in at_option), "--use_cpu", "true"]


def print_status(line: str) -> None:
    """Print a line about the progress of a command to stderr."""
    print(line, file=sys.stderr, flush=True)


def quiet_bars() -> None:
    """Switch off progress bars of loading and mapping outside a terminal: each refresh would be a line."""
    if sys.stderr.isatty():
        return
    import datasets
    from transformers.utils import logging

    datasets.disable_progress_bars()
    logging.disable_progress_bar()
