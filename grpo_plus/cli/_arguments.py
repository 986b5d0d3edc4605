"""Parse a YAML file and flags into TRL's argument groups and those of grpo_plus; unknown keys are errors."""

import argparse
import os
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from trl import DatasetMixtureConfig, ModelConfig, ScriptArguments, TrlParser

from grpo_plus.cli import UserError
from grpo_plus.cli._parser import by_option, repeated, with_values
from grpo_plus.cli._prompts import KEYS, prompt_problems
from grpo_plus.cli._quick_checks import NEGATIVE, config_path, is_rank, raise_user_error, word_problems
from grpo_plus.config import MAPPINGS, GRPOPlusConfig
from grpo_plus.evaluation.measure import KEYS as MEASURE_KEYS
from grpo_plus.evaluation.measure import measure_problems
from grpo_plus.qlora.defaults import Default, Device, fill_parser
from grpo_plus.recipe.aliases import remedy
from grpo_plus.recipe.forms import add_dotted_flags, dotted_flags
from grpo_plus.recipe.host import host_problems
from grpo_plus.recipe.launch import launching
from grpo_plus.recipe.recipe import call_problems
from grpo_plus.recipe.rewards import idle_problems
from grpo_plus.recipe.values import is_off, judge, mapping, mapping_or_none, read_yaml
from grpo_plus.warm_start.store import KEYS as WARM_START_KEYS
from grpo_plus.warm_start.store import warm_start_problems
from grpo_verifiers.errors import ConfigError, VerifierError, raise_all


@dataclass
class PlusScriptArguments(ScriptArguments):
    """Arguments outside the training config: data, rewards, prompt."""

    reward_model_name_or_path: str | None = field(
        default=None, metadata={"help": "Reward model (sequence classification), by name or folder."}
    )
    reward_funcs: list[str] | None = field(
        default=None, metadata={"help": "Reward functions: TRL's names, dotted paths, or ./file.py:function."}
    )
    prompt: dict[str, Any] | str | None = field(
        default=None,
        metadata={
            "help": "How the prompt is built, by the keys column, user (text with {column} placeholders), system, "
            "template (boxed, think, think_boxed or think_answer) and chat.",
            **dotted_flags("prompt", KEYS),
        },
    )
    measure: dict[str, Any] | str | None = field(
        default=None,
        metadata={
            "help": "Accuracy on held-out rows before and after training, such as {split: test, n: 4}.",
            **dotted_flags("measure", MEASURE_KEYS),
        },
    )
    warm_start: dict[str, Any] | str | None = field(
        default=None,
        metadata={
            "help": "Supervised training before GRPO, such as {dataset: ./solutions.jsonl, solution: solution}.",
            **dotted_flags("warm_start", WARM_START_KEYS),
        },
    )
    torch_threads: int | None = field(
        default=None,
        metadata={"help": "Threads of torch on the CPU; very small models want few. Unset: torch's choice."},
    )
    next_steps: list[str] | None = field(
        default=None,
        metadata={"help": "Lines to print at the end; {command}, {folder} and {output_dir} are filled in."},
    )
    allow_changes: bool = field(
        default=False, metadata={"help": "Resume a run that differs from the checkpoint's; the differences are logged."}
    )

    def __post_init__(self) -> None:
        """Read the mappings and refuse unknown keys."""
        raise_all(
            [*prompt_problems(self.prompt), *measure_problems(self.measure), *warm_start_problems(self.warm_start)]
        )
        self.prompt = mapping("prompt", self.prompt)
        self.measure = mapping_or_none("measure", self.measure)
        self.warm_start = mapping_or_none("warm_start", self.warm_start)


@dataclass(frozen=True)
class Parsed:
    """A parsed command line."""

    script: PlusScriptArguments
    training: GRPOPlusConfig
    model: ModelConfig
    mixture: DatasetMixtureConfig
    launch: tuple[str, ...]
    processes: int | None
    machines: int
    folder: Path
    prompt: Mapping[str, Any]
    measure: Mapping[str, Any] | None
    warm_start: Mapping[str, Any] | None
    filled: tuple[Default, ...]

    @property
    def trusts_code(self) -> bool:
        """True if the model's own code may run; TRL moved the switch from the model's group to the training group."""
        return any(getattr(group, "trust_remote_code", False) for group in (self.training, self.model))


GROUPS = (GRPOPlusConfig, PlusScriptArguments, ModelConfig, DatasetMixtureConfig)


def make_parser(prog: str) -> TrlParser:
    """Return TRL's parser over all argument groups."""
    parser = TrlParser(GROUPS, prog=prog, usage=f"{prog} config.yaml [--any.option VALUE …]", allow_abbrev=False)
    parser._negative_number_matcher = NEGATIVE  # noqa: SLF001 - argparse itself takes -1e-4 for a flag
    return parser


