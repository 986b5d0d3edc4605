"""Checks of a command line before torch and TRL are imported, which takes seconds."""

import argparse
import ast
import dataclasses
import os
import re
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any, NoReturn

import yaml

from grpo_plus.advantages.registry import advantages
from grpo_plus.cli import UserError
from grpo_plus.cli._data import READERS, local_data, local_model
from grpo_plus.cli._help import host_options, own_options, static_words
from grpo_plus.cli._parser import by_option, repeated, with_values
from grpo_plus.cli._prompts import prompt_problems
from grpo_plus.diagnosis import RULES
from grpo_plus.objectives.pieces import piece_registries
from grpo_plus.objectives.registry import objectives
from grpo_plus.recipe.aliases import leaves, remedy
from grpo_plus.recipe.entries import builtin_problems
from grpo_plus.recipe.forms import KeywordAction, add_dotted_flags, part_keywords, read_form, unfolded
from grpo_plus.recipe.settings import DEAD_GROUPS, OPTIONS
from grpo_plus.recipe.values import HEADS, is_off, judge, mapping, read_yaml
from grpo_plus.selection.registry import selections
from grpo_plus.trl.versions import source_file
from grpo_plus.warm_start.store import warm_start_problems
from grpo_verifiers.errors import ConfigError, Problem, VerifierError
from grpo_verifiers.errors.messages import unknown
from grpo_verifiers.options import option_problems
from grpo_verifiers.registry import Registry, is_reference
from grpo_verifiers.tools.registry import TOOLS
from grpo_verifiers.verifying import REGISTRY

NEGATIVE = re.compile(r"-(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?\Z")
LAUNCHED = "GRPO_PLUS_LAUNCHED"
"""Set in the processes that ``train`` launches with accelerate; they read the same arguments."""
_LAUNCHER = ("accelerate", "commands/launch.py")
_PLAIN = {"int", "float", "bool", "None"}
_REGISTRIES: Mapping[str, Registry[Any]] = {
    "advantage": advantages,
    "objective": objectives,
    "selection": selections,
    **dict.fromkeys(("verifiers", "eval_verifiers"), REGISTRY),
    "tools": TOOLS,
}
_ENUMERATIONS = ("trainer_utils.py", "training_args.py")
_TRUTHS = dict.fromkeys(("true", "yes", "t", "y", "1"), True) | dict.fromkeys(("false", "no", "f", "n", "0"), False)


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
    """Raise `UserError` for an unreadable config file, unknown keys and options, and wrong values.

    ``own`` are options that the command reads itself. A command that ``trains`` also needs its files and folders
    to exist, and prints a first line at its start.
    """
    if LAUNCHED in os.environ or os.environ.get("RANK", "0") != "0":  # another process has checked, or checks now
        return
    path, rest = config_path(arguments)
    settings = read_settings(path, rest, own)
    if not trains:
        return
    if isinstance(name := settings.get("dataset_name"), str):
        local_data(name, Path.cwd() if path is None else path.resolve().parent)
    names = {key: settings.get(key) for key in ("model_name_or_path", "reward_model_name_or_path")}
    for field in ("critic", "reward_model"):
        if isinstance(part := settings.get(field), dict):
            names[f"{field}: model"] = part.get("model")
    for key, name in names.items():
        if isinstance(name, str):
            local_model(name, key)
    parts = ", ".join(f"{registry.kind} {name}" for _, registry, name, _ in _parts(settings))
    print(f"Reading {path or 'the options'}{parts and f' ({parts})'}, and loading torch and TRL.", flush=True)


def read_settings(path: Path | None, words: Sequence[str], own: Collection[str]) -> dict[str, Any]:
    """Return the values of a config file, replaced by those of flags; raise `UserError` with all problems."""
    if path is not None and path.suffix in READERS and path.suffix != ".json":
        raise UserError(f"the config file {path} is data: a config is YAML, and names data with dataset_name.")
    if path is not None and path.exists() and not path.is_file() and not path.is_dir():
        raise UserError(f"the config file {path} is a pipe or a device, and is read more than once: give a file.")
    try:
        values = {} if path is None else read_yaml(path)
    except ValueError as error:
        raise UserError(str(error)) from error
    problems = [*_unknown_keys(values), *word_problems(words, own)]
    settings = {name: unfolded(value) for name, value in values.items()}
    try:
        settings |= {name: unfolded(value) for name, value in _flags(values, words).items()}
    except UserError as error:
        problems.append(str(error))
    problems += [*_wrong_numbers(settings), *_wrong_words(settings), *_wrong_names(settings)]
    problems += map(str, _wrong_mappings(settings))
    folders = [Path.cwd(), *([] if path is None else [path.resolve().parent])]
    for name in settings.get("plugins") or () if isinstance(settings.get("plugins"), list) else ():
        if str(name).endswith(".py") and not any((folder / Path(name).expanduser()).is_file() for folder in folders):
            problems.append(f"plugins: the file {name!r} does not exist.")
    if problems:
        raise UserError(str(ConfigError(problems)))
    return settings


