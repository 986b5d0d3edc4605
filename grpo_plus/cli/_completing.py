"""The words that may stand at the end of a command line: commands, options, values and names of parts.

Everything is read from the parsers and declarations themselves, none of which imports torch.
"""

import argparse
import importlib
import re
from collections.abc import Callable, Iterable, Sequence

from grpo_plus.cli import COMMANDS
from grpo_plus.cli._declared import Declared
from grpo_plus.cli._help import host_options, our_options
from grpo_plus.cli._parser import Parser, asked_parser

_LITERAL = re.compile(r"Literal\[([^\]]*)\]")
SUBCOMMANDS = {"reward-model": ("train", "eval")}


def candidates(words: Sequence[str]) -> list[str]:
    """The words that may take the place of the last one of ``words``, which follow ``grpo-plus``; empty: a file.

    >>> candidates(["expl"])
    ['explain']
    >>> candidates(["explain", "c.yaml", "--advantage", "r"])
    ['raw', 'reinforce_pp', 'rloo']
    """
    *before, current = words
    found = _known(before, current)
    return sorted({word for word in found if word.startswith(current)})


def _known(before: Sequence[str], current: str) -> Iterable[str]:
    if not before:
        return (*COMMANDS, "--help", "--version")
    command, rest = before[0], list(before[1:])
    if command not in COMMANDS:
        return ()
    if subcommands := SUBCOMMANDS.get(command):
        if not rest:
            return subcommands
        rest = rest[1:]
    actions, fields = _options(command, before[1:])
    previous = rest[-1] if rest else ""
    if current.startswith("-"):
        return (*actions, *(f"--{name}" for name in fields), "--help")
    if previous.startswith("--"):
        action = actions.get(previous.replace("_", "-"))
        if action is not None and (action.choices or action.nargs != 0):
            return _names(action.dest) or map(str, action.choices or ())
        if action is None:
            name = previous.removeprefix("--").replace("-", "_")
            return _names(name) or (_values(fields[name]) if name in fields else ())
    return _positional(command, actions, rest)


def _options(command: str, rest: Sequence[str]) -> tuple[dict[str, argparse.Action], dict[str, Declared]]:
    """The options of a command's own parser, and those of a training where the command takes them."""
    parser = None if command == "train" else _parser(command, rest)
    every = command == "train" or (parser is not None and "--any.option" in (parser.usage or ""))
    fields = {**host_options(), **our_options()} if every else {}
    actions = parser._actions if parser is not None else []  # noqa: SLF001 - argparse has no public list
    return {option: action for action in actions for option in action.option_strings or [f"<{action.dest}>"]}, fields


def _parser(command: str, rest: Sequence[str]) -> Parser | None:
    module = importlib.import_module(f"grpo_plus.cli.{command.replace('-', '_')}")
    first = list(rest[:1]) if command in SUBCOMMANDS else []
    return asked_parser(module.run, first) or asked_parser(module.run, ["config.yaml"])  # some read the file first


def _positional(command: str, actions: dict[str, argparse.Action], rest: Sequence[str]) -> Iterable[str]:
    """The words of a positional argument that is no file."""
    if command == "init":
        from grpo_plus.cli.init import RECIPES

        return () if rest and not rest[-1].startswith("-") else RECIPES
    if command == "plugins":
        return {name for names in _PARTS.values() for name in names()}
    if rest:
        return ()
    return [str(word) for option, action in actions.items() if option[0] == "<" for word in action.choices or ()]


def _values(field: Declared) -> list[str]:
    """The words that a field of a config takes, where they are few."""
    listed = [word.strip(" '\"") for found in _LITERAL.findall(field.kind) for word in found.split(",")]
    return [*listed, *(["true", "false"] if "bool" in field.kind.split(" | ") else [])]


def _advantages() -> Iterable[str]:
    from grpo_plus.advantages.registry import advantages

    return advantages


def _objectives() -> Iterable[str]:
    from grpo_plus.objectives.registry import objectives

    return objectives


def _selections() -> Iterable[str]:
    from grpo_plus.selection import selections

    return selections


def _verifiers() -> Iterable[str]:
    from grpo_verifiers.verifying import REGISTRY

    return REGISTRY


def _tools() -> Iterable[str]:
    from grpo_verifiers.tools.registry import TOOLS

    return TOOLS


def _environments() -> Iterable[str]:
    from grpo_verifiers.tools.registry import ENVIRONMENTS

    return ENVIRONMENTS


_PARTS: dict[str, Callable[[], Iterable[str]]] = {
    "advantage": _advantages,
    "objective": _objectives,
    "selection": _selections,
    "verifiers": _verifiers,
    "eval_verifiers": _verifiers,
    "verifier": _verifiers,
    "tools": _tools,
    "environment": _environments,
}


def _names(option: str) -> Iterable[str]:
    """The names of parts that an option takes."""
    return list(_PARTS[option]()) if option in _PARTS else ()