def parse(prog: str, arguments: Sequence[str], own: Collection[str] = (), device: Device | None = None) -> Parsed:
    """Parse ``[config.yaml] [flags]``; ``own`` are those that the command reads itself, for suggestions.

    Defaults are for ``device``; without it, for the device of this machine.
    """
    parser = make_parser(prog)
    path, rest = config_path(arguments)
    # The default prints a usage and ends the process.
    parser.error = lambda message: raise_user_error(with_values(parser, rest, message))
    add_dotted_flags(parser, rest, (*MAPPINGS, "prompt", "measure", "warm_start"))
    if unusable := word_problems(rest, own):
        raise UserError(str(ConfigError(unusable)))
    folder = path.resolve().parent if path else Path.cwd()
    rest = _absolute_files(rest)
    problems: list[str] = []
    try:
        words, keys, problems = ([], frozenset[str](), []) if path is None else _apply_file(parser, path)
        namespace, extra = parser.parse_known_args(rest)
        invalid = _check_values(parser, vars(namespace))
        problems += invalid.values()
        if extra and (twice := repeated(_launch_parser(), extra)):
            raise UserError(twice)
        launch, processes, machines = _launch_arguments([*words, *extra])
        # A process that only launches ranks must not initialise the GPU.
        fills = device is not None or is_rank() or not launch
        filled = fill_parser(parser, rest, keys, device) if fills else []
        with launching(folder, None if is_rank() else processes):
            values = vars(parser.parse_known_args(rest)[0])
            groups = [_build(group, values, invalid) for group in GROUPS]
    except (ValueError, TypeError, VerifierError) as error:
        raise UserError(str(ConfigError([*problems, str(error)]))) from error
    training, script, model, mixture = groups
    if refusals := [one for one in groups if isinstance(one, ConfigError)]:
        problems += [problem for refusal in refusals for problem in refusal.problems]
        raise UserError(str(ConfigError(problems))) from refusals[0]
    if training.eval_verifiers and training.eval_strategy == "no":
        problems.append(
            "eval_verifiers are set, but eval_strategy is 'no': set it (eval_strategy: steps), or remove them."
        )
    # The trainer reports these only after the model loaded. A command has only the tools of its config.
    problems += idle_problems(training.recipe, reward_names(script))
    problems += call_problems(training.recipe, (), training.max_tool_calling_iterations, open_ended=False)
    if problems:
        raise UserError(str(ConfigError(problems)))
    mappings = script.prompt, script.measure, script.warm_start
    return Parsed(script, training, model, mixture, launch, processes, machines, folder, *mappings, tuple(filled))


def _check_values(parser: TrlParser, values: Mapping[str, Any]) -> dict[str, str]:
    """Return the problems of values outside the training config, by field; defaults replace these for later checks."""
    problems: dict[str, str] = {}
    for group in GROUPS[1:]:
        judged = judge(group, values, skip=("prompt", "measure", "warm_start"))
        parser.set_defaults(**judged.instead)
        problems |= judged.problems
    return problems


def _build(group: type, values: Mapping[str, Any], invalid: Mapping[str, str]) -> Any:
    """Build a group of options; return the error with all problems if that fails."""
    own = {spec.name: values[spec.name] for spec in fields(group) if spec.init}
    try:
        return group(**own)
    except ConfigError as error:
        return error
    except Exception as error:  # noqa: BLE001 - the host raises any type
        return ConfigError(host_problems(group, own, lambda some: group(**some), tuple(invalid)) or [str(error)])


def reward_names(script: Any) -> list[str]:
    """Return the names of the rewards that are no verifiers, in the trainer's order."""
    model = script.reward_model_name_or_path
    names = [name.replace(":", ".").rpartition(".")[2] for name in script.reward_funcs or []]
    return [*([model] if model else []), *names]


_PYTHON_FILE = re.compile(r"""(?:^|(?<=["'=])|(?<=: ))[^\s"'=:,\[\]{}]+\.py(?=$|[:"',\s}\]])""")
"""A Python file as a word, after a flag's ``=``, or as a value in a list or mapping."""


def _absolute_files(words: Sequence[str]) -> list[str]:
    """Make Python files of the working folder absolute, except in prompts.

    Other files stay relative to the config's folder, as in the config: the commands that a recipe prints work from
    anywhere.
    """

    def absolute(match: "re.Match[str]") -> str:
        return str(Path(match[0]).resolve()) if Path(match[0]).is_file() else match[0]

    pairs = by_option(words)
    return [word if option.startswith("--prompt") else _PYTHON_FILE.sub(absolute, word) for option, word in pairs]