def _flags(values: Mapping[str, Any], words: Sequence[str]) -> dict[str, Any]:
    """Return the values of the flags; a key of a mapping is merged into that of the file."""
    parser = light_parser()
    add_dotted_flags(parser, words, mappings())
    parser.set_defaults(**{name: values.get(name) for name in mappings()})
    parser.error = lambda message: raise_user_error(with_values(parser, words, message))  # type: ignore[method-assign]  # its own ends the process
    flags, _ = parser.parse_known_args([*words])
    named = {option.removeprefix("--") for option, _ in by_option(words)}
    return {name: value for name, value in vars(flags).items() if value is not None or name in named}


def _unknown_keys(values: Mapping[str, Any]) -> list[str]:
    names = {*host_options(), *own_options(), *launch_options(), "env"}
    strange = [key for key in leaves(values, names) if key not in names]
    return [f"unknown key {key!r}{_end(key, names, '{!r}')}" for key in strange]


def _end(name: str, names: Collection[str], form: str) -> str:
    text = remedy(name, names, form)
    return ". grpo-plus train --help-all lists all." if text == "." else text


def _wrong_numbers(settings: dict[str, Any]) -> list[str]:
    """Return the problems of values that are a number, true or false by the sources of the options."""
    options = {**host_options(), **own_options()}
    plain = {name: option for name, option in options.items() if {*option.kind.split(" | ")} <= _PLAIN}
    defaults = {name: None if each.default == "unset" else yaml.safe_load(each.default) for name, each in plain.items()}
    specs = [(name, plain[name].kind, dataclasses.field(default=value)) for name, value in defaults.items()]
    values = {name: _value(plain[name].kind, value) if name in plain else value for name, value in settings.items()}
    return [*judge(dataclasses.make_dataclass("Numbers", specs), values).problems.values()]


def _value(kind: str, text: Any) -> Any:
    """Return the value of a text as transformers' parser reads it; the text if it cannot."""
    if "bool" in kind and isinstance(text, str):
        return _TRUTHS.get(text.lower(), text)
    for read in (int, float) if isinstance(text, str) else ():
        with suppress(ValueError):
            return read(text)
    return text


def _wrong_words(settings: Mapping[str, Any]) -> Iterator[str]:
    words = {name: of for path in _ENUMERATIONS for name, of in static_words(source_file("transformers", path)).items()}
    for name, option in {**host_options(), **own_options()}.items():
        allowed = next((words[kind] for kind in option.kind.split(" | ") if kind in words), None)
        allowed = [*option.choices] or allowed
        if allowed and isinstance(value := settings.get(name), str) and value not in allowed:
            yield f"{name}: {unknown('value', value, allowed)}"


def _wrong_names(settings: Mapping[str, Any]) -> Iterator[str]:
    """Yield the problems of names and keywords that no part has, unless plug-ins may have the name."""
    of_pieces = list[list[str] | None]()
    for where, registry, name, keys in _parts(settings):
        allowed = part_keywords().get(registry.kind, {}).get(name)
        if where == "objective: ":
            of_pieces.append(allowed)
        elif registry is objectives:
            pieces = [words for words in (allowed, *of_pieces) if words is not None]
            allowed = sum(pieces, list[str]()) if len(pieces) > len(of_pieces) else None
        if allowed is not None:
            wrong = [] if "*" in allowed else [key for key in keys if key not in allowed]
            yield from (f"{where}{registry.kind} {name!r}: {unknown('keyword', key, allowed)}" for key in wrong)
        elif not settings.get("plugins"):
            yield from _unknown_names(where, registry, name)


def _unknown_names(where: str, registry: Registry[Any], name: str) -> Iterator[str]:
    if not is_reference(name) and name not in registry:
        try:
            registry.get(name)
        except VerifierError as error:
            yield f"{where}{error}"


def _parts(settings: Mapping[str, Any]) -> Iterator[tuple[str, Registry[Any], str, list[str]]]:
    """Yield the names and other keys of parts; those of a wrong form are reported with the other forms."""
    for field, registry in _REGISTRIES.items():
        value, part = settings.get(field), dict[str, Any]()
        with suppress(ValueError):
            part = read_form(field, value) if field in HEADS else {}
        for kind, pieces in piece_registries.items() if field == "objective" else ():
            yield from _entries("objective: ", pieces, part.get(kind), "estimator" if kind == "kl" else "name")
        for at, item in enumerate([part] if field in HEADS else value if isinstance(value, list) else []):
            yield from _entries(f"tools[{at}]: " * (field == "tools"), registry, item)