def _apply_file(parser: TrlParser, path: Path) -> tuple[list[str], frozenset[str], list[str]]:
    """Set the values of a file as defaults; return its launcher arguments, its option names and its problems."""
    values = read_yaml(path)
    problems = _set_environment(values.pop("env", None))
    # YAML reads a bare `no` as false, but these fields expect the word.
    values = {key: "no" if value is False and key.endswith("_strategy") else value for key, value in values.items()}
    names = set(vars(parser.parse_known_args([])[0]))
    flags = _launch_flags()
    launch = {key: value for key, value in values.items() if key not in names and key in flags}
    problems += [f"unknown key {key!r}{remedy(key, names)}" for key in values.keys() - {*names, *flags}]
    options = {key: value for key, value in values.items() if key in names}
    unreadable = _unreadable(parser, options)
    parser.set_defaults_with_config(**{key: value for key, value in options.items() if key not in unreadable})
    for key in ("accelerate_config", "config_file"):
        if isinstance(launch.get(key), str) and (path.parent / launch[key]).is_file():
            launch[key] = str((path.parent / launch[key]).resolve())
    words = [word for key, value in launch.items() for word in _as_flag(key, value, takes_value=flags[key])]
    return words, frozenset(values), [*problems, *unreadable.values()]


def _unreadable(parser: TrlParser, values: Mapping[str, Any]) -> dict[str, str]:
    readers = {action.dest: action.type for action in parser._actions if callable(action.type)}  # noqa: SLF001 - argparse has no public list
    problems = {}
    for key, value in values.items():
        if isinstance(value, str) and key in readers:
            try:
                readers[key](value)
            except (ValueError, TypeError, argparse.ArgumentTypeError) as error:
                owner = next((group for group in GROUPS if key in group.__dataclass_fields__), GRPOPlusConfig)
                invalid = judge(owner, {key: value}).problems
                problems[key] = invalid.get(key, f"{key} is {value!r}, which cannot be read: {error}")
    return problems


def _set_environment(env: Any) -> list[str]:
    if is_off(env):
        return []
    if not isinstance(env, dict):
        return [f"env is {env!r}, expected a mapping of variable names to values."]
    problems = [
        f"env has {name}: {value!r}, expected a string, a number, true or false."
        for name, value in env.items()
        if not isinstance(value, str | int | float)
    ]
    os.environ.update({str(name): str(value) for name, value in env.items() if isinstance(value, str | int | float)})
    return problems


def _launch_parser() -> argparse.ArgumentParser:
    from accelerate.commands.launch import launch_command_parser

    parser: argparse.ArgumentParser = launch_command_parser()
    return parser


def _launch_flags() -> dict[str, bool]:
    """Map the YAML key of each option of ``accelerate launch`` to True if it takes a value."""
    actions = [action for action in _launch_parser()._actions if action.option_strings]  # noqa: SLF001 - argparse has no public list
    return {action.dest: action.nargs != 0 for action in actions} | {"accelerate_config": True}


def _as_flag(key: str, value: Any, *, takes_value: bool) -> list[str]:
    if value is None or (value is False and not takes_value):
        return []
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return [f"--{key}", text] if takes_value else [f"--{key}"]


def _launch_arguments(words: Sequence[str]) -> tuple[tuple[str, ...], int | None, int]:
    """Return the arguments for ``accelerate launch``, as in ``trl grpo``, and the numbers of processes and machines."""
    from trl.cli.accelerate_config import resolve_accelerate_config_argument

    if not words:
        return (), None, 1
    name = "--accelerate_config"
    words = [word for each in words for word in (each.split("=", 1) if each.startswith(f"{name}=") else [each])]
    try:
        launch = resolve_accelerate_config_argument(words)
    except ValueError as error:
        raise UserError(str(error)) from error
    launcher = _launch_parser()
    launcher.error = raise_user_error  # type: ignore[method-assign]  # its own prints a usage of 200 options
    namespace, strange = launcher.parse_known_args([*launch, "script"])
    if strange:  # a form that no parser accepts
        raise UserError(f"unknown option {strange[0].partition('=')[0]}. grpo-plus train --help-all lists all.")
    extra: list[str] = [namespace.training_script, *namespace.training_script_args]
    if len(extra) > 1:
        raise UserError(f"unexpected arguments: {' '.join(extra[:-1])}. The config file comes first, then options.")
    file = read_yaml(Path(namespace.config_file)) if namespace.config_file else {}
    counts = {name: value for name, value in file.items() if isinstance(value, int)}
    processes = namespace.num_processes or counts.get("num_processes")
    return tuple(launch), processes, namespace.num_machines or counts.get("num_machines") or 1