def _entries(where: str, registry: Registry[Any], part: Any, head: str = "name") -> Iterator[Any]:
    part = part if isinstance(part, dict) else {head: part}
    names = part.get(head)
    for name in map(str.strip, names.split(",") if isinstance(names, str) else ()):
        if not is_off(name) and not name.startswith("{"):
            yield where, registry, name, [str(key) for key in part if key != head]


def _wrong_mappings(values: Mapping[str, Any]) -> Iterator[Problem]:
    yield from prompt_problems(values.get("prompt"))
    yield from warm_start_problems(values.get("warm_start"))
    for name in dict.fromkeys((*OPTIONS, *HEADS)):
        try:
            keys = read_form(name, values.get(name)) if name in HEADS else mapping(name, values.get(name))
        except ValueError as error:
            yield str(error)
            continue
        if name in OPTIONS:
            yield from option_problems(name, OPTIONS[name], keys, where="key", bare=True)
            if isinstance(named := keys.get("judge"), str) and named != "strict" and not values.get("plugins"):
                yield from _unknown_names("diagnosis judge: ", REGISTRY, named)
            stops = keys.get("stop_on")
            wrong = [each for each in stops if each not in RULES] if isinstance(stops, list) else []
            yield from (f"stop_on: {unknown('finding', each, list(RULES))}" for each in wrong)
        elif name != "dead_groups":
            continue  # an estimator, an objective or a selection, whose name is judged
        elif (way := str(keys.pop("name", "keep"))) not in DEAD_GROUPS:
            yield f"{name}: {unknown('name', way, DEAD_GROUPS)}"
        else:
            yield from option_problems(f"{name} {way!r}", DEAD_GROUPS[way], keys)
    for name in ("verifiers", "eval_verifiers"):
        yield from builtin_problems(values.get(name), name)


@lru_cache
def light_parser() -> argparse.ArgumentParser:
    """Return a parser of all options of ``train`` without types, read from the sources that declare them."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser._negative_number_matcher = NEGATIVE  # noqa: SLF001 - argparse itself takes -1e-4 for a flag
    for name, field in {**host_options(), **own_options()}.items():
        if name in mappings():
            parser.add_argument(*_spellings(name), dest=name, action=KeywordAction, help=field.help.replace("%", "%%"))
        else:
            nargs = "?" if "bool" in field.kind else "+" if "list[" in field.kind else None
            parser.add_argument(*_spellings(name), dest=name, nargs=nargs)
        if "bool" in field.kind:  # as transformers' parser has it
            parser.add_argument(*_spellings(f"no_{name}"), dest=name, action="store_false")
    return parser


def raise_user_error(message: str) -> NoReturn:
    """Raise the message of a parser, whose own way prints a usage and ends the process."""
    raise UserError(message)


def mappings() -> tuple[str, ...]:
    """Return the options with a mapping as value, whose keys are set by ``--option.key``."""
    return tuple(name for name, field in own_options().items() if "dict[" in field.kind)


def _spellings(name: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys((f"--{name}", f"--{name.replace('_', '-')}")))


def word_problems(words: Sequence[str], own: Collection[str]) -> list[str]:
    """Return the problems of options that are unknown, or that replace their own values."""
    options = light_parser()._option_string_actions  # noqa: SLF001 - argparse has no public list
    names = {option.removeprefix("--") for option in (*options, *own)} | launch_options()
    problems = []
    for word in words:
        name = word.partition("=")[0]
        bare = name.removeprefix("--").replace("-", "_")
        is_option = name in options or bare.partition(".")[0] in mappings() or name in own or bare in launch_options()
        if word.startswith("--") and word != "--" and not is_option:
            problems.append(f"unknown option {name}{_end(bare, names, '--{}')}")
    twice = repeated(light_parser(), words)
    return [*problems, *([twice] if twice else [])]


@lru_cache
def launch_options() -> frozenset[str]:
    """Return the options of ``accelerate launch``, read from its source; empty if accelerate is not installed."""
    path = source_file(*_LAUNCHER)
    if not path.is_file():
        return frozenset()
    calls = [node for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(node, ast.Call)]
    words = [str(word.value) for call in calls for word in call.args if isinstance(word, ast.Constant)]
    return frozenset({"accelerate_config", *(word[2:] for word in words if re.fullmatch(r"--\w+", word))})


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
